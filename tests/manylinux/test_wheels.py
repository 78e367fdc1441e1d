"""The wheels that `make wheels` has built, on a lab node of Debian 12 that has neither a compiler nor an MPI."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import podman
from tests.driver import REPO
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab

WHEELS = REPO / "wheels"
RELEASE = "2.13.0"  # of PyTorch, which setup.yml installs
PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("shm")
rank, size = dist.get_rank(), dist.get_world_size()
for count in (3, 100_000, 5_000_000):
    tensor = torch.full((count,), rank + 1.0)
    dist.all_reduce(tensor)
    assert (tensor == size * (size + 1) / 2).all()
print(f"rank {rank} of {size}\\n", end="", flush=True)
"""
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


def test_it_is_tagged_for_a_glibc_that_is_older_than_the_nodes(wheel: Path) -> None:
    tags = wheel.stem.rpartition("-")[2].split(".")
    versions = [tuple(map(int, tag.split("_")[1:3])) for tag in tags if tag.startswith("manylinux_")]
    assert versions and max(versions) <= (2, 31)


def test_pip_alone_makes_backend_shm_of_it(node: Cluster, wheel: Path) -> None:
    assert compilers_and_mpis(node) == ""
    container = f"{node.lab.name}-n1"
    podman("exec", container, "mkdir", "/wheels")
    podman("cp", str(wheel), f"{container}:/wheels")
    (node.root / "program.py").write_text(PROGRAM)
    podman("cp", str(node.root / "program.py"), f"{container}:/wheels")
    for line in (
        "python3 -m venv /own",
        f"/own/bin/python -m pip install --quiet --find-links /wheels torchfleet-backends torch=={RELEASE}",
        "/own/bin/torchrun --standalone --nproc-per-node 2 /wheels/program.py",
    ):
        printed = node.lab.root("n1", *shlex.split(line), seconds=900)
    assert sorted(printed.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]


def test_setup_brings_it_and_no_compiler(node: Cluster, wheel: Path) -> None:
    given = {"mpis": [], "backends": ["shm"], "torch_backends_wheel": str(wheel)}
    done = node.play("setup.yml", **given)
    assert done.process.returncode == 0, done.log.read_text()
    words = {"workload": "mnist", "workload_args": "--epochs 1 --target-accuracy 0.3", "np": 2}
    node.train(launcher="torchrun", backend="shm", job_env={"OMP_NUM_THREADS": "1"}, **words)
    assert compilers_and_mpis(node) == ""
