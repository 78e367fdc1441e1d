"""Random operations in which ranks disagree, come late or die, by random_worlds.py; make stress-backends: millions."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from torch_backends.tests.conftest import Run
from torch_backends.tests.package import PYTHON, REPO

PROGRAM = "torch_backends.tests.random_worlds"
OPERATIONS = int(os.environ.get("OPERATIONS", "0"))  # of each test; none: few
SEED = os.environ.get("SEED", "1")
MISHAPS = 0.002 if OPERATIONS else 0.04  # of the operations
FEW = 200
MOST_OF_A_JOB = 100_000  # an operation that failed keeps its communicators, of which MPICH has some 2,000
IN_PYTHON = {"PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
MPI_WORLDS = [("openmpi", 3), *([("mpich", 2)] if OPERATIONS else [])]


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_operation_is_right_or_fails_on_every_rank(ranks: int) -> None:
    """By shared memory, where ranks are killed too, and the others live."""
    asked = OPERATIONS or FEW
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-m", PROGRAM, "shm", str(ranks), SEED, str(asked), str(MISHAPS)],
        env={"HOME": str(Path.home()), "PATH": os.environ["PATH"], **IN_PYTHON},
        capture_output=True,
        text=True,
        check=False,
        cwd=REPO,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["operations"] > asked * 0.9 and told["mismatch"] > asked * MISHAPS / 2, told
    assert {"killed", "in between", "by itself"} & set(told), told


@pytest.mark.parametrize(("mpi", "ranks"), MPI_WORLDS)
def test_every_operation_is_right_or_fails_under_mpi(run: Run, tmp_path: Path, mpi: str, ranks: int) -> None:
    """A rank that is killed at the end of a job ends it."""
    for first in range(0, OPERATIONS or FEW, MOST_OF_A_JOB):
        place = tmp_path / str(first)
        place.mkdir()
        words = [place, f"{SEED} {first}", min(MOST_OF_A_JOB, (OPERATIONS or FEW) - first), MISHAPS]
        done = run(mpi, ranks, "-m", PROGRAM, "mpi", *words, **IN_PYTHON)
        files = [place / f"{rank}.json" for rank in range(ranks)]
        told = [json.loads(file.read_text()) if file.exists() else {"wrong": "it has ended"} for file in files]
        assert all("wrong" not in one for one in told), f"seed {words[1]}: {told}\n{done.stdout}{done.stderr}"
        assert done.returncode != 0 and told[0]["mismatch"], done.stdout + done.stderr
