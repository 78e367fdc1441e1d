"""Training across nodes: the right place, the right environment, output home byte-exact, and an end on every node."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import signal
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.identity import owner
from tests.combinations import combined
from tests.driver import SCRIPTS
from tests.lab import slurm
from tests.lab.cluster import OB1, SLURM, Cluster, Job

TELL = str(SCRIPTS / "tell.py")
SLEEPER = str(SCRIPTS / "sleeper.py")
# Jobs of Slurm are not among the cells of the fault matrix in test_across_faults.py: its nodes are not these.
PARTS = [  # the others of Slurm are in test_head_only.py, those of other launchers in the fault matrix
    *[("srun", "n1", "launcher"), ("srun", "n2", "supervisor"), ("srun", "n2", "guard")],
    *[("sbatch", "n1", what) for what in ("supervisor", "guard")],
]


def sleepers(cluster: Cluster, *arguments: str, **given: object) -> tuple[Job, dict[str, list[int]]]:
    """Start four ranks that sleep, two on each of two nodes, and wait until they say that they are up."""
    job = cluster.start(workload=SLEEPER, workload_args=list(arguments), np=4, nodes="n1,n2", **given)
    programs = job.wait_for_programs("sleeper.py", n1=2, n2=2)
    for rank, node in enumerate(("n1", "n1", "n2", "n2")):
        said = f"/home/fleet/.torchfleet/jobs/{job.job_id}/ranks/{rank}/stdout"
        job.wait_until(lambda node=node, said=said: "up" in cluster.lab.read(node, said))
    return job, programs


def test_message_passing_on_two_nodes(cluster: Cluster) -> None:
    """By default; every launcher trains in test_across_launchers.py."""
    job = cluster.train(workload="message_passing", np=4, show_ranks="all")
    assert [row["host"] for row in job.result["ranks"]] == ["n1", "n1", "n2", "n2"]
    assert "[3@n2] rank 3 received from rank 0" in job.output
    assert job.stdout(3) == "rank 3 received from rank 0\n"
    assert job.result["leftovers"] == {"n1": [], "n2": []}


def test_open_mpi_4_1_of_the_distribution(cluster: Cluster) -> None:
    """Another dialect of options, other daemons; and a rank that fails ends it all the same."""
    given = {"torchfleet_mpirun": "/usr/bin/mpirun", "launcher_args": OB1}
    job = cluster.train(workload="message_passing", np=4, **given)
    assert job.result["launcher"]["version"].startswith("4.1.") and OB1 in " ".join(job.result["command"])
    fail = cluster.start(
        workload=str(SCRIPTS / "fail.py"), workload_args="2 raise", np=4, torchfleet_mpirun="/usr/bin/mpirun"
    )
    assert fail.process.wait(60) != 0
    fail.all_gone("n1", "n2")
    assert (fail.result["first_failure"]["rank"], fail.result["first_failure"]["host"]) == (2, "n2")


def test_a_job_that_saves_is_started_again_on_both_nodes(cluster: Cluster) -> None:
    """Each node tells its own ranks; one that has saved waits for the others, wherever they are."""
    resumes, job_id = str(SCRIPTS / "resumes.py"), f"again-{os.getpid()}"
    job = cluster.play(
        workload=resumes, workload_args="alone", np=4, job_timeout=300, notice=298, max_restarts=3, job_id=job_id
    )
    assert job.process.returncode == 0, job.output
    last = cluster.runs / f"{job_id}-r2"
    listed = json.loads((last / "attempts.json").read_text())["attempts"]
    assert [row["state"] for row in listed] == ["saved", "saved", "succeeded"]
    first = json.loads((cluster.runs / job_id / "result.json").read_text())
    assert [(row["host"], row["state"]) for row in first["ranks"]] == [
        ("n1", "saved"), ("n1", "saved"), ("n2", "saved"), ("n2", "saved"),
    ]  # fmt: skip
    for rank in range(4):
        assert (last / "ranks" / str(rank) / "stdout").read_text() == "start 2 saved True True\ncount 6\n"


def test_a_detached_job_is_started_again_by_its_head_on_both_nodes(cluster: Cluster) -> None:
    """The connections between the nodes are new for each attempt, and its files on each node are apart."""
    resumes, job_id = str(SCRIPTS / "resumes.py"), f"head-again-{os.getpid()}"
    given = {"job_timeout": 300, "notice": 298, "max_restarts": 3, "detach": True}
    job = cluster.play(workload=resumes, np=4, nodes="n1,n2", job_id=job_id, **given)
    assert job.process.returncode == 0, job.output
    waited = cluster.play("playbooks/jobs.yml", do="wait", job_id=job_id)
    assert waited.process.returncode == 0, waited.output
    run = cluster.runs / job_id
    listed = json.loads((run / "attempts.json").read_text())["attempts"]
    assert [row["state"] for row in listed] == ["saved", "saved", "succeeded"]
    for number, place in enumerate((run / "attempts" / "0", run / "attempts" / "1", run)):
        ranks = json.loads((place / "result.json").read_text())["ranks"]
        assert [row["host"] for row in ranks] == ["n1", "n1", "n2", "n2"]
        for rank in range(4):
            assert (place / "ranks" / str(rank) / "stdout").read_text().startswith(f"start {number} saved ")
    job.all_gone("n1", "n2")


def test_a_detached_job_goes_on_without_its_controller_and_is_ended_by_name(cluster: Cluster) -> None:
    """The playbook returns though the connection's other end lives on; so does the job when that is gone."""
    job = cluster.play(workload=SLEEPER, np=4, nodes="n1,n2", detach=True, job_id=f"away-{os.getpid()}")
    assert job.process.returncode == 0, job.output
    job.wait_for_programs("sleeper.py", n1=2, n2=2)
    listed = cluster.play("playbooks/jobs.yml", job_id="")
    assert job.job_id in listed.output and "running" in listed.output
    ended = cluster.play("playbooks/jobs.yml", do="cancel", job_id=job.job_id)
    assert ended.process.returncode == 0, ended.output
    job.all_gone("n1", "n2")
    assert job.result["state"] == "cancelled"
    assert [row["state"] for row in job.result["ranks"]] == ["ended"] * 4


def test_two_controllers_wait_in_one_queue(cluster: Cluster, tmp_path: Path) -> None:
    """The second job is another person's, detached. The third waits behind it for n3, on which nobody runs."""
    other = Cluster(cluster.lab, tmp_path)
    other.environment["HOME"] = str(tmp_path)
    first, _programs = sleepers(cluster, queue=True, job_id=f"first-{os.getpid()}")
    name = f"second-{os.getpid()}"
    second = other.play(workload=SLEEPER, np=3, nodes="n2,n3", queue=True, detach=True, job_id=name)
    assert second.process.returncode == 0 and f"job {name} waits in the queue of n1" in second.output, second.output
    third = cluster.start(workload=TELL, nodes="n3", queue=True, job_id=f"third-{os.getpid()}")
    third.wait_until(lambda: f"job {third.job_id} waits: 1 ahead, the first is {name} of {owner()}" in third.output)
    assert f"waiting {owner()} 3 n2 n3" in cluster.play("playbooks/jobs.yml", job_id="").output
    first.process.send_signal(signal.SIGINT)
    first.process.wait(60)
    second.wait_for_programs("sleeper.py", n2=2, n3=1)
    assert third.process.poll() is None and not third.run_dir.exists()
    ended = other.play("playbooks/jobs.yml", do="cancel", job_id=name)
    assert ended.process.returncode == 0 and second.result["state"] == "cancelled", ended.output
    assert third.process.wait(60) == 0, third.output
    assert cluster.lab.root("n1", "ls", "/home/fleet/.torchfleet/queue").split() == ["lock"]


def test_a_hang_on_four_nodes(cluster: Cluster) -> None:
    """A rank on the third node is named from the controller; the others are on all nodes."""
    script = SCRIPTS / "hangs.py"
    rows = script.read_text().splitlines()
    sleeps, reduces = (
        max(number for number, row in enumerate(rows, 1) if row.strip() == text)
        for text in ("time.sleep(1000)", "dist.all_reduce(values)")
    )
    said = f"rank 4 on n3 is sleeping or waiting at hangs.py:{sleeps} in own_code; ranks 0-3,5-7 wait for it in "
    job = cluster.start(workload=str(script), workload_args="own_code", job_env={"CULPRIT": "4"}, backend="gloo")

    def looked_at() -> bool:
        looked = cluster.play("playbooks/look.yml", job_id=job.job_id)
        return f"job {job.job_id}: {said}all_reduce #4 at hangs.py:{reduces}" in looked.output

    job.wait_until(looked_at, 120)
    job.process.send_signal(signal.SIGINT)
    job.process.wait(60)
    job.all_gone("n1", "n2", "n3", "n4")
    assert {row["state"] for row in job.result["ranks"]} == {"ended"}


def test_four_nodes_that_differ(cluster: Cluster) -> None:
    """Users, SSH ports, homes, NIC names and slots are each node's own."""
    job = cluster.train(workload=TELL)
    hosts = [row["host"] for row in job.result["ranks"]]
    assert hosts == ["n1", "n1", "n2", "n2", "n3", "n4", "n4", "n4"]
    told = [json.loads(job.stdout(rank)) for rank in range(8)]
    assert [told[rank]["env"]["HOME"] for rank in (0, 4)] == ["/home/fleet", "/home/other"]
    assert told[5]["cwd"] == f"/srv/torchfleet/jobs/{job.job_id}/src"
    assert [told[rank]["env"]["GLOO_SOCKET_IFNAME"] for rank in (0, 4)] == ["eth1", "fast0"]
    assert [told[rank]["env"]["LOCAL_RANK"] for rank in (4, 5, 6, 7)] == ["0", "0", "1", "2"]


def test_training_is_the_same_on_one_node_and_on_two(cluster: Cluster) -> None:
    here = cluster.train(workload="pi", np=2).result["metrics"]["pi"]
    assert cluster.train(workload="pi", np=4, launcher="torchrun").result["metrics"]["pi"] == pytest.approx(here)


def test_a_folder_is_shipped_by_content(cluster: Cluster, tmp_path: Path) -> None:
    """What is imported and read beside the script is there, unchanged files are not sent again, a run has its own."""
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "__init__.py").write_text("WORD = 'first'\n")
    (folder / "big.bin").write_bytes(os.urandom(3 << 20))
    (folder / "gone.txt").write_text("x")
    (folder / ".env").write_text("SECRET=1\n")
    script = folder / "main.py"
    script.write_text(
        "import hashlib, os, pkg\n"
        "print(pkg.WORD, hashlib.sha256(open('big.bin', 'rb').read()).hexdigest(), sorted(os.listdir('.')))\n"
        "open(f\"own-{os.environ['RANK']}-{os.environ['TORCHFLEET_JOB_ID']}\", 'w').close()\n"
    )
    digest = hashlib.sha256((folder / "big.bin").read_bytes()).hexdigest()
    first = cluster.train(workload=str(script), np=4)
    assert first.stdout(2).startswith(f"first {digest}")
    assert ".env" not in first.stdout(2)
    inode = f"stat -c %i ~/.torchfleet/store/{digest[:2]}/{digest}"
    before = cluster.lab.ssh("n2", inode).stdout
    (folder / "pkg" / "__init__.py").write_text("WORD = 'second'\n")
    (folder / "gone.txt").unlink()
    second = cluster.train(workload=str(script), np=4)
    assert second.stdout(3).startswith(f"second {digest}")
    assert "gone.txt" not in second.stdout(3) and first.job_id not in second.stdout(3)
    assert cluster.lab.ssh("n2", inode).stdout == before != ""
    assert f"2 files, 0 bytes in /home/fleet/.torchfleet/jobs/{first.job_id}/src" in cluster.clean().output
    assert "own-3" in cluster.lab.ssh("n2", f"ls ~/.torchfleet/jobs/{first.job_id}/src").stdout  # what a rank wrote
    cluster.play("clean.yml", job_id="", drop_outputs=True)
    assert first.job_id not in cluster.lab.ssh("n2", "ls ~/.torchfleet/jobs").stdout


def test_a_home_is_not_shipped(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('never')\n")
    monkeypatch.setitem(cluster.environment, "HOME", str(tmp_path))
    job = cluster.play(workload=str(script), np=4)
    assert job.process.returncode != 0
    assert "put the script into a folder of its own" in job.output
    assert not job.run_dir.exists()


def test_output_comes_home_byte_exact(cluster: Cluster, tmp_path: Path) -> None:
    """Binary, many lines, no newline at the end: 8 MB from each rank, and what each says of it."""
    script = tmp_path / "spill" / "spill.py"
    script.parent.mkdir()
    script.write_text(
        "import hashlib, os, random, sys\n"
        "data = random.Random(os.environ['RANK']).randbytes(8 << 20)\n"
        "sys.stdout.buffer.write(data)\n"
        "sys.stderr.write(hashlib.sha256(data).hexdigest())\n"
    )
    job = cluster.train(workload=str(script), np=4, show_ranks="all")
    for rank in range(4):
        files = job.run_dir / "ranks" / str(rank)
        assert hashlib.sha256((files / "stdout").read_bytes()).hexdigest() == (files / "stderr").read_text()


@pytest.mark.parametrize("launcher", SLURM)
def test_a_rank_fails(launching: Cluster, bystander: None, launcher: str) -> None:
    options = {"nodes": "n1,n2", "launcher": launcher}
    job = launching.start(workload=str(SCRIPTS / "fail.py"), workload_args="3 raise", np=4, **options)
    assert job.process.wait(60) != 0
    job.all_gone("n1", "n2")
    failure = job.result["first_failure"]
    assert (failure["rank"], failure["host"], failure["cause"]) == (3, "n2", "exit status 1")
    assert "rank 3 on n2: exit status 1" in job.output
    assert "Traceback" in Path(failure["log"]).read_text()
    assert [row["state"] for row in job.result["ranks"]] == ["ended", "ended", "ended", "failed"]


@pytest.mark.parametrize(("launcher", "node", "what"), PARTS)
def test_a_part_is_killed(launching: Cluster, bystander: None, launcher: str, node: str, what: str) -> None:
    cluster = launching
    job, programs = sleepers(cluster, "--escape", "--ignore-term", launcher=launcher)
    pid = programs[node][0] if what == "rank" else job.part(node, what)
    os.kill(pid, signal.SIGKILL)
    job.all_gone("n1", "n2")
    assert job.process.wait(30) != 0
    if (what, node) == ("supervisor", "n1"):
        assert "the supervisor on the head n1 died: " in job.output and "ansible-playbook clean.yml" in job.output
        assert cluster.clean().process.returncode == 0
    result = job.result
    assert result["state"] == ("lost" if what == "supervisor" else "failed")
    assert result["first_failure"]["host"] == node
    if what == "rank":
        assert result["first_failure"]["cause"] == "killed by SIGKILL"
    job.wait_until(lambda: job.job_id not in slurm.queue(cluster.lab, "n1"))


@pytest.mark.parametrize(
    ("launcher", "number", "state"),
    [("openmpi", "SIGINT", "cancelled"), ("sbatch", "SIGKILL", "lost"), ("srun", "SIGINT", "cancelled")],
)
def test_ansible_playbook_is_ended(launching: Cluster, bystander: None, launcher: str, number: str, state: str) -> None:
    job, _programs = sleepers(launching, "--escape", "--ignore-term", launcher=launcher)
    job.process.send_signal(signal.Signals[number])
    job.all_gone("n1", "n2")
    assert job.process.wait(20) != 0
    job.wait_until((job.run_dir / "fetched.json").exists)
    assert job.result["state"] == state
    assert {row["state"] for row in job.result["ranks"]} == {"ended"}
    if launcher in SLURM:
        job.wait_until(lambda: job.job_id not in slurm.queue(launching.lab, "n1"))


@pytest.mark.parametrize("launcher", ["openmpi", "torchrun", "mpich", "srun", *combined("intelmpi", "sbatch")])
def test_a_rank_that_saves_is_waited_for(launching: Cluster, launcher: str) -> None:
    """A child of a shell on the last node, when all other ranks are gone: no launcher and no daemon disturbs it."""
    options = {"nodes": "n1,n2", "launcher": launcher}
    job = launching.start(workload=str(SCRIPTS / "saves_on_rank_3.sh"), np=4, **options)
    ranks = f"/home/fleet/.torchfleet/jobs/{job.job_id}/ranks"
    said = f"{ranks}/3/stdout"
    job.wait_until(lambda: launching.lab.read("n2", said).split() == ["up", "up"])
    job.process.send_signal(signal.SIGINT)
    job.wait_until(lambda: "saving" in launching.lab.read("n2", said))
    job.wait_until(lambda: '"rc"' in launching.lab.read("n1", f"{ranks}/0/record.json"))
    assert "SAVED" not in launching.lab.read("n2", said)
    assert job.process.wait(60) != 0
    job.all_gone("n1", "n2")
    assert (job.run_dir / "ranks/3/stdout").read_text().split() == ["up", "up", "saving", "SAVED"]
    assert {row["state"] for row in job.result["ranks"]} == {"ended"}


def test_a_node_loses_power(cluster: Cluster) -> None:
    """A free worker takes its place in the next attempt; the other ranks stay where they were."""
    job = cluster.start(workload=SLEEPER, np=4, nodes="n1,n2,n4", lease=10, max_restarts=1)
    job.wait_for_programs("sleeper.py", n1=2, n2=2)
    cluster.lab.kill("n2")
    job.all_gone("n1", seconds=15)
    again = dataclasses.replace(job, job_id=f"{job.job_id}-r1")
    again.wait_for_programs("sleeper.py", n1=2, n4=2)
    job.process.send_signal(signal.SIGINT)
    assert job.process.wait(60) != 0
    again.all_gone("n1", "n4")
    assert (job.result["state"], job.result["first_failure"]["host"]) == ("lost", "n2")
    assert f"job {job.job_id} lost: restart 1 of at most 1" in job.output
    assert "warning: without n2; n4 took over" in job.output
    assert [row["host"] for row in again.result["ranks"]] == ["n1", "n1", "n4", "n4"]
    cluster.lab.restart("n2")
    job.wait_until(lambda: cluster.lab.ssh("n2", "true", check=False).returncode == 0)
    cluster.train(workload=TELL, np=4)


def test_the_head_and_a_node_lose_power(cluster: Cluster, bystander_on_n3: None) -> None:
    """Of detached jobs the one that ran is lost, and told so; the one that waited keeps its place, and runs."""
    ran, waited = (f"{what}-{os.getpid()}" for what in ("ran", "waited"))
    given = {"workload": SLEEPER, "np": 5, "nodes": "n1,n2,n3", "queue": True, "detach": True, "lease": 10}
    job = cluster.play(**given, workload_args=["--escape", "--ignore-term"], job_id=ran)
    job.wait_for_programs("sleeper.py", n1=2, n2=2, n3=1)
    later = cluster.play(**given, job_id=waited)
    assert f"job {waited} waits in the queue of n1" in later.output
    for node in ("n1", "n2"):
        cluster.lab.kill(node)
    job.all_gone("n3", seconds=15)  # by itself: there is no head any more
    cluster.mend()
    listed = cluster.play("playbooks/jobs.yml", job_id="").output
    assert f"{ran} lost {owner()}, you 5 n1-n3" in listed, listed
    later.wait_for_programs("sleeper.py", n1=2, n2=2, n3=1)
    ended = cluster.play("playbooks/jobs.yml", do="cancel", job_id=waited)
    assert ended.process.returncode == 0 and later.result["state"] == "cancelled", ended.output
    later.all_gone("n1", "n2", "n3")
    refused = cluster.play("playbooks/jobs.yml", do="wait", job_id=ran)
    assert refused.process.returncode == 2 and "its supervisor died: ansible-playbook clean.yml" in refused.output
    cleaned = cluster.clean()
    assert cleaned.process.returncode == 0, cleaned.output
    assert f"job {ran} lost" in cleaned.output, cleaned.output
    assert (job.result["state"], "up" in job.stdout(4)) == ("lost", True)
    cluster.train(workload=TELL, queue=True)
    assert cluster.lab.root("n1", "ls", "/home/fleet/.torchfleet/queue").split() == ["lock"]


def test_two_jobs_at_once(cluster: Cluster) -> None:
    first, _programs = sleepers(cluster)
    second = cluster.train(workload=TELL, np=4)
    assert len(first.programs("n2", "sleeper.py")) == 2
    named = cluster.play("clean.yml", job_id=first.job_id)
    assert named.process.returncode == 0, named.output
    assert first.process.wait(30) != 0
    assert first.result["state"] == "cancelled"
    assert second.result["state"] == "succeeded"


def test_clean_refuses_a_job_that_nobody_knows(cluster: Cluster) -> None:
    job = cluster.play("clean.yml", job_id="never-was")
    assert job.process.returncode != 0
    assert "got never-was; no machine has a job of that name" in job.output


def test_a_node_that_cannot_be_reached_is_named(cluster: Cluster) -> None:
    cluster.lab.pause("n3")
    job = cluster.play(workload="message_passing", np=4)
    assert job.process.returncode != 0
    assert "n3" in job.output and "not reached from n1" in job.output
    assert not job.run_dir.exists()
    assert job.alive("n1") == [] == job.alive("n2")


def test_verify_names_a_slow_link_and_fails_below_its_floor(cluster: Cluster) -> None:
    cluster.lab.shape("n2", "200mbit", nic="eth1")
    verified = cluster.play("verify.yml", verify_launchers=["openmpi"], verify_floor_gbps=1000)
    assert "verify of 4 nodes: 1 error" in verified.output, verified.output  # the floor: a slow link is no fault
    assert re.search(r"TF-VERIFY-FLOOR[\s\S]*GB/s; at least 1e\+03 GB/s are expected", verified.output)
    assert re.search(r"openmpi +gloo +all-reduce correct +4 +[\d.e-]+ +NIC", verified.output), verified.output
    assert "TF-VERIFY-SLOW" in verified.output and "n2" in verified.output.partition("TF-VERIFY-SLOW")[2]


@pytest.fixture(scope="module")
def without_n4(four_nodes: Cluster) -> Job:
    """A proof while n4 is off; its matrix has the links between the others."""
    four_nodes.lab.kill("n4")
    matrix = str(four_nodes.root / "matrix.json")
    verified = four_nodes.play("verify.yml", verify_launchers=["openmpi"], verify_matrix=matrix)
    four_nodes.lab.restart("n4")
    four_nodes.wait_for_sshd("n4")
    return verified


def test_verify_names_a_dead_node_and_proves_the_others(without_n4: Job) -> None:
    assert without_n4.process.returncode == 2
    assert "1 error: TF-VERIFY-NODE on n4" in without_n4.output
    assert "openmpi gloo all-reduce correct" in without_n4.output and "6 links" in without_n4.output
    assert "mpich gloo" not in without_n4.output  # which was not asked for


def test_a_second_setup_changes_nothing(cluster: Cluster, without_n4: Job) -> None:
    """Its proof tests n4 with the others, and not these with each other, unless a link was slow on a busy machine."""
    matrix, report = cluster.root / "matrix.json", cluster.root / "verify.json"
    known = json.loads(matrix.read_text())["measured"]
    given = {"verify_matrix": str(matrix), "verify_report": str(report)}
    again = cluster.play("setup.yml", fabric_subnet=cluster.second_network(), **given)
    assert again.process.returncode == 0, again.output
    assert re.findall(r"TASK \[([^\]]*)\] \*+(?:(?!TASK).)*changed: \[", again.output) == []
    assert "changed=0" in again.output and not re.search(r"changed=[1-9]", again.output)
    assert max(map(int, re.findall(r" skipped=(\d+)", again.output))) <= 8, again.output
    told = json.loads(report.read_text())
    kept = sorted(sorted((one, row["node"])) for one, rows in known.items() for row in rows)
    assert (len(told["links"]), told["links_kept"]["pairs"]) == (12, kept)
    assert (f"{2 * len(kept)} of them were not tested again" in again.output) == bool(kept)
