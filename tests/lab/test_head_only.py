"""A small head that launches and runs no ranks, and workers that have a faster network among themselves.

One lab and one setup for all tests here. The head is on the first network alone, the ranks use the second one.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator

import pytest

from tests.driver import SCRIPTS, family
from tests.lab.cluster import HYDRA, Cluster, Job
from tests.lab.lab import Lab

LAUNCHERS = ["openmpi", *HYDRA, "torchrun"]
NODES = ("n1", "n2", "n3")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("small_head")
    lab = Lab(f"h{os.getpid()}", root / "inventory", nodes=3, nics=2, head_only=True, install=True, image="bare")
    try:
        lab.up()
        lab.network("n1", "ip", "link", "set", "eth1", "down")
        for node in NODES:
            lab.network(node, "ip", "link", "set", "eth0", "mtu", "1400")
        yield Cluster(lab, root)
    finally:
        lab.down()


@pytest.fixture(scope="module")
def said(machines: Cluster) -> str:
    """Set the machines up, and return what was said."""
    done = machines.play("setup.yml", mpis=["openmpi", *HYDRA], verify_launchers=LAUNCHERS)
    assert done.process.returncode == 0, done.log.read_text()
    return done.output


@pytest.fixture(scope="module")
def small_head(machines: Cluster, said: str) -> Cluster:
    """The machines, set up."""
    assert said
    return machines


def ranks_of(job: Job) -> list[str]:
    return [row["host"] for row in job.result["ranks"]]


def test_setup_proves_a_head_that_only_launches(small_head: Cluster, said: str) -> None:
    assert "verify of 3 nodes: " in said and not re.search("TF-(RDMA|RAIL|DRIFT|VERIFY-(FABRIC|ROUTE))", said), said
    for launcher in LAUNCHERS:
        assert f"{launcher} gloo all-reduce correct" in said
    first, second = (small_head.lab.address("n1", nic).rpartition(".")[0] + ".0/24" for nic in (0, 1))
    fabrics = {node: json.loads(small_head.lab.ssh(node, "cat", ".torchfleet/fabric.json").stdout) for node in NODES}
    assert {node: fabric["network"] for node, fabric in fabrics.items()} == {"n1": first, "n2": second, "n3": second}
    assert fabrics["n2"]["daemons"]["network"] == first
    assert small_head.lab.ssh("n1", "ls .torchfleet/pytorch", check=False).returncode != 0  # it needs none


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_run_on_the_workers_alone(small_head: Cluster, launcher: str) -> None:
    workload = "mnist" if launcher == LAUNCHERS[0] else "message_passing"
    job = small_head.train(workload=workload, launcher=launcher, backend="gloo")
    assert ranks_of(job) == ["n2", "n2", "n3", "n3"]
    assert set(map(tuple, job.result["leftovers"].values())) == {()}


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("victim", ["rank", "launcher", "controller"])
def test_nothing_is_left_on_any_node(small_head: Cluster, launcher: str, victim: str) -> None:
    words = ["--escape", "--ignore-term"]
    job = small_head.start(workload=str(SCRIPTS / "sleeper.py"), workload_args=words, launcher=launcher)
    programs = job.wait_for_programs("sleeper.py", n2=2, n3=2)
    ranks = f".torchfleet/jobs/{job.job_id}/ranks"
    for node, first in (("n2", 0), ("n3", 2)):
        said = [f"{ranks}/{rank}/stdout" for rank in (first, first + 1)]
        job.wait_until(lambda node=node, said=said: small_head.lab.ssh(node, "cat", *said).stdout.count("up") == 2)
    if victim == "controller":
        for pid in family(job.process.pid):
            os.kill(pid, signal.SIGKILL)
    elif victim == "rank":
        os.kill(programs["n3"][0], signal.SIGKILL)
    else:  # torchrun has an agent on every worker, and nothing on the head
        os.kill(job.part("n2", "daemon") if launcher == "torchrun" else job.part("n1", "launcher"), signal.SIGKILL)
    job.all_gone(*NODES)
    if victim == "controller":
        cleaned = small_head.clean()
        assert f"job {job.job_id} lost" in cleaned.output
    else:
        assert job.process.wait(30) != 0
        assert job.result["state"] == "failed"
        assert (
            job.result["first_failure"]["host"]
            == {"rank": "n3", "launcher": "n2" if launcher == "torchrun" else "n1"}[victim]
        )


def test_an_address_that_changed_is_noticed_before_a_job_hangs(small_head: Cluster) -> None:
    lab, old = small_head.lab, small_head.lab.address("n3", 1)
    new = old.rpartition(".")[0] + ".77"
    for words in (("del", f"{old}/24"), ("add", f"{new}/24")):  # the kernel removes others of a network with the first
        lab.network("n3", "ip", "addr", *words, "dev", "eth1")
    try:
        job = small_head.play(workload="message_passing")
        verified = small_head.play("verify.yml", verify_launchers=["openmpi"])
    finally:
        for words in (("del", f"{new}/24"), ("add", f"{old}/24")):
            lab.network("n3", "ip", "addr", *words, "dev", "eth1")
    assert job.process.returncode != 0
    assert f"{old} of n3" in job.output and "the node has it no more" in job.output
    assert not job.run_dir.exists()
    assert re.search(rf"{re.escape(old)} on eth1 is gone; that NIC has .*{re.escape(new)}", verified.output)
    assert "TF-VERIFY-FIREWALL" not in verified.output
