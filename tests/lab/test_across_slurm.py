"""`train.yml -e target=slurm`: Slurm brings the nodes, and the head is the one machine that is logged in to.

n1 is the head, and one of Slurm's nodes as well. The inventory has n1 alone, and the sshd of n2 does not run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.driver import SCRIPTS, family, wait_until
from tests.lab import slurm
from tests.lab.cluster import Cluster, Job

NODES = ("n1", "n2")
SITE = {
    **{"target": "slurm", "slurm_nodes": 2, "slurm_cpus": 1, "ranks_per_node": 2, "lease": 10},
    "python": "/srv/torchfleet/pytorch/bin/python",
    "job_env": {"OMP_NUM_THREADS": "1"},
}
HEAD = {
    "ansible_python_interpreter": "/usr/bin/python3",
    "ansible_ssh_private_key_file": "{{ inventory_dir }}/key",
    "ansible_ssh_common_args": "-o UserKnownHostsFile={{ inventory_dir }}/known_hosts -o GlobalKnownHostsFile=/dev/null"
    " -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes",
}


@pytest.fixture(scope="module")
def site(four_nodes: Cluster, slurm_nodes: None) -> Iterator[Cluster]:
    """The first two nodes as a site of others: no login to n2 is possible while these tests run."""
    four_nodes.mend()
    lab = four_nodes.lab
    slurm.wake(lab, NODES)
    slurm.name_each_other(lab, NODES)
    made = Cluster(lab, four_nodes.root)
    made.inventory = lab.directory / "site.yml"
    row = {name: value for name, value in lab.hosts()["n1"].items() if name in ("ansible_host", "ansible_user")}
    made.inventory.write_text(json.dumps({"all": {"children": {"head": {"hosts": {"n1": {**row, **HEAD}}}}}}))
    lab.root("n2", "systemctl", "stop", "ssh.socket", "ssh", check=False)
    assert lab.ssh("n2", "true", check=False).returncode == 255
    yield made
    assert lab.ssh("n2", "true", check=False).returncode == 255  # nobody has started it
    lab.root("n2", "systemctl", "start", "ssh")
    four_nodes.wait_for_sshd("n2")


@pytest.fixture(scope="module")
def bystander(site: Cluster) -> Iterator[None]:
    """A job of the same user, with a name like ours, on a core of each node: it must live."""
    words = "exec srun --nodes=2 --cpus-per-task=1 --job-name=torchfleet-other-0123456789ab sleep 1000"
    process = subprocess.Popen(site.lab.ssh_argv("n1", words), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: "torchfleet-other" in running(site), 30, lambda: slurm.queue(site.lab, "n1"))
    yield
    assert "torchfleet-other" in running(site) and process.poll() is None
    process.terminate()
    process.wait()
    site.lab.root("n1", "scancel", "--name=torchfleet-other-0123456789ab")


def running(site: Cluster) -> str:
    return "".join(row for row in slurm.queue(site.lab, "n1").splitlines() if "RUNNING" in row)


def start(site: Cluster, **given: Any) -> Job:
    """Start a job whose ranks say that they are up, and wait for that."""
    job = site.start(**{**SITE, "workload": str(SCRIPTS / "sleeper.py"), **given})
    job.wait_for_programs("sleeper.py", n1=2, n2=2)
    return job


def nothing_is_left(site: Cluster, job: Job) -> None:
    """Wait until the queue, the nodes and their directories have nothing of a job."""
    job.all_gone(*NODES)
    job.wait_until(lambda: job.job_id not in slurm.queue(site.lab, "n1"))
    for node in NODES:
        job.wait_until(lambda node=node: "torchfleet-slurm-" not in site.lab.root(node, "ls", "/tmp"))


def test_two_nodes_of_a_site_train_without_any_login_to_them(site: Cluster) -> None:
    job = site.train(**{**SITE, "slurm_cpus": 2}, workload="pi", slurm_args="--time=10 --nodelist=n1,n2")
    assert [(row["host"], row["state"]) for row in job.result["ranks"]] == [
        *[("node0", "succeeded")] * 2,
        *[("node1", "succeeded")] * 2,
    ]
    assert "node0: on n1," in job.output and "node1: on n2," in job.output
    assert job.result["metrics"]["pi"] == pytest.approx(3.14159, abs=1e-4)
    assert (job.run_dir / "launcher.node1.out").exists() and "pi=" in job.stdout(0)
    nothing_is_left(site, job)


@pytest.mark.usefixtures("bystander")
def test_a_rank_that_fails_ends_the_job_and_is_blamed(site: Cluster) -> None:
    job = site.play(**SITE, workload=str(SCRIPTS / "fail.py"), workload_args=["2", "3"])
    assert job.process.returncode != 0 and job.result["state"] == "failed"
    assert job.result["first_failure"]["cause"] == "exit status 3"
    assert (job.result["first_failure"]["rank"], job.result["first_failure"]["host"]) == (2, "node1")
    nothing_is_left(site, job)


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize(("ending", "state"), [("Ctrl-C", "cancelled"), ("controller", ""), ("clean.yml", "lost")])
def test_a_job_that_is_ended_leaves_nothing(site: Cluster, ending: str, state: str) -> None:
    """A controller that is killed leaves its result to nobody: the job ends by its lease."""
    job = start(site)
    if ending == "Ctrl-C":
        job.process.send_signal(signal.SIGINT)
    elif ending == "controller":
        for pid in family(job.process.pid):
            os.kill(pid, signal.SIGKILL)
    else:
        done = site.play("clean.yml", target="slurm", job_id=job.job_id)
        assert f"ended: {job.job_id}" in done.output
    assert job.process.wait(60) != 0
    nothing_is_left(site, job)
    if state:
        assert job.result["state"] == state


@pytest.mark.usefixtures("bystander")
def test_a_job_that_waits_does_not_outlive_its_controller(site: Cluster) -> None:
    """Nothing of it runs yet that could notice: the program above srun takes it out of the queue."""
    job = site.start(**{**SITE, "slurm_cpus": 2}, workload=str(SCRIPTS / "sleeper.py"))
    job.wait_until(lambda: job.job_id in slurm.queue(site.lab, "n1"))
    assert "PENDING" in next(row for row in slurm.queue(site.lab, "n1").splitlines() if job.job_id in row)
    for pid in family(job.process.pid):
        os.kill(pid, signal.SIGKILL)
    nothing_is_left(site, job)


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"slurm_nodes": 3}, "Slurm will not start it: Partition"),
        ({"slurm_cpus": 2, "slurm_start_timeout": 3}, "2 of 2 nodes did not start in 3 s: PENDING, Resources"),
    ],
)
def test_what_slurm_refuses_is_one_line(site: Cluster, given: dict[str, Any], said: str) -> None:
    job = site.play(**{**SITE, **given}, workload="pi")
    assert job.process.returncode != 0 and said in job.output, job.output
    assert "Traceback" not in job.output and job.job_id not in slurm.queue(site.lab, "n1")
