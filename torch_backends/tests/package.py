"""The package as a user has it, built for the MPIs that setup.yml installs, and a way to start ranks with each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
REPO = PACKAGE.parent
HOME = Path.home() / ".torchfleet"
PYTHON = HOME / "pytorch" / "bin" / "python"
BUILT_FOR = ["openmpi", "mpich"]  # the second serves Intel MPI too
ROOT = ["--allow-run-as-root"] if os.geteuid() == 0 else []
LAUNCHERS = {
    "openmpi": ["mpirun", *ROOT, "--prtemca", "plm_ssh_agent", "false", "--oversubscribe", "--bind-to", "none"],
    "mpich": ["mpiexec", "-launcher", "fork"],
    "intelmpi": ["mpiexec.hydra", "-launcher", "fork", "-genv", "I_MPI_PIN", "0"],
}


def called(*argv: object) -> None:
    """Run a program that must succeed."""
    done = subprocess.run([str(word) for word in argv], cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def install() -> None:
    """Have all MPIs, PyTorch and the package, as our own roles install them."""
    if not shutil.which("g++"):
        assert os.geteuid() == 0, "there is no C++ compiler: apt install g++"
        called("apt-get", "install", "--yes", "--no-install-recommends", "g++")
    given = {"mpis": list(LAUNCHERS), "backends": ["mpi"], "torch_backends_mpis": BUILT_FOR}
    words = ["-e", json.dumps(given), "--skip-tags", "ssh_mesh,fabric,hostfile,verify"]
    called(Path(sys.executable).with_name("ansible-playbook"), "setup.yml", *words)


def start(mpi: str, ranks: int, *argv: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program on so many ranks of an MPI, to its end."""
    program, *options = LAUNCHERS[mpi]
    words = [HOME / mpi / "bin" / program, *options, "-n", ranks, PYTHON, "-W", "ignore", *argv]
    return subprocess.run(
        [str(word) for word in words],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
