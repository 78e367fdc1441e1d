"""What launchers are asked for across nodes: mapping, binding, environment, options; and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.combinations import combined
from tests.driver import SCRIPTS
from tests.lab import slurm
from tests.lab.cluster import LAUNCHERS, PAIR, Cluster

TELL = str(SCRIPTS / "tell.py")
ODD = {
    "SPACES": "a b  c",
    "QUOTES": '"it\'s"',
    "SHELL_WORDS": "; $(id) `id` | & > <",
    "LINES": "one\ntwo\n",
    "EMPTY": "",
}

DIGEST = """
import hashlib, sys, torch
for path in sys.argv[1:]:
    model = torch.load(path, weights_only=True)["model"]
    print(hashlib.sha256(b"".join(part.numpy().tobytes() for part in model.values())).hexdigest())
"""


@pytest.mark.parametrize("launcher", ["openmpi", "mpich", "srun", *combined("intelmpi", "sbatch")])
def test_ranks_take_the_nodes_in_turn(launching: Cluster, launcher: str) -> None:
    job = launching.train(workload=TELL, np=3, launcher=launcher, map_by="node", nodes="n1,n2")
    assert [row["host"] for row in job.result["ranks"]] == ["n1", "n2", "n1"]


@pytest.mark.parametrize("launcher", ["openmpi", "intelmpi", *combined("mpich")])
def test_ranks_are_bound_if_that_is_asked_for(launching: Cluster, launcher: str) -> None:
    """And the launcher's ports are those that a firewall would let through: the real programs know all these words."""
    options = {"bind_to": "core", "ports": "24000-24999", "launcher": launcher}
    job = launching.train(workload="message_passing", np=4, nodes="n1,n2", **options)
    assert [len(row["cpus"]) for row in job.result["placement"]] == [1, 1, 1, 1]
    free = launching.train(workload=TELL, np=4, nodes="n1,n2", launcher=launcher)
    assert [len(row["cpus"]) for row in free.result["placement"]] == [len(os.sched_getaffinity(0))] * 4


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_environment_arrives_byte_exact(launching: Cluster, launcher: str) -> None:
    job = launching.train(workload=TELL, np=4, launcher=launcher, job_env=ODD)
    for rank in range(4):
        seen = json.loads(job.stdout(rank))["env"]
        assert {name: seen.get(name) for name in ODD} == ODD
        assert (seen["RANK"], seen["WORLD_SIZE"], seen["LOCAL_RANK"]) == (str(rank), "4", str(rank % 2))
        assert seen["GLOO_SOCKET_IFNAME"] == "eth1"


@pytest.mark.parametrize("launcher", ["intelmpi", *combined("mpich")])
def test_hydra_on_nodes_that_differ(launching: Cluster, launcher: str) -> None:
    """Users, SSH ports, homes, NIC names and slots are each node's own."""
    job = launching.train(workload=TELL, launcher=launcher)
    assert [row["host"] for row in job.result["ranks"]] == ["n1", "n1", "n2", "n2", "n3", "n4", "n4", "n4"]
    told = [json.loads(job.stdout(rank))["env"] for rank in range(8)]
    assert [told[rank]["GLOO_SOCKET_IFNAME"] for rank in (0, 4)] == ["eth1", "fast0"]
    assert [told[rank]["HOME"] for rank in (0, 4)] == ["/home/fleet", "/home/other"]


@pytest.mark.parametrize("launcher", ["openmpi", "mpich", *combined("torchrun", "intelmpi")])
def test_many_ranks_on_nodes_that_differ(cluster: Cluster, launcher: str) -> None:
    job = cluster.train(workload=TELL, launcher=launcher, slots=16)
    assert [row["host"] for row in job.result["ranks"]] == [f"n{1 + rank // 16}" for rank in range(64)]
    told = [json.loads(job.stdout(rank))["env"] for rank in range(64)]
    assert [(env["RANK"], env["LOCAL_RANK"]) for env in told] == [(str(rank), str(rank % 16)) for rank in range(64)]
    assert set(map(tuple, job.result["leftovers"].values())) == {()}
    assert "all 64 ranks succeeded" in job.output


@pytest.mark.parametrize("launcher", ["openmpi", "mpich", *combined("intelmpi")])
def test_nodes_of_different_vendors_are_one_world(cluster: Cluster, launcher: str) -> None:
    """An app context for each run of nodes of one kind; n2 looks as if it had a GPU."""
    cluster.lab.root("n2", "touch", "/dev/nvidia0")
    try:
        job = cluster.train(workload=TELL, launcher=launcher)
    finally:
        cluster.lab.root("n2", "rm", "/dev/nvidia0")
    assert [row["host"] for row in job.result["ranks"]] == ["n1", "n1", "n2", "n2", "n3", "n4", "n4", "n4"]
    command = " ".join(job.result["command"])
    assert command.count(" : ") == 2, command
    told = [json.loads(job.stdout(rank))["env"] for rank in range(8)]
    assert [(env["RANK"], env["WORLD_SIZE"]) for env in told] == [(str(rank), "8") for rank in range(8)]


def test_torchruns_agents_negotiate(cluster: Cluster) -> None:
    job = cluster.train(workload="message_passing", np=4, launcher="torchrun", rendezvous="c10d")
    assert [row["host"] for row in job.result["ranks"]] == ["n1", "n1", "n2", "n2"]


def test_torchruns_agents_start_the_ranks_again(cluster: Cluster) -> None:
    """In the running job: agents and nodes stay, all ranks are new, go on from the checkpoint, and meet again."""
    script, ways = str(SCRIPTS / "rounds.py"), ["1:raise", "1:kill", "0:wrapper", "1:save"]
    given = {"launcher": "torchrun", "restart_by": "torchrun", "max_restarts": 5, **PAIR}
    job = cluster.train(workload=script, workload_args=ways, **given)
    rows = json.loads((job.run_dir / "attempts.json").read_text())["attempts"]
    told = [("failed", "1 ValueError"), ("failed", "137 9"), ("failed", "1"), ("saved", ""), ("succeeded", "")]
    assert [(row["state"], row["failure"]) for row in rows] == told
    rounds = [*(job.run_dir / "attempts" / str(number) for number in range(4)), job.run_dir]
    assert [json.loads((place / "result.json").read_text())["state"] for place in rounds] == [row[0] for row in told]
    for rank in range(2):
        written = [(place / "ranks" / str(rank) / "stdout").read_bytes() for place in rounds]
        first = [text.splitlines()[0].split() for text in written]
        assert len({words[1] for words in first}) == 1, "its agent is another one"
        assert len({words[3] for words in first}) == 5
        for number, text in enumerate(written):
            after, at = (told[number - 1][0], number + 1) if number else ("None", 0)
            assert b" ".join(first[number][4:]).decode() == f"round {number} {after} at {at}"
            steps = range(at + 1, (number + 2 if number < 4 else 6) + 1)
            tail = b"\xff\0 no end of line" if number < 4 else b"done 6\n"
            lines = b"".join(b"torchfleet: step=%d steps=6\n" % step for step in steps)
            assert text.partition(b"\n")[2] == lines + tail
    failures = [json.loads((place / "result.json").read_text())["first_failure"] for place in rounds[:3]]
    assert [(row["rank"], row["host"]) for row in failures] == [(1, "n2"), (1, "n2"), (0, "n1")]
    job.all_gone("n1", "n2")


def test_training_comes_to_the_same_under_every_launcher(cluster: Cluster, slurm_nodes: None) -> None:
    """Bit by bit: what the trained model is made of."""
    saved = {launcher: f"/tmp/{cluster.lab.name}-{launcher}.pt" for launcher in LAUNCHERS}
    for launcher, path in saved.items():
        words = ["--epochs", "1", "--target-accuracy", "0", "--checkpoint", path]
        job = cluster.train(workload="mnist", launcher=launcher, workload_args=words, **PAIR)
        assert [row["host"] for row in job.result["ranks"]] == ["n1", "n2"]
        assert job.result["leftovers"] == {"n1": [], "n2": []}
    digests = cluster.lab.root("n1", "/srv/torchfleet/pytorch/bin/python", "-c", DIGEST, *saved.values()).split()
    assert len(digests) == len(LAUNCHERS) and len(set(digests)) == 1, dict(zip(saved, digests, strict=True))


def test_a_job_that_waits_in_the_queue_is_cancelled(cluster: Cluster, slurm_nodes: None) -> None:
    """Another job, which the user gave the same name, stays."""
    busy = cluster.lab.root("n1", "sbatch", "--parsable", "--nodes=2", "--exclusive", "--wrap", "sleep 300").strip()
    job = cluster.start(workload=TELL, np=4, launcher="sbatch")
    other = cluster.lab.ssh("n1", "sbatch", "--parsable", f"--job-name={job.job_id}", "--wrap=true").stdout.strip()

    def waits() -> bool:
        return f"torchfleet-{job.job_id}-" in slurm.queue(cluster.lab, "n1")

    job.wait_until(waits)
    job.process.send_signal(signal.SIGINT)
    assert job.process.wait(20) != 0
    job.wait_until(lambda: not waits())
    assert f"{other} {job.job_id} PENDING" in slurm.queue(cluster.lab, "n1")
    cluster.lab.root("n1", "scancel", busy, other)
    assert job.result["state"] == "cancelled"


@pytest.mark.parametrize("launcher", ["sbatch"])
def test_somebody_cancels_a_job_in_slurm(launching: Cluster, launcher: str) -> None:
    """No rank is blamed, though all die of Slurm's SIGTERM at once."""
    job = launching.start(workload=str(SCRIPTS / "sleeper.py"), np=4, nodes="n1,n2", launcher=launcher)
    job.wait_for_programs("sleeper.py", n1=2, n2=2)
    lab = launching.lab
    lab.root("n1", "scancel", *slurm.numbers(lab, "n1", f"torchfleet-{job.job_id}-"))
    job.all_gone("n1", "n2")
    assert job.process.wait(60) != 0
    assert (job.result["state"], job.result["first_failure"]) == ("cancelled", None)
    assert "somebody cancelled it in Slurm (scancel)" in job.output
    job.wait_until(lambda: job.job_id not in slurm.queue(lab, "n1"))


@pytest.mark.parametrize("launcher", ["sbatch", *combined("srun")])
def test_job_timeout_does_not_run_in_the_queue(launching: Cluster, launcher: str) -> None:
    """Reproduced before: a job that waited longer than its job_timeout was timed_out without ever having run."""
    lab, limit = launching.lab, 15.0
    busy = lab.root("n1", "sbatch", "--parsable", "--nodes=2", "--exclusive", "--wrap", "sleep 300").strip()
    job = launching.start(workload=TELL, np=4, launcher=launcher, job_timeout=limit)
    job.wait_until(lambda: f"torchfleet-{job.job_id}-" in slurm.queue(lab, "n1"))
    with pytest.raises(subprocess.TimeoutExpired):  # it waits on, beyond that time
        job.process.wait(limit + 5)
    lab.root("n1", "scancel", busy)
    assert job.process.wait(120) == 0, job.output
    assert job.result["state"] == "succeeded" and job.result["seconds"] > limit


@pytest.mark.parametrize("launcher", ["srun", *combined("sbatch")])
def test_job_timeout_runs_when_the_ranks_are_there(launching: Cluster, launcher: str) -> None:
    job = launching.play(workload=str(SCRIPTS / "sleeper.py"), np=4, launcher=launcher, job_timeout=5)
    assert job.result["state"] == "timed_out", job.output


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
    job = cluster.play(workload=TELL, np=4, nodes="n1,n2", torchfleet_mpirun="/opt/kubeflow/bin/mpirun")
    assert job.process.returncode != 0
    assert job.result["first_failure"]["cause"].startswith("placement: the rank came up on n1")
    assert "rank 3 n2/1 -> n1/3" in job.output
    assert list(job.run_dir.glob("ranks/*/stdout")) == []  # no program began


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"launcher": "mpich", "launcher_args": "--no-such-option 1"}, "mpich 5.0.2 does not take them"),
        ({"launcher": "openmpi", "launcher_args": "--no-such-option 1"}, "openmpi 5.0.11 does not take them"),
        ({"job_env": {"FI_TCP_IFACE": "lo"}, "launcher": "mpich"}, "lo reaches no other node"),
        ({"job_env": {"GLOO_SOCKET_IFNAME": "eth9"}}, "NIC eth9 does not exist"),
        ({"backend": "ucc"}, "has no such backend"),
        ({"backend": "nccl"}, "no GPU on n1, n2"),
        ({"launcher": "torchrun", "np": 3}, "as many ranks on every node"),
        ({"launcher": "mpich", "torchfleet_mpiexec": "/usr/bin/mpirun"}, "printed no version"),
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
    job = cluster.train(workload=TELL, np=4, job_env={"GLOO_SOCKET_IFNAME": "eth0"})
    assert "GLOO_SOCKET_IFNAME=eth0 contradicts role fabric, which proved eth1 on n1" in job.output
