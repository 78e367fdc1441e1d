# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Short forms of long lists of node names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def fold_names(names: Iterable[str]) -> str:
    """Return the short form of names: n1, n2, n3, db becomes "db n1-n3"."""
    plain: list[str] = []
    numbered: dict[tuple[str, str, int], list[int]] = {}  # by what is around the number, and its width if padded
    for name in names:
        parts = re.split(r"(\d+)", name)  # not matched as a whole: that takes the square of a long name's time
        if len(parts) < 3 or re.fullmatch(r"[\d.:]+", name):
            plain.append(name)
            continue
        before, number, after = "".join(parts[:-2]), *parts[-2:]
        numbered.setdefault((before, after, len(number) if number.startswith("0") else 0), []).append(int(number))
    for (before, after, width), numbers in numbered.items():
        for first, last in runs(sorted(set(numbers))):
            texts = [f"{before}{number:0{width}}{after}" for number in (first, last)]
            plain += [texts[0]] if first == last else texts if last == first + 1 else ["-".join(texts)]
    return " ".join(sorted(plain, key=natural))


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts n2 before n10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return first and last of each unbroken run of ascending numbers."""
    found_runs: list[tuple[int, int]] = []
    for number in numbers:
        if found_runs and number == found_runs[-1][1] + 1:
            found_runs[-1] = (found_runs[-1][0], number)
        else:
            found_runs.append((number, number))
    return found_runs
