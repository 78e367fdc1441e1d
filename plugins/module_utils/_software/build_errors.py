# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Finds the few lines that explain a failure in the output of pip, a compiler or make. Pure."""

from __future__ import annotations

import itertools
import re
from typing import Sequence

TRUST = "if you trust that file, add -e torchfleet_locked=false, which checks versions only"
TRUST_OF_PROGRAM = "if you trust that file, write its checksum into the program's requirements"


def errors_in(lines: Sequence[str], trust: str = TRUST) -> list[str]:
    """Return the lines that explain the failure. `trust`: what to do about a wrong checksum.

    Of the first kind that occurs: wrong checksums, versions that exclude each other, a build error of pip, compiler
    errors, where make stopped, other errors of pip, the last lines.
    """
    if mismatches(lines):
        return [f"{line}: {trust}" for line in mismatches(lines)]
    if conflict(lines):
        return conflict(lines)
    texts = [line.strip() for line in lines]
    built = [line[len("error: ") :] for line in texts if line.startswith("error: ")]
    built = [line for line in built if " " in line]  # what pip adds are names such as subprocess-exited-with-error
    compiled = [line for line in texts if re.search(r"\S: (fatal )?error: ", line)]  # by a compiler or configure
    stops = [index for index, line in enumerate(lines) if re.match(r"make(\[\d+\])?: \*\*\* ", line)][:1]
    made = [line for stop in stops for line in texts[max(stop - 2, 0) : stop + 1]]
    by_pip = [line for line in lines if line.startswith("ERROR")]
    return built or compiled[:3] or made or by_pip or list(lines[:3])


def conflict(lines: Sequence[str]) -> list[str]:
    """Return what pip says of requirements that exclude each other: who asks for what. With --quiet it does not."""
    texts = [line.strip() for line in lines]
    if "The conflict is caused by:" not in texts:
        return []
    start = texts.index("The conflict is caused by:") + 1
    sides = re.compile(r".* depends on |The user requested ")
    return list(itertools.takewhile(sides.match, texts[start:]))


def mismatches(lines: Sequence[str]) -> list[str]:
    """Return a line for each package whose checksum differs from the lock, or that the lock does not have."""
    found: list[str] = []
    package = ""
    expected: list[str] = []
    unlocked = "In --require-hashes mode" in " ".join(lines)
    for line in [line.strip() for line in lines]:
        required = re.match(r"(\S+) from (\S+?)(#\S*)?( \(from .*)?:?$", line)
        if required:
            package, expected, by = required.group(1), [], (required.group(4) or "").replace(" (from", " (by", 1)
            found += [f"{package} is required{by}, and the lock has no such package"] if unlocked else []
        elif line.startswith(("Expected sha256", "Expected     or", "or ")):
            expected.append(line.split()[-1])
        elif line.startswith("Got ") and package:
            others = f" nor one of {len(expected) - 1} others" if len(expected) > 1 else ""
            found.append(
                f"{package}: the lock has the sha256 {expected[0]}{others}, and the file has {line.split()[-1]}"
            )
        elif re.match(r"\S+==\S+ --hash=sha256:", line):
            name, _separator, digest = line.partition(" --hash=sha256:")
            found.append(f"{name} is required, and the lock has no such package; the file has the sha256 {digest}")
    return list(dict.fromkeys(found))
