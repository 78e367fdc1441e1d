"""Runs the programs on every rank of a world, and compares what worlds came to.

    world.py here DIRECTORY WORLD ...                starts the ranks itself, one world after the other, by fork
    mpirun -n RANKS world.py mpi DIRECTORY WORLD     is one of the ranks
    world.py compare DIRECTORY                       prints as JSON of each world and program what differs from gloo

WORLD: BACKEND-RANKS, such as shm-2, or BACKEND-RANKS:PROGRAM,PROGRAM for some programs instead of all. `nodes-` stands
before it where the ranks are as if on several nodes. Each rank writes DIRECTORY/BACKEND-RANKS/<rank>.pt: of each
program what it came to, or what went wrong.
"""

from __future__ import annotations

import datetime
import faulthandler
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from torch_backends.tests.programs.registry import PROGRAMS, Found

HANGS = 600  # seconds of one world, after which its ranks tell where they are, and end
TIMEOUT = datetime.timedelta(seconds=300)  # of a collective: another rank may compile meanwhile
MODULES = ["exchanges", "pipelines", "replicas", "sharded", "tensors"]  # who imports them has their programs
Told = dict[str, tuple[Found | str, float]]  # of each program what it came to, or what went wrong, and its tolerance


class World(NamedTuple):
    """The programs that so many ranks run over a backend, and the name of their directory."""

    name: str
    backend: str
    ranks: int
    programs: list[str]

    @classmethod
    def of(cls, word: str) -> World:
        name, _colon, programs = word.partition(":")
        backend, _dash, ranks = name.rpartition("-")
        return cls(
            name, backend.removeprefix("nodes-"), int(ranks), programs.split(",") if programs else list(PROGRAMS)
        )


def run(world: World, directory: Path) -> int:
    """Run all programs in a world that is there, until one goes wrong. Return the exit status."""
    faulthandler.dump_traceback_later(HANGS, exit=True)
    torch.set_num_threads(1)
    place = directory / world.name
    place.mkdir(parents=True, exist_ok=True)
    told: Told = {}
    for name in world.programs:
        try:
            told[name] = PROGRAMS[name].run(), PROGRAMS[name].tolerance
        except Exception:
            told[name] = traceback.format_exc(), 0
            torch.save(told, place / f"{dist.get_rank()}.pt")
            sys.stderr.write(f"rank {dist.get_rank()}, {name}: {told[name][0]}")
            sys.stderr.flush()
            os._exit(1)  # from here on the ranks would wait for each other
    torch.save(told, place / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()
    return 0


def be(world: World, directory: Path, rank: int) -> None:
    """Be a rank of a world whose ranks find each other by a file, to the end of the process."""
    status = 1
    try:
        store = dist.FileStore(f"{directory / world.name}/store", world.ranks)
        dist.init_process_group(world.backend, store=store, rank=rank, world_size=world.ranks, timeout=TIMEOUT)
        status = run(world, directory)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.exit(status)  # not os._exit: a program ends so, and our backends have an end


def start(world: World, directory: Path) -> bool:
    """Start the ranks of a world, which have PyTorch from the start. Return whether all ended well."""
    (directory / world.name).mkdir(parents=True)
    ranks = []
    for rank in range(world.ranks):
        process = os.fork()
        if process == 0:
            be(world, directory, rank)
        ranks.append(process)
    statuses = [os.waitpid(process, 0)[1] for process in ranks]
    return not any(statuses)


def wrong(found: Found | str, expected: Found | str, tolerance: float) -> str:
    """Return what differs between what a rank came to and what is expected, an empty text if nothing does."""
    if isinstance(found, str) or isinstance(expected, str):
        return found if isinstance(found, str) else f"nothing to compare it with: {expected}"
    if found.keys() != expected.keys():
        return f"other results: {found.keys() ^ expected.keys()}"
    for name, tensor in found.items():
        wanted_one = expected[name]
        if tensor.dtype != wanted_one.dtype or tensor.shape != wanted_one.shape:
            return f"{name}: {tensor.dtype} {tensor.shape}, not {wanted_one.dtype} {wanted_one.shape}"
        if torch.equal(tensor, wanted_one):
            continue
        far = ((tensor.double() - wanted_one.double()).abs().max() / wanted_one.double().abs().max()).item()
        if not far <= tolerance:
            return f"{name}: {far:.1e} of the largest number, more than {tolerance:.0e}"
    return ""


NEVER = ("it never ran", 0.0)


def kept(place: Path) -> list[Told]:
    """Return what each rank of a world wrote, nothing of a rank that wrote nothing."""
    files = [place / f"{rank}.pt" for rank in range(World.of(place.name).ranks)]
    return [torch.load(file) if file.exists() else {} for file in files]


def compare(directory: Path) -> dict[str, dict[str, str]]:
    """Return what each program of each world came to that gloo, or shm for those of mpi, did not.

    A sum of two numbers has the same bits in every order, and shm and mpi add in the same one on one node.
    """
    worlds = {place.name: kept(place) for place in directory.iterdir()}
    found: dict[str, dict[str, str]] = {}
    for world, ranks in worlds.items():
        size = len(ranks)
        pairs = [] if world.startswith("gloo") else [(f"gloo-{size}", size == 2)]
        pairs += [] if world.startswith(("gloo", "shm", "nodes")) else [(f"shm-{size}", True)]
        for name in ranks[0]:
            told = [
                f"rank {rank}, compared with {other}: {text}"
                for other, is_exact in pairs
                for rank, (mine, theirs) in enumerate(zip(ranks, worlds[other], strict=True))
                for (came, _tolerance), (expected, tolerance) in [(mine.get(name, NEVER), theirs.get(name, NEVER))]
                for text in [wrong(came, expected, 0 if is_exact else tolerance)]
                if text
            ]
            found.setdefault(world, {})[name] = "\n".join(told)
    return found


def main() -> int:
    how, directory, *words = sys.argv[1:]
    if how == "compare":
        print(json.dumps(compare(Path(directory))))
        return 0
    for name in MODULES:
        importlib.import_module(f"torch_backends.tests.programs.{name}")
    worlds = [World.of(word) for word in words]
    if how == "here":
        torch.compile(torch.sin, backend="aot_eager")(torch.ones(1))  # the ranks have the compiler from the start
        ended_well = [start(world, Path(directory)) for world in worlds]
        return 0 if all(ended_well) else 1
    dist.init_process_group(how, timeout=TIMEOUT)
    return run(worlds[0], Path(directory))


if __name__ == "__main__":
    sys.exit(main())
