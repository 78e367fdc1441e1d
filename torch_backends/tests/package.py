"""The package as a user has it, built for the MPIs that setup.yml installs, and a way to start ranks.

TORCHFLEET_TEST_PYTHON: the interpreter of another environment that has the package, such as one with another release of
PyTorch. What is there is tested then: nothing is installed, the MPIs neither.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
REPO = PACKAGE.parent
HOME = Path.home() / ".torchfleet"
OTHER = os.environ.get("TORCHFLEET_TEST_PYTHON", "")
PYTHON = Path(OTHER) if OTHER else HOME / "pytorch" / "bin" / "python"
BUILT_FOR = ["openmpi", "mpich"]  # the second serves Intel MPI too
ROOT = ["--allow-run-as-root"] if os.geteuid() == 0 else []
MPIS = ["openmpi", "mpich", "intelmpi"]
# Program and options; how many ranks comes next.
LAUNCHERS = {
    "openmpi": [
        "openmpi/bin/mpirun",
        *ROOT,
        *("--prtemca", "plm_ssh_agent", "false"),
        *("--oversubscribe", "--bind-to", "none", "-n"),
    ],
    "openmpi-4.1": [
        "openmpi-4.1/openmpi/bin/mpirun",
        *ROOT,
        *("--mca", "plm_rsh_agent", "false"),
        *("--oversubscribe", "--bind-to", "none", "-n"),
    ],
    "mpich": ["mpich/bin/mpiexec", "-launcher", "fork", "-n"],
    "intelmpi": ["intelmpi/bin/mpiexec.hydra", "-launcher", "fork", "-genv", "I_MPI_PIN", "0", "-n"],
    "torchrun": [str(PYTHON.with_name("torchrun")), "--standalone", "--no-python", "--nproc-per-node"],
}


def called(*argv: object) -> str:
    """Run a program that must succeed, and return what it printed."""
    done = subprocess.run([str(word) for word in argv], cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install_compiler() -> None:
    """Have g++."""
    if not shutil.which("g++"):
        assert os.geteuid() == 0, "there is no C++ compiler: apt install g++"
        called("apt-get", "install", "--yes", "--no-install-recommends", "g++")


def install() -> None:
    """Have all MPIs, PyTorch and the package, as our own roles install them."""
    install_compiler()
    if OTHER:
        return
    setup(["mpi", "pytorch", "torch_backends"], backends=["mpi", "shm", "ccl"])
    # In a home of its own, for its directory would be the other one's. Our lock has one version of each MPI.
    older = {"openmpi_version": "4.1.8", "torchfleet_locked": False}
    setup(["mpi"], mpis=["openmpi"], torchfleet_home=str(HOME / "openmpi-4.1"), **older)


@functools.cache
def torch_version() -> str:
    """Return the version of the PyTorch that is tested, with the suffix of its build, such as 2.13.0+cpu."""
    return called(PYTHON, "-I", "-c", "import torch; print(torch.__version__)").strip()


def torch_minor() -> str:
    """Return its minor release, such as 2.13."""
    return ".".join(torch_version().split(".")[:2])


def setup(tags: list[str], **given: object) -> None:
    """Run these parts of setup.yml on this machine."""
    words = {"mpis": MPIS, "backends": ["mpi"], "torch_backends_mpis": BUILT_FOR, **given}
    argv = ["setup.yml", "-e", json.dumps(words), "--tags", ",".join(tags)]
    called(Path(sys.executable).with_name("ansible-playbook"), *argv)


def command(launcher: str, ranks: int, *argv: object) -> list[str]:
    """Return how a Python program is started on so many ranks of a launcher."""
    program, *options = LAUNCHERS[launcher]
    return [str(word) for word in (HOME / program, *options, ranks, PYTHON, "-W", "ignore", *argv)]


def start(launcher: str, ranks: int, *argv: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program on so many ranks of a launcher, to its end."""
    return subprocess.run(
        command(launcher, ranks, *argv),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "", **environment},  # lines in one piece
        capture_output=True,
        text=True,
        check=False,
        timeout=300 + int(os.environ.get("OPERATIONS", "0")) / 1000,
    )
