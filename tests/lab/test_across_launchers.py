"""Every launcher, run for real across nodes: one placement, one environment, one way to end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.lab import slurm
from tests.lab.cluster import SCRIPTS, Cluster, Job

HYDRA = ["mpich", "intelmpi"]
SLURM = ["srun", "sbatch"]
ODD = {
    "SPACES": "a b  c",
    "QUOTES": '"it\'s"',
    "SHELL_WORDS": "; $(id) `id` | & > <",
    "LINES": "one\ntwo\n",
    "EMPTY": "",
}

DIGEST = (
    "import hashlib, sys, torch; model = torch.load(sys.argv[1], weights_only=True)['model']; "
    "print(hashlib.sha256(b''.join(part.numpy().tobytes() for part in model.values())).hexdigest())"
)


@pytest.fixture
def launching(cluster: Cluster, request: pytest.FixtureRequest) -> Cluster:
    """The cluster, with Slurm on its first two nodes if the test's launcher is one of Slurm's."""
    if request.node.callspec.params["launcher"] in SLURM:
        request.getfixturevalue("slurm_nodes")
    return cluster


@pytest.fixture(scope="module")
def slurm_nodes(four_nodes: Cluster) -> None:
    slurm.bring_up(four_nodes.lab, ["n1", "n2"])


def sleepers(cluster: Cluster, launcher: str) -> tuple[Job, dict[str, list[int]]]:
    arguments = ["--escape", "--ignore-term"]
    job = cluster.start(workload=str(SCRIPTS / "sleeper.py"), workload_args=arguments, np=4, launcher=launcher)
    return job, job.wait_for_programs("sleeper.py", n1=2, n2=2)


@pytest.mark.parametrize("launcher", [*HYDRA, *SLURM])
def test_ranks_are_where_they_should_be(launching: Cluster, launcher: str) -> None:
    job = launching.train(workload="message_passing", np=4, launcher=launcher, show_ranks="all")
    assert [row["host"] for row in job.result["ranks"]] == ["n1", "n1", "n2", "n2"]
    assert job.stdout(3) == "rank 3 received from rank 0\n"
    assert job.result["leftovers"] == {"n1": [], "n2": []}
    assert job.result["launcher"]["name"] == launcher


@pytest.mark.parametrize("launcher", ["openmpi", *HYDRA, *SLURM])
def test_ranks_take_the_nodes_in_turn(launching: Cluster, launcher: str) -> None:
    job = launching.train(workload="message_passing", np=3, launcher=launcher, map_by="node", nodes="n1,n2")
    assert [row["host"] for row in job.result["ranks"]] == ["n1", "n2", "n1"]


@pytest.mark.parametrize("launcher", ["openmpi", *HYDRA])
def test_ranks_are_bound_if_that_is_asked_for(launching: Cluster, launcher: str) -> None:
    """And the launcher's ports are those that a firewall would let through: the real programs know all these words."""
    wish = {"bind_to": "core", "ports": "24000-24999", "launcher": launcher}
    job = launching.train(workload="message_passing", np=4, nodes="n1,n2", **wish)
    assert [len(row["cpus"]) for row in job.result["placement"]] == [1, 1, 1, 1]
    free = launching.train(workload="message_passing", np=4, nodes="n1,n2", launcher=launcher)
    assert [len(row["cpus"]) for row in free.result["placement"]] == [len(os.sched_getaffinity(0))] * 4


@pytest.mark.parametrize("launcher", ["openmpi", "torchrun", *HYDRA, *SLURM])
def test_the_environment_arrives_byte_exact(launching: Cluster, launcher: str) -> None:
    job = launching.train(workload=str(SCRIPTS / "tell.py"), np=4, launcher=launcher, job_env=ODD)
    for rank in range(4):
        seen = json.loads(job.stdout(rank))["env"]
        assert {name: seen.get(name) for name in ODD} == ODD
        assert (seen["RANK"], seen["WORLD_SIZE"], seen["LOCAL_RANK"]) == (str(rank), "4", str(rank % 2))
        assert seen["GLOO_SOCKET_IFNAME"] == "eth1"


@pytest.mark.parametrize("launcher", HYDRA)
def test_hydra_on_nodes_that_differ(launching: Cluster, launcher: str) -> None:
    """Users, SSH ports, homes, NIC names and slots are each node's own."""
    job = launching.train(workload=str(SCRIPTS / "tell.py"), launcher=launcher)
    assert [row["host"] for row in job.result["ranks"]] == ["n1", "n1", "n2", "n2", "n3", "n4", "n4", "n4"]
    told = [json.loads(job.stdout(rank))["env"] for rank in range(8)]
    assert [told[rank]["GLOO_SOCKET_IFNAME"] for rank in (0, 4)] == ["eth1", "fast0"]
    assert [told[rank]["HOME"] for rank in (0, 4)] == ["/home/fleet", "/home/other"]


def test_torchruns_agents_negotiate(cluster: Cluster) -> None:
    job = cluster.train(workload="message_passing", np=4, launcher="torchrun", rendezvous="c10d")
    assert [row["host"] for row in job.result["ranks"]] == ["n1", "n1", "n2", "n2"]


def test_training_comes_to_the_same_under_every_launcher(cluster: Cluster, slurm_nodes: None) -> None:
    """Bit by bit: what the trained model is made of."""
    digests = {}
    for launcher in ["openmpi", "torchrun", *HYDRA, *SLURM]:
        saved = f"/tmp/{cluster.lab.name}-{launcher}.pt"
        words = ["--epochs", "1", "--target-accuracy", "0", "--checkpoint", saved]
        cluster.train(workload="mnist", np=4, launcher=launcher, workload_args=words)
        python = "/srv/torchfleet/pytorch/bin/python"
        digests[launcher] = cluster.lab.root("n1", python, "-c", DIGEST, saved)
    assert len(set(digests.values())) == 1, digests


@pytest.mark.parametrize("launcher", [*HYDRA, *SLURM])
def test_a_rank_fails(launching: Cluster, bystander: None, launcher: str) -> None:
    job = launching.start(workload=str(SCRIPTS / "fail.py"), workload_args="3 raise", np=4, launcher=launcher)
    assert job.process.wait(60) != 0
    job.all_gone("n1", "n2")
    failure = job.result["first_failure"]
    assert (failure["rank"], failure["host"], failure["cause"]) == (3, "n2", "exit status 1")
    assert "rank 3 on n2: exit status 1" in job.output
    assert "Traceback" in Path(failure["log"]).read_text()


@pytest.mark.parametrize("launcher", [*HYDRA, *SLURM])
@pytest.mark.parametrize("node", ["n1", "n2"])
@pytest.mark.parametrize("what", ["supervisor", "guard", "rank"])
def test_a_part_is_killed(launching: Cluster, bystander: None, what: str, node: str, launcher: str) -> None:
    job, programs = sleepers(launching, launcher)
    os.kill(programs[node][0] if what == "rank" else job.part(node, what), signal.SIGKILL)
    job.all_gone("n1", "n2")
    assert job.process.wait(30) != 0
    if (what, node) == ("supervisor", "n1"):
        assert launching.clean().process.returncode == 0
    assert job.result["state"] == ("lost" if what == "supervisor" else "failed")
    assert job.result["first_failure"]["host"] == node
    if launcher in SLURM:
        job.wait_until(lambda: job.job_id not in slurm.queue(launching.lab, "n1"))


@pytest.mark.parametrize("launcher", [*HYDRA, *SLURM])
def test_ctrl_c(launching: Cluster, bystander: None, launcher: str) -> None:
    job, _programs = sleepers(launching, launcher)
    job.process.send_signal(signal.SIGINT)
    job.all_gone("n1", "n2")
    assert job.process.wait(20) != 0
    job.wait_until((job.run_dir / "result.json").exists)
    assert job.result["state"] == "cancelled"
    if launcher in SLURM:
        job.wait_until(lambda: job.job_id not in slurm.queue(launching.lab, "n1"))


def test_a_job_that_waits_in_the_queue_is_cancelled(cluster: Cluster, slurm_nodes: None) -> None:
    busy = cluster.lab.root("n1", "sbatch", "--parsable", "--nodes=2", "--exclusive", "--wrap", "sleep 300").strip()
    job = cluster.start(workload="message_passing", np=4, launcher="sbatch")
    job.wait_until(lambda: f"{job.job_id} PENDING" in slurm.queue(cluster.lab, "n1"))
    job.process.send_signal(signal.SIGINT)
    assert job.process.wait(20) != 0
    job.wait_until(lambda: job.job_id not in slurm.queue(cluster.lab, "n1"))
    cluster.lab.root("n1", "scancel", busy)
    assert job.result["state"] == "cancelled"


def test_names_of_a_version_that_is_gone_are_noticed(cluster: Cluster, tmp_path: Path) -> None:
    """Kubeflow's OMPI_MCA_orte_default_hostfile, which Open MPI 5 ignores silently: all ranks come up on the head.

    The job ends before the program starts, and says where each rank should have been.
    """
    program = (
        "#!/usr/bin/python3\nimport os, sys\nwords = sys.argv[1:]\nif '--hostfile' in words:\n"
        "    place = words.index('--hostfile')\n    os.environ['OMPI_MCA_orte_default_hostfile'] = words[place + 1]\n"
        "    words[place : place + 2] = ['--host', 'localhost:9']\n"
        "home = os.path.expanduser('~/.torchfleet/openmpi/bin/mpirun')\nos.execv(home, [home, *words])\n"
    )
    for node in ("n1", "n2"):
        slurm.write(cluster.lab, node, "/opt/kubeflow/bin/mpirun", program, "root", "0755")
    job = cluster.play(workload="message_passing", np=4, nodes="n1,n2", torchfleet_mpirun="/opt/kubeflow/bin/mpirun")
    assert job.process.returncode != 0
    assert job.result["first_failure"]["cause"].startswith("placement: runs as")
    assert "rank 3 n2/1 -> n1/3" in job.output
    assert list(job.run_dir.glob("ranks/*/stdout")) == []  # no program began


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"launcher": "mpich", "launcher_args": "--no-such-option 1"}, "mpich 5.0.2 does not take them"),
        ({"launcher": "openmpi", "launcher_args": "--no-such-option 1"}, "openmpi 5.0.11 does not take them"),
        ({"job_env": {"FI_TCP_IFACE": "lo"}, "launcher": "mpich"}, "lo reaches no other node"),
        ({"job_env": {"GLOO_SOCKET_IFNAME": "eth9"}}, "there is no eth9"),
        ({"backend": "mpi"}, "has no such backend"),
        ({"backend": "ccl"}, "oneccl_bindings_for_pytorch"),
        ({"backend": "nccl"}, "no GPU on n1, n2"),
        ({"launcher": "torchrun", "np": 3}, "as many ranks on every node"),
        ({"launcher": "mpich", "torchfleet_mpiexec": "/usr/bin/mpirun"}, "tells no version"),
        ({"np": 99}, "use -e np="),
    ],
)
def test_refusals(cluster: Cluster, given: dict[str, object], told: str) -> None:
    job = cluster.play(**{"workload": "message_passing", "np": 4, "nodes": "n1,n2", **given})
    assert job.process.returncode != 0
    assert told in job.output
    assert not job.run_dir.exists()
    assert job.alive("n1") == [] == job.alive("n2")


def test_an_override_is_warned_of(cluster: Cluster) -> None:
    job = cluster.train(workload="message_passing", np=4, job_env={"GLOO_SOCKET_IFNAME": "eth0"})
    assert "GLOO_SOCKET_IFNAME=eth0 contradicts role fabric, which proved eth1 on n1" in job.output
