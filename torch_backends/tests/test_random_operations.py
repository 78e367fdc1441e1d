"""Random operations in which ranks disagree, come late or die, by random_worlds.py; stress.py does millions."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from torch_backends.tests import stress
from torch_backends.tests.conftest import Run
from torch_backends.tests.package import PYTHON, REPO
from torch_backends.tests.stress import ENVIRONMENT, PROGRAM, SHM, ended

OPERATIONS = 400
MISHAPS = 0.02  # of the operations
SEED = "1"


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(("nodes", "ranks"), [("", 2), ("", 3), ("apart", 3), ("unequal", 3)])
def test_every_operation_is_right_or_fails_on_every_rank(nodes: str, ranks: int) -> None:
    """Of backend shm, on one node, where ranks are killed too and the others live, and on several."""
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-m", PROGRAM, "shm", str(ranks), SEED, str(OPERATIONS), str(MISHAPS)],
        env={"HOME": str(Path.home()), "PATH": os.environ["PATH"], **ENVIRONMENT, **SHM[nodes]},
        capture_output=True,
        text=True,
        check=False,
        cwd=REPO,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["operations"] > OPERATIONS * 0.9 and told["mismatch"] > OPERATIONS * MISHAPS / 2, told
    assert nodes or {"killed", "in between", "by itself"} & set(told), told


def test_every_operation_is_right_or_fails_under_mpi(run: Run, tmp_path: Path) -> None:
    """A rank that is killed at the end of a job ends it."""
    done = run("openmpi", 3, "-m", PROGRAM, "mpi", tmp_path, SEED, OPERATIONS, MISHAPS, **ENVIRONMENT)
    found, wrong = ended(stress.Run("openmpi", 3, SEED, OPERATIONS), str(tmp_path), done)
    assert not wrong and found["mismatch"], wrong
