"""Programs that a user could have written, over backends shm and mpi, compared with the same under gloo.

All programs of a world run in one group, by one process for each rank. Those under gloo and shm are forked from one
process, which has PyTorch. PROGRAMS_MORE, which `make programs` sets: all of them with 2, 3 and 4 ranks, under all
MPIs, as if on several nodes, and compiled by inductor.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from torch_backends.tests import package
from torch_backends.tests.conftest import Run

PROGRAM = "torch_backends.tests.programs.world"
PROGRAMS = [
    name
    for path in sorted(Path(__file__).with_name("programs").glob("*.py"))
    for name in re.findall(r"^@program\(.*\)\ndef (\w+)", path.read_text(), re.MULTILINE)
]
MORE = "PROGRAMS_MORE" in os.environ
# What is another program with four ranks: meshes of two by two, and groups of half the ranks.
GRIDS = [
    *("two_dimensions", "tensor_parallel_and_sharded", "fully_sharded_and_replicated", "pipelines_of_replicas"),
    *("experts", "groups_within", "local_training", "uneven_inputs"),
]
QUICK = [name for name in PROGRAMS if not name.startswith("compiled")]


class World(NamedTuple):
    """Programs that so many ranks run, and what starts these: an MPI, or nothing but Python for backend gloo or shm."""

    launcher: str
    ranks: int
    programs: list[str] = PROGRAMS
    environment: tuple[tuple[str, str], ...] = ()  # makes them ranks of several nodes

    @property
    def name(self) -> str:
        return f"{'nodes-' if self.environment else ''}{self.launcher}-{self.ranks}"

    @property
    def word(self) -> str:
        return f"{self.name}:{','.join(self.programs)}"


WORLDS = [
    *(World("gloo", 2), World("shm", 2), World("gloo", 4, GRIDS), World("shm", 4, GRIDS)),
    World("openmpi", 2, QUICK),
]
MPIS = ("openmpi", "openmpi-4.1", "mpich", "intelmpi")
if MORE:
    WORLDS = [World(launcher, ranks) for launcher in ("gloo", "shm", *MPIS) for ranks in (2, 3, 4)]
    WORLDS += [
        World("shm", 3, QUICK, (("TORCHFLEET_SHM_NODE_RANKS", "1"),)),
        World("shm", 4, QUICK, (("TORCHFLEET_SHM_NODE_RANKS", "2"),)),
        World("openmpi", 3, QUICK, (("TORCHFLEET_MPI_SHARED", "0"),)),
        World("mpich", 4, QUICK, (("TORCHFLEET_MPI_NODE_RANKS", "2"),)),
    ]
TOGETHER = [world for world in WORLDS if world.launcher not in MPIS and not world.environment]  # started by one process
# A /dev/shm of its own; what has a name there when all ranks have ended is printed last.
ALONE = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/shm && "$0" "$@"; rc=$?; ls -A /dev/shm; exit $rc']
SECONDS = 3600 if MORE else 800
# What came of each program in a world, and how the world ended: an empty text if well.
Ended = Callable[[str], tuple[dict[str, str], str]]


def environment(place: Path) -> dict[str, str]:
    """Return the environment of the ranks."""
    compiler = {"PROGRAMS_COMPILER": "inductor", "TORCHINDUCTOR_CACHE_DIR": str(place / "compiled")} if MORE else {}
    own = {"PYTHONPATH": str(package.REPO), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "", **compiler}
    return {**os.environ, **own}


def end_of(argv: list[str], environ: dict[str, str]) -> str:
    """Run worlds to their end. Return what was wrong with it, an empty text if nothing was and nothing is left."""
    try:
        done = subprocess.run(
            [*ALONE, *argv], env=environ, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired as error:
        return str(error)
    return done.stdout + done.stderr if done.returncode or done.stdout else ""


@pytest.fixture(scope="module")
def ended(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Run all worlds, and return a function that tells what came of one."""
    place = tmp_path_factory.mktemp("programs")
    worlds = place / "worlds"
    worlds.mkdir()
    words, environ = [str(package.PYTHON), "-W", "ignore", "-m", PROGRAM], environment(place)
    here = [*words, "here", str(worlds)]
    together = end_of([*here, *(world.word for world in TOGETHER)], environ)
    ends = {world.name: together for world in TOGETHER}
    for world in WORLDS:
        if world.name in ends:
            continue
        of_mpi = ["-m", PROGRAM, "mpi", str(worlds), world.word]
        is_of_mpi = world.launcher in MPIS
        argv = package.command(world.launcher, world.ranks, *of_mpi) if is_of_mpi else [*here, world.word]
        ends[world.name] = end_of(argv, {**environ, **dict(world.environment)})
    compared = subprocess.run(
        [*words, "compare", str(worlds)], env=environ, capture_output=True, text=True, check=False
    )
    found = json.loads(compared.stdout) if compared.returncode == 0 else {}

    def tell(world: str) -> tuple[dict[str, str], str]:
        return found.get(world, {}), ends[world] or compared.stderr

    return tell


CASES = [(world.name, program) for world in WORLDS for program in world.programs]


@pytest.mark.parametrize(("world", "program"), CASES)
def test_a_program_comes_to_what_it_does_under_gloo(ended: Ended, world: str, program: str) -> None:
    """With the same bits where two ranks are added, and the same under shm and every MPI."""
    found, end = ended(world)
    assert found.get(program, f"it never ran: {end}") == ""


@pytest.mark.parametrize("world", [world.name for world in WORLDS])
def test_a_world_ends_and_leaves_nothing(ended: Ended, world: str) -> None:
    """In time, with a good status, and without a name in /dev/shm."""
    assert ended(world)[1] == ""
