"""Fixtures of the tests that start real jobs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver import SCRIPTS
from tests.integration.fleet import INSTALLED, Fleet
from tests.unit.laid_runtime import lay_runtime, share_runtime


@pytest.fixture(scope="session")
def runtime_lib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our code as a node has it after a first job, compiled: how it comes there is no subject of these tests."""
    lib = tmp_path_factory.mktemp("lib")
    lay_runtime(lib)
    return lib


@pytest.fixture
def fleet(tmp_path: Path, runtime_lib: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    share_runtime(runtime_lib, made.home)
    yield made
    for job in (made.home / "jobs").glob("*") if (made.home / "jobs").exists() else ():
        for pid in made.alive(job.name):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a rank (same program, same script) but belongs to no job."""
    process = subprocess.Popen(
        [str(INSTALLED / "pytorch" / "bin" / "python"), str(SCRIPTS / "sleeper.py")], stdout=subprocess.DEVNULL
    )
    yield process
    assert process.poll() is None, "a process that is none of ours was ended"
    process.kill()
    process.wait()


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    """Fail, not skip, where setup.yml has not run: `make test` runs it."""
    missing = [name for name in ("pytorch/bin/python", "openmpi/bin/mpirun") if not (INSTALLED / name).exists()]
    assert not missing, f"{missing} not in {INSTALLED}: run ansible-playbook setup.yml"
    assert shutil.which("ansible-playbook"), f"no ansible-playbook beside {sys.executable}"
