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

from tests.combinations import combined
from tests.driver import END_SECONDS, SCRIPTS, family
from tests.lab import slurm
from tests.lab.cluster import HYDRA, SLURM, Cluster, Job
from tests.lab.lab import Lab

LAUNCHERS = ["openmpi", *HYDRA, "torchrun"]
NODES = ("n1", "n2", "n3")
LEASE = 10  # seconds
# Every ending and every launcher, and not each with each: test_across.py and the fault matrix have them with ranks on
# the head. Guard and supervisor are the head's, the rank and the lost node are n3's.
ENDINGS = [
    *[("rank", "srun"), ("launcher", "mpich"), ("launcher", "sbatch")],
    *[("controller", "openmpi"), ("Ctrl-C", "sbatch"), ("job_timeout", "srun")],
    *[("guard", "openmpi"), ("supervisor", "mpich"), ("cut", "torchrun"), ("power", "intelmpi")],
    *combined(("rank", "intelmpi"), ("rank", "sbatch"), ("launcher", "torchrun"), ("launcher", "srun")),
]
STATES = {"Ctrl-C": "cancelled", "job_timeout": "timed_out", "cut": "lost", "power": "lost"}
STATES.update(controller="lost", supervisor="lost")  # the others are failures
LOST = ("cut", "power")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("small_head")
    # Packages as of the cluster in conftest.py: the image is made once.
    options = {"nics": 2, "head_only": True, "install": True, "image": "bare", "packages": ["openmpi-bin", "slurm-wlm"]}
    lab = Lab(f"h{os.getpid()}", root / "inventory", nodes=3, **options)
    try:
        lab.up()
        lab.network("n1", "ip", "link", "set", "eth1", "down")
        for node in NODES:
            narrow(lab, node)
        yield Cluster(lab, root)
    finally:
        lab.down()


def narrow(lab: Lab, node: str) -> None:
    """Make a node's first network the slower one, also after a restart."""
    lab.network(node, "ip", "link", "set", "eth0", "mtu", "1400")


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


@pytest.fixture(scope="module")
def slurm_nodes(small_head: Cluster) -> None:
    """Slurm, with its controller on the head and no node of jobs there."""
    slurm.bring_up(small_head.lab, NODES, head_only=True)


@pytest.fixture
def launching(small_head: Cluster, request: pytest.FixtureRequest) -> Cluster:
    """The machines, with Slurm if the test's launcher is one of Slurm's."""
    if request.node.callspec.params["launcher"] in SLURM:
        request.getfixturevalue("slurm_nodes")
    return small_head


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


@pytest.mark.parametrize("launcher", ["openmpi", "sbatch", *combined("torchrun", "srun", *HYDRA)])
def test_ranks_run_on_the_workers_alone(launching: Cluster, launcher: str) -> None:
    given: dict[str, object] = {"workload": "message_passing"}
    if launcher == LAUNCHERS[0]:
        given = {"workload": "mnist", "workload_args": ["--epochs", "1", "--target-accuracy", "0"]}
    job = launching.train(launcher=launcher, backend="gloo", **given)
    assert ranks_of(job) == ["n2", "n2", "n3", "n3"]
    assert set(map(tuple, job.result["leftovers"].values())) == {()}


def end(job: Job, ending: str, launcher: str) -> None:
    """Do to a job what ends it, when its ranks, two on each worker, say that they are up."""
    if ending == "job_timeout":  # which ends it without us
        job.process.wait(120)
        return
    programs = job.wait_for_programs("sleeper.py", n2=2, n3=2)
    for rank, node in enumerate(("n2", "n2", "n3", "n3")):
        said = f"/home/fleet/.torchfleet/jobs/{job.job_id}/ranks/{rank}/stdout"
        job.wait_until(lambda node=node, said=said: "up" in job.cluster.lab.read(node, said))
    if ending == "controller":
        for pid in family(job.process.pid):
            os.kill(pid, signal.SIGKILL)
    elif ending == "Ctrl-C":
        job.process.send_signal(signal.SIGINT)
    elif ending == "rank":
        os.kill(programs["n3"][0], signal.SIGKILL)
    elif (ending, launcher) == ("launcher", "torchrun"):  # an agent on every worker, and nothing on the head
        os.kill(job.part("n2", "daemon"), signal.SIGKILL)
    elif ending in LOST:
        job.cluster.lab.disturb({"cut": "cut", "power": "kill"}[ending], "n3")
    else:
        os.kill(job.part("n1", ending), signal.SIGKILL)


def mend(cluster: Cluster, ending: str) -> None:
    """Bring a lost node back."""
    if ending == "power":
        cluster.lab.restart("n3")
        narrow(cluster.lab, "n3")
    cluster.lab.heal("n3")
    cluster.wait_for_sshd("n3")


@pytest.mark.parametrize(("ending", "launcher"), ENDINGS)
def test_nothing_is_left_on_any_node(launching: Cluster, ending: str, launcher: str) -> None:
    given: dict[str, object] = {"lease": LEASE} if ending in LOST else {}
    given |= {"job_timeout": 5} if ending == "job_timeout" else {}
    words = ["--escape", "--ignore-term"]
    job = launching.start(workload=str(SCRIPTS / "sleeper.py"), workload_args=words, launcher=launcher, **given)
    end(job, ending, launcher)
    try:
        job.all_gone(*NODES[: 2 if ending == "power" else 3], seconds=END_SECONDS + 2 * LEASE * (ending in LOST))
        assert job.process.wait(60) != 0
    finally:
        if ending in LOST:
            mend(launching, ending)
    if ending in ("controller", "supervisor"):  # nobody was left to fetch it
        assert f"job {job.job_id} lost" in launching.clean().output
    assert job.result["state"] == STATES.get(ending, "failed"), job.result
    if ending not in ("Ctrl-C", "job_timeout"):
        blamed = "n3" if ending in ("rank", *LOST) else "n2" if launcher == "torchrun" else "n1"
        assert job.result["first_failure"]["host"] == blamed, job.result
    if launcher in SLURM:
        job.wait_until(lambda: job.job_id not in slurm.queue(launching.lab, "n1"))


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
    assert f"{old} of n3" in job.output and "the node no longer has this address" in job.output
    assert not job.run_dir.exists()
    assert re.search(rf"{re.escape(old)} on eth1 is gone; that NIC has .*{re.escape(new)}", verified.output)
    assert "TF-VERIFY-FIREWALL" not in verified.output
