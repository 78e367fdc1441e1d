# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lock files, which locks/lock.py writes: exact versions, with the checksums of all published files of each."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._software import environment
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PIN = re.compile(r"([A-Za-z0-9._-]+)(?:\[.*\])?==([^\s;,*]+)\Z")
LOCKED = re.compile(r"[a-z0-9-]+==[A-Za-z0-9.!+_-]+( ; [^\\]+?)?( --hash=sha256:[0-9a-f]{64})+\Z")
# Packages for Linux alone are the CUDA libraries of the index's own build of PyTorch. Other builds have other ones.
OF_THE_BUILD = "sys_platform == 'linux'"
canonical = environment.canonical  # as nodes name a distribution


def read(path: str) -> list[str]:
    """Return the lines of a lock file, each with a version of a package and its checksums. InputError if it is none."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(
            "torchfleet_locks", path, f"there is no such lock file ({error}): locks/lock.py writes it"
        ) from None
    plain = [line.partition("#")[0].strip() for line in text.splitlines()]
    lines = [" ".join(line.split()) for line in "\n".join(plain).replace("\\\n", " ").splitlines()]
    lines = [line for line in lines if line and not line.startswith("--only-binary")]
    odd = next((line for line in lines if not LOCKED.match(line)), None)
    if odd or not lines:
        raise InputError(
            "torchfleet_locks", path, f"no version with checksums: {(odd or 'empty')[:80]}: locks/lock.py writes it"
        )
    return lines


def name_of(line: str) -> str:
    """Return the name of the package that a line or a requirement is about."""
    match = NAME.match(line.strip())
    return canonical(match[0]) if match else ""


class PackageLock(TypedDict):
    """The lock of an environment. Empty parts: there is none."""

    lines: list[str]
    of_the_build: list[str]  # names of those that only the index's own build of the first package takes
    more: list[str]  # packages that the lock does not know


class NamedLock(PackageLock):
    digest: str  # of all lines


def no_lock() -> PackageLock:
    return {"lines": [], "of_the_build": [], "more": []}


def lock_of(packages: Sequence[str], path: str) -> NamedLock:
    """Return the lock of an environment with these packages. Without a path each part is empty.

    InputError where it has another version of one.
    """
    if not path or not packages:
        return {"digest": "", **no_lock()}
    lines = read(path)
    there = {name_of(line) for line in lines}
    for package in packages:
        check_version(package, lines, path)
    apart = [line for line in lines if OF_THE_BUILD in line or line.startswith(f"{name_of(packages[0])}==")]
    return {
        "digest": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        "lines": lines,
        "of_the_build": sorted({name_of(line) for line in apart}),
        "more": [package for package in packages if name_of(package) not in there],
    }


def check_version(package: str, lines: Sequence[str], path: str) -> None:
    """Raise InputError for a package whose version is not in the lock. A build of that version (+cpu) is accepted."""
    has = [line.split()[0].partition("==")[2] for line in lines if name_of(line) == name_of(package)]
    pin = PIN.match(package.strip())
    if has and (pin is None or pin[2].partition("+")[0] not in has):
        raise InputError(
            "packages",
            package,
            f"{Path(path).name} has {' and '.join(has)}: write a lock of your own "
            "(python locks/lock.py --versions FILE --into DIRECTORY; -e torchfleet_locks=DIRECTORY), or add "
            "-e torchfleet_locked=false, which checks versions only",
        )
