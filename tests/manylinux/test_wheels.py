"""The wheels that `make wheels` has built, on a lab node of Debian 12 that has neither a compiler nor an MPI."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import podman
from tests.driver import REPO
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab
from tests.manylinux.found import PROGRAM, WHEELS

RELEASE = "2.13.0"  # of PyTorch, which setup.yml installs
README = (REPO / "torch_backends/README.md").read_text()
TOOLS = ("g++", "cc", "c++", "clang++", "mpirun", "mpiexec")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("wheels")
    lab = Lab(f"w{os.getpid()}", root / "inventory", nodes=1, install=True, image="tools")
    try:
        lab.up()
        yield Cluster(lab, root)
    finally:
        lab.down()


@pytest.fixture(scope="module")
def wheel(node: Cluster) -> Path:
    """The wheel for the node's Python."""
    version = node.lab.ssh(
        "n1", "python3", "-c", "'import sys; print(*sys.version_info[:2], sep=str())'"
    ).stdout.strip()
    (found,) = WHEELS.glob(f"torchfleet_backends-*+torch{RELEASE}-cp{version}-*_x86_64.whl")
    return found


def compilers_and_mpis(node: Cluster) -> str:
    """Return the programs and libraries that a machine with a compiler or an MPI has."""
    programs = " ".join(f"/usr/bin/{name}" for name in TOOLS)
    return node.lab.root(
        "n1",
        "sh",
        "-c",
        f"ls -d {programs} ~fleet/.torchfleet/*mpi* ~fleet/.torchfleet/mpich; find / -xdev -name 'libmpi*.so*'",
        check=False,
    )


def as_documented() -> str:
    """Return the commands of the README for a user who has nothing."""
    (block,) = [text for text in README.split("```") if "$ python3 -m venv own" in text]
    return "\n".join(line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ "))


def test_the_commands_of_the_readme_are_enough(node: Cluster, wheel: Path) -> None:
    """A virtual environment, one pip install, one torchrun; train.py says shm and imports nothing of ours."""
    assert compilers_and_mpis(node) == ""
    container = f"{node.lab.name}-n1"
    podman("exec", container, "mkdir", "-p", "/new/wheels")
    podman("cp", str(wheel), f"{container}:/new/wheels")
    podman("cp", str(PROGRAM), f"{container}:/new/train.py")
    printed = node.lab.root("n1", "sh", "-ec", f"cd /new\n{as_documented()}", seconds=900)
    assert {"rank 0 of 2", "rank 1 of 2"} <= set(printed.splitlines())
    assert compilers_and_mpis(node) == ""


def test_setup_brings_it_and_no_compiler(node: Cluster, wheel: Path) -> None:
    given = {"mpis": [], "backends": ["shm"], "torch_backends_wheel": str(wheel)}
    done = node.play("setup.yml", **given)
    assert done.process.returncode == 0, done.log.read_text()
    words = {"workload": "mnist", "workload_args": "--epochs 1 --target-accuracy 0.3", "np": 2}
    node.train(launcher="torchrun", backend="shm", job_env={"OMP_NUM_THREADS": "1"}, **words)
    assert compilers_and_mpis(node) == ""
