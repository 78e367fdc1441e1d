"""The package as a user has it, built for the MPIs that setup.yml installs, and a way to start ranks with each."""

from __future__ import annotations

import hashlib
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
ROOT = ["--allow-run-as-root"] if os.geteuid() == 0 else []
LAUNCHERS = {
    "openmpi": ["mpirun", *ROOT, "--prtemca", "plm_ssh_agent", "false", "--oversubscribe", "--bind-to", "none"],
    "mpich": ["mpiexec", "-launcher", "fork"],
    "intelmpi": ["mpiexec.hydra", "-launcher", "fork", "-genv", "I_MPI_PIN", "0"],
}
BUILT_FOR = ("openmpi", "mpich")  # the second serves Intel MPI too


def called(*argv: object) -> None:
    """Run a program that must succeed."""
    done = subprocess.run([str(word) for word in argv], cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def install_mpis() -> None:
    """Have all MPIs and PyTorch, as our own roles install them."""
    words = ["-e", json.dumps({"mpis": list(LAUNCHERS)}), "--skip-tags", "ssh_mesh,fabric,hostfile,verify"]
    called(Path(sys.executable).with_name("ansible-playbook"), "setup.yml", *words)


def install_compiler() -> None:
    """Have a C++ compiler."""
    if not shutil.which("g++"):
        assert os.geteuid() == 0, "there is no C++ compiler: apt install g++"
        called("apt-get", "install", "--yes", "--no-install-recommends", "g++")


def build() -> Path:
    """Return a directory for PYTHONPATH. What is in it was built from these sources, this time or before."""
    sources = sorted(path for path in (PACKAGE / "src").rglob("*") if path.suffix in (".cpp", ".h", ".py"))
    text = b"".join(path.read_bytes() for path in [*sources, PACKAGE / "pyproject.toml"]) + bytes(PYTHON)
    place = REPO / ".cache" / f"backends-{hashlib.sha256(text).hexdigest()[:16]}"
    if not place.exists():
        draft = place.with_suffix(".new")
        shutil.rmtree(draft, ignore_errors=True)
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", draft]
        called(PYTHON, "-m", "pip", "install", *options, PACKAGE)
        for mpi in BUILT_FOR:
            package = draft / "torchfleet_backends"
            called(PYTHON, package / "build.py", "--mpi", HOME / mpi, "--into", package)
        draft.rename(place)
    return place


def start(installed: Path, mpi: str, ranks: int, *argv: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program on so many ranks of an MPI, to its end."""
    program, *options = LAUNCHERS[mpi]
    words = [HOME / mpi / "bin" / program, *options, "-n", ranks, PYTHON, "-W", "ignore", *argv]
    return subprocess.run(
        [str(word) for word in words],
        env={**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
