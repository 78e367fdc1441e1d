"""Two real nodes for all tests here, as good as new before each."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.lab import slurm
from tests.lab.cluster import SLURM, Cluster, four_bare_nodes
from tests.lab.lab import Lab


@pytest.fixture(scope="session", autouse=True)
def labs_are_removed() -> None:
    """Have fixtures end also when pytest is told to end."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab of two nodes with two NICs. It is removed at the end, also when it came up in part only."""
    directory = tmp_path_factory.mktemp("lab") / "inventory"
    options = {"nodes": 2, "nics": 2, "install": True, "image": "bare"}
    options["packages"] = ["ethtool", "nftables"]  # the tests break networks with them
    made = Lab(f"t{os.getpid()}", directory, **options)
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def lab(two_nodes: Lab) -> Iterator[Lab]:
    """The same lab, mended after the test."""
    yield two_nodes
    two_nodes.mend()


@pytest.fixture(scope="session")
def four_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of four nodes, made by setup.yml. The last two differ in all that nodes may differ in."""
    made = four_bare_nodes(f"c{os.getpid()}", tmp_path_factory.mktemp("cluster"))
    try:
        made.set_up()
        yield made
    finally:
        made.lab.down()


@pytest.fixture
def cluster(four_nodes: Cluster) -> Iterator[Cluster]:
    """The same cluster, mended after the test."""
    yield four_nodes
    four_nodes.mend()


@pytest.fixture
def bystander(cluster: Cluster) -> Iterator[None]:
    """A process on n2 that looks like a rank (same program) but belongs to no job: it must live."""
    yield from bystander_on(cluster, "n2")


@pytest.fixture
def bystander_on_n3(cluster: Cluster) -> Iterator[None]:
    """The same on n3, for a test in which n2 itself does not live."""
    yield from bystander_on(cluster, "n3")


def bystander_on(cluster: Cluster, node: str) -> Iterator[None]:
    code = "import sys, time; time.sleep(600)"
    argv = cluster.lab.ssh_argv(node, f"exec /srv/torchfleet/pytorch/bin/python -c '{code}' sleeper.py")
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    yield
    assert process.poll() is None
    process.terminate()
    process.wait()


@pytest.fixture
def launching(cluster: Cluster, request: pytest.FixtureRequest) -> Cluster:
    """The cluster, with Slurm on its first two nodes if the test's launcher is one of Slurm's."""
    if request.node.callspec.params["launcher"] in SLURM:
        request.getfixturevalue("slurm_nodes")
        slurm.wake(cluster.lab, ["n1", "n2"])
    return cluster


@pytest.fixture(scope="session")
def slurm_nodes(four_nodes: Cluster) -> None:
    slurm.bring_up(four_nodes.lab, ["n1", "n2"])
