"""Worlds of ranks that do random operations, in which now and then a rank does something else, is late, or dies.

    random_worlds.py shm RANKS SEED OPERATIONS MISHAPS [WORLD]     starts its ranks itself, one world after the other
    mpirun -n RANKS random_worlds.py mpi DIRECTORY SEED OPERATIONS MISHAPS     one world; at its end a rank dies

A result is compared with what torch alone makes of the same numbers. A rank that dies at the end of its world has to
fail all groups that it is in, and no other. With TORCHFLEET_SHM_NODE_RANKS, as if on several nodes, none dies.

Prints how much was done, as JSON, or what was wrong in which world. MISHAPS: their part of all operations. WORLD: only
this one, to see that again.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from torch_backends.tests.random_operations import (
    TYPES,
    source,
)
from torch_backends.tests.random_ranks import Rank


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
        length = min(operations, chance.choice([10, 1000, 10_000, 50_000]))
        how = chance.choice(["killed", "killed", "in between", "by itself", ""])
        if "TORCHFLEET_SHM_NODE_RANKS" in os.environ:
            how = ""  # gloo may wait to the end of the timeout for a rank of another node
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
    """Start the ranks of a world, each a process of its own, which has torch and all numbers from the start."""
    for dtype, rank in itertools.product(TYPES, range(size)):
        source(dtype, rank)
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
