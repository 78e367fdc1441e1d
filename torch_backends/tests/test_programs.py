"""Programs that a user could have written, over backends shm and mpi, compared with the same under gloo.

All programs of a world run in one group, by one process for each rank. Those under gloo and shm are forked from one
process, which has PyTorch. PROGRAMS_MORE, which `make programs` sets: all of them with 2, 3 and 4 ranks, under all
MPIs, and compiled by inductor.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

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
HERE = {"gloo-2": PROGRAMS, "shm-2": PROGRAMS, "gloo-4": GRIDS, "shm-4": GRIDS}
BY_MPI = {("openmpi", 2): QUICK}
if MORE:
    HERE = {f"{backend}-{ranks}": PROGRAMS for backend in ("gloo", "shm") for ranks in (2, 3, 4)}
    BY_MPI = {(mpi, ranks): PROGRAMS for mpi in ("openmpi", "openmpi-4.1", "mpich", "intelmpi") for ranks in (2, 3, 4)}
MPI_WORLDS = {f"{mpi}-{ranks}": (mpi, ranks, programs) for (mpi, ranks), programs in BY_MPI.items()}
DONE = {**HERE, **{world: programs for world, (_mpi, _ranks, programs) in MPI_WORLDS.items()}}
# A /dev/shm of its own; what has a name there when all ranks have ended is printed last.
ALONE = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/shm && "$0" "$@"; rc=$?; ls -A /dev/shm; exit $rc']
SECONDS = 1200 if MORE else 400
# What came of each program in a world, and how the world ended: an empty text if well.
Ended = Callable[[str], tuple[dict[str, str], str]]


def environment(place: Path) -> dict[str, str]:
    """Return the environment of the ranks."""
    compiler = {"PROGRAMS_COMPILER": "inductor", "TORCHINDUCTOR_CACHE_DIR": str(place / "compiled")} if MORE else {}
    own = {"PYTHONPATH": str(package.REPO), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "", **compiler}
    return {**os.environ, **own}


def end_of(argv: list[str], place: Path) -> str:
    """Run worlds to their end. Return what was wrong with it, an empty text if nothing was and nothing is left."""
    try:
        done = subprocess.run(
            [*ALONE, *argv], env=environment(place), capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired as error:
        return str(error)
    return done.stdout + done.stderr if done.returncode or done.stdout else ""


@pytest.fixture(scope="module")
def ended(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Return a function that tells what came of a world. They all run at the first call."""
    place = tmp_path_factory.mktemp("programs")
    worlds = place / "worlds"
    words = [str(package.PYTHON), "-W", "ignore", "-m", PROGRAM]

    @functools.cache
    def play() -> tuple[dict[str, dict[str, str]], dict[str, str]]:
        given = [f"{world}:{','.join(programs)}" for world, programs in HERE.items()]
        ends = dict.fromkeys(HERE, end_of([*words, "here", str(worlds), *given], place))
        for world, (mpi, ranks, programs) in MPI_WORLDS.items():
            word = f"{world}:{','.join(programs)}"
            ends[world] = end_of(package.command(mpi, ranks, "-m", PROGRAM, "mpi", worlds, word), place)
        compared = subprocess.run(
            [*words, "compare", str(worlds)], env=environment(place), capture_output=True, text=True, check=True
        )
        return json.loads(compared.stdout), ends

    def tell(world: str) -> tuple[dict[str, str], str]:
        found, ends = play()
        return found.get(world, {}), ends[world]

    return tell


@pytest.mark.parametrize(("world", "program"), [(world, name) for world, names in DONE.items() for name in names])
def test_a_program_comes_to_what_it_does_under_gloo(ended: Ended, world: str, program: str) -> None:
    """With the same bits where two ranks are added, and the same under shm and every MPI."""
    found, end = ended(world)
    assert found.get(program, f"it never ran: {end}") == ""


@pytest.mark.parametrize("world", DONE)
def test_a_world_ends_and_leaves_nothing(ended: Ended, world: str) -> None:
    """In time, with a good status, and without a name in /dev/shm."""
    assert ended(world)[1] == ""
