"""Worlds of ranks that do random operations, in which now and then a rank does something else, is late, or dies.

    random_worlds.py shm RANKS SEED OPERATIONS MISHAPS [WORLD]     starts its ranks itself, one world after the other
    mpirun -n RANKS random_worlds.py mpi DIRECTORY SEED OPERATIONS MISHAPS     one world; at its end a rank dies

A result is compared with what torch alone makes of the same numbers. A mishap has to end with an error on every rank of
its group, before the group's timeout unless a rank does not come at all; and other groups work on. A rank that gets
nowhere for HANGS seconds ends, and says where it is.

Prints how much was done, as JSON, or what was wrong in which world. MISHAPS: their part of all operations. WORLD: only
this one, to see that again.
"""

from __future__ import annotations

import datetime
import faulthandler
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from torch_backends.tests.random_operations import (
    KINDS,
    Asked,
    Begun,
    Here,
    another,
    begin,
    described,
    random_asked,
)

HANGS = 240  # seconds
LONG = datetime.timedelta(seconds=10 * HANGS)  # of groups that must not need it
SOON = datetime.timedelta(seconds=3)  # of groups in which nothing can succeed, and which are made meanwhile
PENDING = 8  # operations at a time that a rank has asked for and not waited for
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

    begun: Begun
    asked: Asked
    here: Here
    group_was_broken: bool


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

    def here(self, ranks: list[int], group: dist.ProcessGroup, later: bool) -> Here:
        return Here(group, ranks, ranks.index(self.rank), self.number, later)

    def play(self, operations: int) -> None:
        """Do so many operations, and wait for all of them."""
        for _number in range(operations):
            self.number += 1
            if self.number % 1000 == 1:
                faulthandler.dump_traceback_later(HANGS, exit=True)
            if self.dying < 0 and self.common.random() < self.mishaps:
                self.meet(self.random_mishap())
            else:
                self.do_one()
        self.wait_for_all(0)

    def do_one(self) -> None:
        ranks, group = self.common.choice(self.groups)
        asked = random_asked(self.common, len(ranks))
        late = self.common.randrange(self.size) if self.common.random() < 0.005 else -1
        if late == self.rank:
            time.sleep(self.own.random() * 0.005)
        if self.rank not in ranks:
            return
        self.done["operations"] += ranks[0] == self.rank
        here = self.here(ranks, group, self.own.random() < 0.4)
        was_broken = id(group) in self.broken
        try:
            self.pending.append(Pending(begin(asked, here), asked, here, was_broken))
        except RuntimeError as error:
            self.failed(here, asked, error)
        if not here.later or self.own.random() < 0.3:
            self.wait_for_all(self.own.randrange(PENDING))

    def wait_for_all(self, but: int) -> None:
        """Wait for what was begun, in any order, but for so many."""
        while len(self.pending) > but:
            begun, asked, here, was_broken = self.pending.pop(self.own.randrange(len(self.pending)))
            try:
                if begun.work is not None:
                    begun.work.wait()
            except RuntimeError as error:
                self.failed(here, asked, error)
                continue
            if not begun.is_right():
                raise WrongError(f"a wrong number: {self.told(here, asked)}")
            if was_broken and asked.kind != "message":
                raise WrongError(f"a group works that had failed: {self.told(here, asked)}")

    def failed(self, here: Here, asked: Asked, error: RuntimeError) -> None:
        """An operation failed, which only one with a rank that is dead may."""
        if self.dying not in here.ranks:
            raise WrongError(f"{self.told(here, asked)}: {error}") from None
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
        begun = [(asked, begin(asked, replace(here, later=True))) for asked in mishap.before]
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
        error = failure(lambda: begun.append(begin(asked, here)) or begun[0])
        if not error and not begun[0].is_right():
            raise WrongError(f"a wrong number instead of an error: {told}")
        if not failure(lambda: begin(BARRIER, replace(here, later=False))):
            raise WrongError(f"nothing was noticed: {told}")

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
            error = failure(lambda group=group, ranks=ranks: begin(BARRIER, self.here(ranks, group, False)))
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


class World(NamedTuple):
    """What the ranks of a world do, and how one of them leaves at the end."""

    seed: str
    operations: int
    mishaps: float
    how: str  # "" if nobody leaves
    dying: int


def worlds(size: int, seed: str, operations: int, mishaps: float) -> Iterator[World]:
    """Yield worlds that do so many operations together: short and long ones."""
    for number in itertools.count():
        chance = random.Random(f"{seed} {size} {number}")
        length = min(operations, chance.choice([10, 100, 1000, 10_000]))
        how = chance.choice(["killed", "killed", "in between", "by itself", ""])
        yield World(f"{seed} {size} {number}", length, mishaps, how, chance.randrange(size))
        operations -= length
        if operations <= 0:
            return


def live(rank: Rank, world: World) -> int:
    """Be a rank, and write down what was done or what was wrong. Return the exit status."""
    told = rank.place / f"{rank.rank}.json"
    try:
        rank.join()
        told = rank.place / f"{rank.rank}.json"
        rank.play(world.operations)
        told.write_text(json.dumps(rank.done))
        if world.how:
            rank.outlive(world.how, world.dying)
        else:
            dist.destroy_process_group()
        told.write_text(json.dumps(rank.done))
    except Exception:
        told.write_text(json.dumps({"wrong": traceback.format_exc()}))
        return 1
    return 0


def start(world: World, size: int, place: Path) -> list[int]:
    """Start the ranks of a world, each a process of its own. They need not import torch again."""
    ranks = []
    for rank in range(size):
        process = os.fork()
        if process == 0:
            os._exit(live(Rank("shm", place, rank, size, world.seed, world.mishaps), world))
        ranks.append(process)
    return ranks


def wrong_of(world: World, place: Path, statuses: list[int]) -> str:
    """Return what was wrong in a world whose ranks have ended."""
    told = []
    for rank, status in enumerate(statuses):
        left = {"": 0, "by itself": 0}.get(world.how, -signal.SIGKILL) if rank == world.dying else 0
        if status != left:
            file = place / f"{rank}.json"
            found = json.loads(file.read_text()).get("wrong", "") if file.exists() else ""
            told.append(f"rank {rank} ended with {status}, not {left}: {found}")
    return "\n".join(told)


def drive(size: int, seed: str, operations: int, mishaps: float, only: str) -> int:
    """Start world after world. Return the exit status."""
    done: Counter[str] = Counter()
    for number, world in enumerate(worlds(size, seed, operations, mishaps)):
        if only and number != int(only):
            continue
        with tempfile.TemporaryDirectory() as place:
            statuses = [
                os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in start(world, size, Path(place))
            ]
            wrong = wrong_of(world, Path(place), statuses)
            if wrong:
                print(f"world {number} of seed {seed}, {size} ranks, {world}:\n{wrong}", flush=True)
                return 1
            for rank in range(size):
                done.update(json.loads((Path(place) / f"{rank}.json").read_text()))
        done["worlds"] += 1
        done[world.how or "nobody left"] += 1
    print(json.dumps(done), flush=True)
    return 0


def main() -> int:
    torch.set_num_threads(1)
    if sys.argv[1] == "shm":
        size, seed, operations, mishaps, *only = sys.argv[2:]
        return drive(int(size), seed, int(operations), float(mishaps), only[0] if only else "")
    directory, seed, operations, mishaps = sys.argv[2:]
    world = World(seed, int(operations), float(mishaps), "killed", 0)
    return live(Rank("mpi", Path(directory), 0, 0, seed, world.mishaps), world)


if __name__ == "__main__":
    sys.exit(main())
