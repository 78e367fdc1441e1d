"""One rank of a world that does random operations, and what it does when one goes wrong. Used by random_worlds.py.

A mishap has to end with an error on every rank of its group, before the group's timeout unless a rank does not come at
all; and other groups work on. A rank that gets nowhere for HANGS seconds ends, and says where it is.
"""

from __future__ import annotations

import datetime
import faulthandler
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from torch_backends.tests.random_batches import Batch, Buffers, Planned, drawn, room_of_one
from torch_backends.tests.random_operations import (
    KINDS,
    OFTEN,
    WINDOW,
    Asked,
    Here,
    Room,
    another,
    begin,
    described,
    elements_of,
    random_asked,
)

HANGS = 240  # seconds
LONG = datetime.timedelta(seconds=10 * HANGS)  # of groups that must not need it
SOON = datetime.timedelta(seconds=3)  # of groups in which nothing can succeed, and which are made meanwhile
PENDING = 32  # operations at a time that a rank has asked for and not waited for
AFTER_DEATH = 60  # operations
BARRIER = Asked("barrier", torch.float32, 0, 0, "SUM", "whole")
COLLECTIVES = [name for name in KINDS if name != "message"]


class WrongError(Exception):
    """What a backend must not do."""


class Mishap(NamedTuple):
    """What goes wrong in a new group, the same on all ranks."""

    what: str  # "mismatch", "too late", "absent", "other group"
    members: list[int]
    odd: int  # the rank that does it
    before: list[Asked]  # what all of them ask for before
    asked: Asked  # what the others ask for
    other: Asked  # what the odd one asks for
    later: bool


class Pending(NamedTuple):
    """An operation that was begun."""

    work: dist.Work
    asked: Asked
    here: Here
    group_was_broken: bool


class Begun(NamedTuple):
    """An operation with memory of its own."""

    work: dist.Work | None  # None: it is over
    room: Room

    def is_right(self) -> bool:
        return self.room.memory.is_right()


@dataclass
class Rank:
    """One rank of a world."""

    backend: str
    place: Path
    rank: int
    size: int
    seed: str
    mishaps: float  # of all operations
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.common = random.Random(self.seed)  # all ranks draw the same numbers from it
        self.own = random.Random(f"{self.seed} {self.rank}")
        self.pending: list[Pending] = []
        self.broken: set[int] = set()  # groups, by their ids, in which an operation failed
        self.excused: set[int] = set()  # operations of this batch that failed
        self.dying = -1  # the rank that may be dead
        self.number = 0

    def join(self) -> None:
        """Make the groups: two of all ranks, and every pair of three."""
        if self.backend == "mpi":
            dist.init_process_group("mpi", timeout=LONG)
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            self.own = random.Random(f"{self.seed} {self.rank}")
        else:
            where = f"file://{self.place}/store"
            dist.init_process_group(self.backend, init_method=where, rank=self.rank, world_size=self.size, timeout=LONG)
        everybody = list(range(self.size))
        pairs = list(map(list, itertools.combinations(everybody, 2))) if self.size > 2 else []
        self.groups = [(everybody, dist.group.WORLD)]
        self.groups += [(ranks, dist.new_group(ranks)) for ranks in [everybody, *pairs]]
        self.buffers = Buffers(dist.group.WORLD)

    def here(self, ranks: list[int], group: dist.ProcessGroup, later: bool) -> Here:
        return Here(group, ranks, ranks.index(self.rank), self.number, later)

    def play(self, operations: int) -> None:
        """Do so many operations, in batches of which the results are compared at the end."""
        members = [ranks for ranks, _group in self.groups]
        while operations > 0:
            faulthandler.dump_traceback_later(HANGS, exit=True)
            batch = Batch(self.common, members, OFTEN[self.backend], operations)
            operations -= len(batch.planned)
            batch.place(self.rank, self.buffers)
            for planned, own in zip(batch.planned, drawn(self.own, len(batch.planned)), strict=True):
                self.number += 1
                if self.dying < 0 and planned.mishap < self.mishaps:
                    self.meet(self.random_mishap())
                else:
                    self.do_one(batch, planned, own)
            self.wait_for_all(0)
            self.compare(batch)

    def do_one(self, batch: Batch, planned: Planned, own: list[int]) -> None:
        ranks, group = self.groups[planned.group]
        if planned.late == self.rank:
            time.sleep(own[0] / 2**30 * 0.005)
        if self.rank not in ranks:
            return
        self.done["operations"] += ranks[0] == self.rank
        here = self.here(ranks, group, own[1] % 8 > 0)
        was_broken = id(group) in self.broken
        try:
            work = begin(planned.asked, here, batch.room(planned, ranks))
        except RuntimeError as error:
            self.failed(here, planned.asked, error)
        else:
            if work is not None:
                self.pending.append(Pending(work, planned.asked, here, was_broken))
            elif was_broken and planned.asked.kind != "message":
                raise WrongError(f"a group works that had failed: {self.told(here, planned.asked)}")
        if own[2] % 16 == 0 or len(self.pending) > PENDING:
            self.wait_for_all(own[3] % PENDING)

    def wait_for_all(self, but: int) -> None:
        """Wait for what was begun, in any order, but for so many."""
        while len(self.pending) > but:
            work, asked, here, was_broken = self.pending.pop(self.own.randrange(len(self.pending)))
            try:
                work.wait()
            except RuntimeError as error:
                self.failed(here, asked, error)
                continue
            if was_broken and asked.kind != "message":
                raise WrongError(f"a group works that had failed: {self.told(here, asked)}")

    def compare(self, batch: Batch) -> None:
        """Compare the memory of a batch with what must be there, but for that of operations that failed."""
        excused, self.excused = self.excused, set()
        if excused:
            self.buffers.drop()
        if batch.is_right():
            return
        for number, planned in enumerate(batch.planned, self.number - len(batch.planned) + 1):
            ranks, group = self.groups[planned.group]
            elements = elements_of(planned.asked, len(ranks))
            if number not in excused and not batch.room(planned, ranks).is_right(elements):
                here = Here(group, ranks, -1, number, False)
                raise WrongError(f"a wrong number: {self.told(here, planned.asked)}, or one beside it")
        if not excused:
            raise WrongError(f"memory of no operation was written in the {len(batch.planned)} before {self.number}")

    def failed(self, here: Here, asked: Asked, error: RuntimeError) -> None:
        """An operation failed, which only one with a rank that is dead may."""
        if self.dying not in here.ranks:
            raise WrongError(f"{self.told(here, asked)}: {error}") from None
        self.excused.add(here.number)
        if asked.kind != "message":
            self.broken.add(id(here.group))

    def told(self, here: Here, asked: Asked) -> str:
        return f"operation {here.number} of ranks {here.ranks}: {described(asked)}"

    def random_mishap(self) -> Mishap:
        chance = self.common
        what = chance.choices(["mismatch", "too late", "absent", "other group"], [300, 1, 1, 1])[0]
        members = sorted(chance.sample(range(self.size), chance.randint(2, self.size)))
        before = chance.randrange(4) if what == "mismatch" else 0
        asked = [random_asked(chance, len(members), COLLECTIVES) for _number in range(before + 1)]
        is_other = what == "mismatch"
        other = another(chance, asked[-1], len(members)) if is_other else asked[-1]
        return Mishap(what, members, chance.choice(members), asked[:-1], asked[-1], other, chance.random() < 0.5)

    def meet(self, mishap: Mishap) -> None:
        """Let a mishap happen in a group of its own."""
        self.done[mishap.what] += self.rank == 0
        faulthandler.dump_traceback_later(HANGS, exit=True)
        timeout = LONG
        if mishap.what != "mismatch":
            self.wait_for_all(0)
            self.await_flags("there", range(self.size))
            timeout = SOON
        count = 2 if mishap.what == "other group" else 1
        groups = [dist.new_group(mishap.members, timeout=timeout) for _number in range(count)]
        if self.rank not in mishap.members:
            return
        is_odd = self.rank == mishap.odd
        here = self.here(mishap.members, groups[-1 if is_odd else 0], mishap.later)
        begun = [(asked, self.begin_alone(asked, here._replace(later=True))) for asked in mishap.before]
        if is_odd and mishap.what == "too late":
            self.await_flags("gave up", [rank for rank in mishap.members if rank != self.rank])
        if not (is_odd and mishap.what == "absent"):
            self.must_fail(mishap, mishap.other if is_odd else mishap.asked, here)
        for asked, one in begun:
            if not failure(lambda one=one: one) and not one.is_right():
                raise WrongError(f"a wrong number before a mishap: {self.told(here, asked)}")
        self.flag("gave up")
        for group in groups:
            dist.destroy_process_group(group)

    def must_fail(self, mishap: Mishap, asked: Asked, here: Here) -> None:
        """The operation fails, or has a right result where it waits for nobody; the next one fails in any case."""
        told = f"{self.told(here, asked)}, {mishap.what} of rank {mishap.odd}: {mishap.asked} and {mishap.other}"
        begun: list[Begun] = []
        error = failure(lambda: begun.append(self.begin_alone(asked, here)) or begun[0])
        if not error and not begun[0].is_right():
            raise WrongError(f"a wrong number instead of an error: {told}")
        if not failure(lambda: self.begin_alone(BARRIER, here._replace(later=False))):
            raise WrongError(f"nothing was noticed: {told}")

    def begin_alone(self, asked: Asked, here: Here) -> Begun:
        """Begin an operation with memory of its own."""
        room = room_of_one(asked, here.ranks, self.rank, here.number % WINDOW, self.buffers)
        return Begun(begin(asked, here, room), room)

    def flag(self, what: str) -> None:
        (self.place / f"{self.number} {self.rank} {what}").touch()

    def await_flags(self, what: str, ranks: Sequence[int]) -> None:
        """Wait until these ranks have said so; this one says it too."""
        self.flag(what)
        while not all((self.place / f"{self.number} {rank} {what}").exists() for rank in ranks):
            time.sleep(0.01)

    def die(self, how: str) -> None:
        """Leave, at once or in the middle of what follows."""
        if how == "in between":
            threading.Timer(self.own.random() * 0.01, os.kill, [os.getpid(), signal.SIGKILL]).start()
            return
        if how == "by itself":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    def outlive(self, how: str, dying: int) -> None:
        """Go on without a rank: groups that had it fail, and the others do not."""
        faulthandler.dump_traceback_later(HANGS, exit=True)
        self.dying = dying
        if self.rank == dying:
            self.die(how)
        self.play(AFTER_DEATH)
        if self.rank == dying:
            signal.pause()
        for ranks, group in self.groups:
            if self.rank not in ranks:
                continue
            error = failure(lambda group=group, ranks=ranks: self.begin_alone(BARRIER, self.here(ranks, group, False)))
            if (dying in ranks) != bool(error):
                raise WrongError(f"after the death of rank {dying}, a barrier of ranks {ranks}: {error or 'no error'}")


def failure(action: Callable[[], Begun]) -> str:
    """Return how an operation fails, an empty text if it does not."""
    try:
        work = action().work
        if work is not None:
            work.wait()
    except RuntimeError as error:
        return str(error)
    return ""
