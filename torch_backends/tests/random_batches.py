"""Batches of random operations: what all ranks ask for, drawn at once, and the memory in which it happens.

Used by random_worlds.py.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from torch_backends.tests.random_operations import (
    CPU,
    TYPES,
    WINDOW,
    Asked,
    Memory,
    Room,
    asked_by,
    elements_of,
    fitting,
)

LONGEST = 400  # operations
LATE = 1000  # of so many operations, a rank is late for one
COLUMNS = 12  # random numbers of an operation


def drawn(chance: random.Random, count: int) -> list[list[int]]:
    """Return random numbers for so many operations: one call is faster than many."""
    generator = torch.Generator().manual_seed(chance.getrandbits(60))
    found: list[list[int]] = torch.randint(1 << 30, (count, COLUMNS), generator=generator).tolist()
    return found


class Planned(NamedTuple):
    """An operation of a batch, the same for all ranks."""

    asked: Asked
    group: int  # its place among the groups
    at: int  # where its room begins
    late: int  # the rank that is late, or -1
    mishap: float  # something else happens if this is below the part of mishaps


class Buffers:
    """Memory of a rank for batch after batch. What the ranks share is made by the backend."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.backend = group._get_backend(CPU)
        self.kept: dict[tuple[int, str], torch.Tensor] = {}

    def new(self, form: str, count: int) -> torch.Tensor:
        if form == "shared" and self.backend.supports_tensor_alloc(CPU):
            made: torch.Tensor = self.backend.allocate_tensor(count, dtype=torch.uint8, device=CPU)
            return made
        return torch.empty(count, dtype=torch.uint8)

    def take(self, slot: int, form: str, count: int) -> torch.Tensor:
        """Return memory that nothing else of a batch has."""
        found = self.kept.get((slot, form))
        if found is None or len(found) < count:
            found = self.kept[slot, form] = self.new(form, max(1 << 16, 2 * count))
        return found[:count]

    def drop(self) -> None:
        """Begin anew: also who failed may still write into what was."""
        self.kept.clear()


class Batch:
    """Operations that are begun one after the other, and whose results are compared at the end."""

    def __init__(self, chance: random.Random, groups: Sequence[Sequence[int]], kinds: Sequence[str], most: int) -> None:
        self.ends: dict[tuple[torch.dtype, str], int] = {}
        self.first = chance.randrange(WINDOW)
        self.is_anew = chance.random() < 0.02
        dtypes = chance.sample(TYPES, 2)
        numbers = drawn(chance, min(most, chance.randint(1, LONGEST)))
        self.planned = [self._plan(one, dtypes, groups, kinds) for one in numbers]

    def _plan(
        self,
        numbers: list[int],
        dtypes: Sequence[torch.dtype],
        groups: Sequence[Sequence[int]],
        kinds: Sequence[str],
    ) -> Planned:
        group = numbers[7] % len(groups)
        ranks = len(groups[group])
        asked = asked_by(numbers, dtypes, ranks, kinds)
        at = self.ends.get((asked.dtype, asked.form), 0) + numbers[8] % 3
        asked = fitting(asked, ranks, at)
        self.ends[asked.dtype, asked.form] = at + elements_of(asked, ranks)
        late = numbers[9] % len(groups[0]) if numbers[10] % LATE == 0 else -1
        return Planned(asked, group, at, late, numbers[11] / (1 << 30))

    def place(self, rank: int, buffers: Buffers) -> None:
        """Give the operations their memory on this rank."""
        if self.is_anew:
            buffers.drop()
        self.memories = {
            key: Memory(*key, end + 1, self.first, rank, functools.partial(buffers.take, slot))
            for slot, (key, end) in enumerate(self.ends.items())
        }

    def room(self, planned: Planned, ranks: Sequence[int]) -> Room:
        return Room(self.memories[planned.asked.dtype, planned.asked.form], planned.at, ranks, len(ranks))

    def is_right(self) -> bool:
        return all(memory.is_right() for memory in self.memories.values())


def room_of_one(asked: Asked, ranks: Sequence[int], rank: int, first: int, buffers: Buffers) -> Room:
    """Return room for one operation alone."""
    length = elements_of(asked, len(ranks)) + 1
    return Room(Memory(asked.dtype, asked.form, length, first, rank, buffers.new), 0, ranks, len(ranks))
