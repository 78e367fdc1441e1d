"""Backends mpi and ccl between nodes, with the stock PyTorch wheel: brought as a wheel, for no node has a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.driver import REPO
from tests.lab.cluster import HYDRA, SLURM, Cluster
from torch_backends.tests import package

CHECKS = REPO / "torch_backends" / "tests" / "ranks.py"


@pytest.fixture(scope="session")
def with_backends(four_nodes: Cluster) -> None:
    """Have the wheel that this machine built on all nodes."""
    package.install()
    (wheel,) = Path(package.HOME, "backends", "wheels").glob("*.whl")
    given = {"mpis": ["openmpi", *HYDRA], "backends": ["mpi", "ccl"], "torch_backends_wheel": str(wheel)}
    for changed in (True, False):
        done = four_nodes.play("setup.yml", "--tags", "torch_backends", **given)
        assert done.process.returncode == 0, done.log.read_text()
        assert ("changed=0" not in done.output) == changed, done.output


@pytest.mark.usefixtures("with_backends")
@pytest.mark.parametrize("mpi", ["openmpi", *HYDRA])
def test_every_check_of_the_backend_holds_on_two_nodes(cluster: Cluster, mpi: str) -> None:
    """Two ranks on each: what goes through memory inside a node, and through the MPI between nodes."""
    options = {"workload": str(CHECKS), "workload_args": ["mpi", "/tmp"], "launcher": mpi, "nodes": "n1,n2"}
    job = cluster.train(np=4, backend="mpi", **options)
    assert [row["host"] for row in job.result["ranks"]] == ["n1", "n1", "n2", "n2"]


@pytest.mark.usefixtures("with_backends")
@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_it_trains_over_nodes_that_differ(cluster: Cluster, mpi: str) -> None:
    cluster.train(workload="message_passing", ranks_per_node=1, launcher=mpi, backend="mpi")


@pytest.mark.usefixtures("with_backends")
def test_every_check_of_ccl_holds_on_two_nodes(cluster: Cluster) -> None:
    """One rank on each: those of oneCCL never rest while they wait, and here all nodes share two cores."""
    options = {"workload": str(CHECKS), "workload_args": ["ccl", "/tmp"], "launcher": "torchrun", "nodes": "n1,n2"}
    cluster.train(np=2, ranks_per_node=1, backend="ccl", **options)


@pytest.mark.usefixtures("with_backends")
@pytest.mark.parametrize("launcher", ["openmpi", *HYDRA, *SLURM])
def test_ccl_goes_beside_whatever_starts_it(launching: Cluster, launcher: str) -> None:
    options = {"nodes": "n1,n2", "ranks_per_node": 1, "launcher": launcher}
    launching.train(workload="message_passing", backend="ccl", **options)
