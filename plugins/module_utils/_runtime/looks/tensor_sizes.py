# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ranks that call one collective with tensors of different sizes or types, by what flight recorders have. Pure.

gloo ends most of them with an error (`op.preamble.length <= op.nbytes`). Where the first parts fit, some ranks are done
and go on, and the others wait for a part that nobody sends: an all_reduce of 12 elements among those of 8, for example.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple

from ..types.evidence import Collective, Evidence
from .doing import WAITS, Doing, Doings

# Every rank's own tensor has the same size in these. In a gather or a scatter only one rank has the other side.
SAME_SIZE = ("all_reduce", "broadcast", "reduce", "all_gather")
BYTES = " bytes"  # of a tensor whose elements and type are not known: see tensor_of() in evidence.py


class DifferentSizes(NamedTuple):
    """A collective in which ranks have tensors of different sizes. `sides`: tensor and ranks, the fewest first."""

    call: str  # all_reduce #17
    sides: list[tuple[str, list[int]]]  # "12 Float"

    @property
    def what(self) -> str:
        """What differs: `types` if the elements are as many, else `sizes`."""
        return "sizes" if len({tensor.split(" ")[0] for tensor, _ranks in self.sides}) > 1 else "types"


def different_sizes(found: Mapping[int, Evidence], doings: Doings) -> DifferentSizes | None:
    """Return the first collective in which a rank waits and others have, or had, a tensor of another size; or None."""
    waits_in = {(doing.group, doing.sequence) for doing in doings.values() if is_in_collective(doing)}
    for group, sequence in sorted(waits_in, key=lambda key: key[1]):
        sides: dict[str, list[int]] = {}
        operations: set[str] = set()
        for rank, row in sorted(found.items()):
            for call in calls_of(row, group, sequence):
                sides.setdefault(call["tensor"], []).append(rank)
                operations.add(call["operation"])
        comparable = len({tensor.endswith(BYTES) for tensor in sides}) == 1
        if len(sides) > 1 and comparable and len(operations) == 1 and operations <= set(SAME_SIZE):
            named = f"{operations.pop()} #{sequence}"
            return DifferentSizes(named, sorted(sides.items(), key=lambda side: (len(side[1]), side[1])))
    return None


def is_in_collective(doing: Doing) -> bool:
    return doing.kind == WAITS and doing.sequence >= 0


def calls_of(row: Evidence, group: str, sequence: int) -> list[Collective]:
    """Return what a rank's flight recorder has of a collective: one at most, none if it has no size of it."""
    calls = [call for each in row["groups"] if each["name"] == group for call in each["recent"]]
    return [call for call in calls if call["sequence"] == sequence and call["tensor"]][:1]
