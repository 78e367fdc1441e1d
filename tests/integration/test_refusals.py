"""A mistake in the input is one clear line before anything starts, and nothing is left half-done."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.driver import REPO, SCRIPTS
from tests.integration.fleet import Fleet, Played

TELL = str(SCRIPTS / "tell.py")

MISTAKES: list[tuple[dict[str, Any], list[str]]] = [
    ({"workload": "mnits"}, ["workload", "mnits", "mnist", "path of a script"]),
    ({"workload": "/no/such/script.py"}, ["workload", "/no/such/script.py", "no such"]),
    ({"workload": "/tmp"}, ["workload", "not a file"]),
    ({"workload": str(REPO / "README.md")}, ["workload", "neither a .py file nor executable"]),
    ({"workload": ""}, ["workload"]),
    ({"backend": "glooo"}, ["backend", "glooo", "gloo, nccl"]),
    ({"backend": "ucc"}, ["backend", "ucc", "has no such backend", "use -e backend=gloo"]),
    ({"backend": "nccl"}, ["backend", "nccl", "no GPU on localhost", "-e backend=gloo"]),
    ({"launcher": "mpirun"}, ["launcher", "mpirun", "openmpi, mpich, intelmpi, torchrun, srun, sbatch"]),
    ({"launcher": "srun"}, ["launcher", "srun", "is not there on localhost", "torchfleet_srun"]),
    ({"launcher_args": "--mca coll_ucc_enable 1"}, ["launcher_args", "there is no coll ucc", "openmpi 5.0.11"]),
    ({"np": 0}, ["np", "whole number"]),
    ({"np": -1}, ["np", "-1"]),
    ({"np": "two"}, ["np", "two"]),
    ({"np": 2.5}, ["np", "2.5"]),
    ({"np": True}, ["np", "true"]),
    ({"np": 3}, ["np", "3", "localhost has 2", "-e np=2"]),
    ({"job_timeout": 0}, ["job_timeout", "greater than 0"]),
    ({"job_timeout": "nan"}, ["job_timeout"]),
    ({"job_env": {"A B": "x"}}, ["job_env", "A B"]),
    ({"job_env": {"A;B": "x"}}, ["job_env", "A;B"]),
    ({"job_env": {"$(id)": "x"}}, ["job_env", "$(id)"]),
    ({"job_env": {"1A": "x"}}, ["job_env", "1A"]),
    ({"job_env": {"RANK": "3"}}, ["job_env", "RANK", "the plan sets this variable"]),
    ({"job_env": {"A": "nul\0"}}, ["job_env", "NUL"]),
    ({"job_env": "A=1"}, ["job_env", "give a dict"]),
    ({"job_id": "../up"}, ["job_id", "../up"]),
    ({"job_id": "a/b"}, ["job_id", "a/b"]),
    ({"job_id": "a..b"}, ["job_id"]),
    ({"runs_dir": "/proc/runs"}, ["runs_dir", "/proc"]),
    ({"runs_dir": f"{REPO}/README.md/runs"}, ["runs_dir", "README.md"]),
    ({"workload_args": "--name 'open"}, ["workload_args", "quot"]),
    ({"show_ranks": [2]}, ["show_ranks", "0 to 1"]),
    ({"result_query": "ranks[?"}, ["result_query", "JMESPath"]),
    ({"torchfleet_python": "/usr/bin/python3"}, ["torch", "/usr/bin/python3", "ansible-playbook setup.yml"]),
    ({"torchfleet_python": "/no/python"}, ["python", "/no/python", "ansible-playbook setup.yml"]),
    ({"torchfleet_mpirun": "/no/mpirun"}, ["launcher", "/no/mpirun", "ansible-playbook setup.yml"]),
    ({"torchfleet_mpirun": "/bin/true"}, ["launcher", "/bin/true", "no version"]),
    ({"torchfleet_home": "/proc/home"}, ["torchfleet_home", "/proc/home"]),
]


def refused(fleet: Fleet, played: Played, words: list[str]) -> None:
    """A refusal is one line with these words, and nothing of the job is there."""
    assert played.rc != 0
    assert "\n" not in played.msg
    assert "Traceback" not in played.stdout
    for word in words:
        assert word in played.msg, played.msg
    assert not fleet.runs.exists()
    assert not (fleet.home / "jobs").exists()


@pytest.mark.parametrize(("given", "words"), MISTAKES, ids=[json.dumps(given)[:40] for given, _ in MISTAKES])
def test_mistakes(fleet: Fleet, given: dict[str, Any], words: list[str]) -> None:
    refused(fleet, fleet.play(**{"workload": TELL, **given}), words)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"drop_outputs": "maybe"}, 'drop_outputs of reap: got "maybe"; give true or false'),
        ({"drop_run": "maybe", "job_id": "x"}, 'drop_run of gather: got "maybe"; give true or false'),
        ({"drop_run": True}, "drop_run: got true; name the run: -e job_id=..."),
        ({"drop_after": "soon"}, 'drop_after of gather: got "soon"; give a number'),
        ({"drop_after": -1}, "drop_after: got -1.0; give days greater than 0: -e drop_after=30"),
        ({"fetch_limit": "much"}, 'fetch_limit: got "much"'),
        (
            {"target": "nomad"},
            'target: got "nomad"; nodes are cleaned here, jobs in pods by clean.yml -e target=kubernetes',
        ),
    ],
)
def test_a_mistake_is_refused_before_anything_is_cleaned(fleet: Fleet, given: dict[str, Any], told: str) -> None:
    """Reproduced before: what jobs had left was ended, and their files taken away, and then came the error."""
    job = fleet.home / "jobs" / "over"
    job.mkdir(parents=True)
    (job / "fetched").touch()  # a run that the controller has: clean.yml takes the rest away
    cleaned = fleet.play("clean.yml", **given)
    assert cleaned.rc != 0 and cleaned.msg.startswith(told) and "\n" not in cleaned.msg, cleaned.stdout
    assert "Traceback" not in cleaned.stdout
    assert job.exists()


LOCAL = "ansible_connection: local, ansible_python_interpreter: '{{ ansible_playbook_python }}'"
INVENTORIES = {
    "no head": ("workers: {hosts: {a: }}", ["inventory", "head"]),
    "no workers": ("head: {hosts: {a: }}", ["inventory", "workers"]),
    "empty": ("", ["inventory", "head"]),
    "two heads": ("head: {hosts: {a: , b: }}, workers: {hosts: {a: }}", ["inventory", "head", "one host"]),
    "same address twice": (
        "head: {hosts: {a: {ansible_host: 127.0.0.5}}}, workers: {hosts: {a: , b: {ansible_host: 127.0.0.5}}}",
        ["inventory", "a and b both have 127.0.0.5"],
    ),
    "host name": ("head: {hosts: {a: }}, workers: {hosts: {a: , 'b;id': }}", ["inventory", "b;id"]),
    "host option": (
        "head: {hosts: {a: }}, workers: {hosts: {a: , '-oProxyCommand=id': }}",
        ["inventory", "-oProxyCommand"],
    ),
    "empty address": ("head: {hosts: {a: {ansible_host: ''}}}, workers: {hosts: {a: }}", ["ansible_host of a"]),
    "user in address": ("head: {hosts: {a: {ansible_host: root@b}}}, workers: {hosts: {a: }}", ["ansible_host of a"]),
    "become on a worker": (
        "head: {hosts: {a: }}, workers: {hosts: {a: , b: {ansible_host: 127.0.0.5, ansible_become: true}}}",
        ["ansible_become of b", "jobs run as the user that the head logs in as"],
    ),
    "slots": ("head: {hosts: {a: }}, workers: {hosts: {a: {slots: 0}}}", ["slots of a"]),
}


@pytest.mark.parametrize("name", INVENTORIES)
def test_inventories(fleet: Fleet, tmp_path: Path, name: str) -> None:
    groups, words = INVENTORIES[name]
    inventory = tmp_path / "bad.yml"
    inventory.write_text(f"all: {{children: {{{groups}}}, vars: {{{LOCAL}}}}}\n")
    refused(fleet, fleet.play(workload=TELL, inventory=inventory), words)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-e", "workload_args=--epochs 2"], '-e: got "2"'),
        (["--limit", "localhost"], "--limit: got"),
        (["-b", "--become-user", "somebody-else"], 'become on localhost: got "somebody-else"'),
    ],
)
def test_what_ansible_would_silently_ignore(fleet: Fleet, words: list[str], text: str) -> None:
    command = ["ansible-playbook", "train.yml", "-e", json.dumps(fleet.variables(workload=TELL)), *words]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert text in done.stdout + done.stderr
    assert not fleet.runs.exists()


def test_jobs_in_pods_are_kubernetes_unless_a_target_is_named() -> None:
    """The playbook of the installed collection (torchfleet.cluster.clean_pods) goes without a target."""
    words = ["ansible-playbook", "playbooks/clean_pods.yml", "-e", "pod_project=mlo"]
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert 'pod_project: got "mlo"; it is for Run:ai: add -e target=runai' in done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["cluster.yml", "-e", "cluster_state=absent", "-e", "cluster_name=demo two"],
        ["clean.yml", "-e", "target=kubernetes", "-e", "job_id=demo two"],
        ["clean.yml", "-e", "job_id=demo two"],
    ],
)
def test_what_would_be_removed_has_the_name_that_was_typed(words: list[str]) -> None:
    """Reproduced before: Ansible drops the second word, and cluster or job demo was removed."""
    command = ["ansible-playbook", "--check", *words]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert '-e: got "two"; no variable takes these words' in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("accelerators", ["gpu"], """give a list of cuda, rocm: -e '{"accelerators": ["cuda"]}'"""),
        ("mpis", 7, """give a list of openmpi, mpich, intelmpi: -e '{"mpis": ["openmpi"]}'"""),
        ("mpis", "mpich", """give a list of openmpi, mpich, intelmpi: -e '{"mpis": ["openmpi"]}'"""),
        ("firewall_open", "maybe", "give true or false: -e firewall_open=true"),
        ("torchfleet_cluster", "../x", "use letters, digits, '.', '-' and '_', at most 64"),
        ("torchfleet_ports", "30000-2", "give first and last, from 1024 to 65535: -e torchfleet_ports=20000-20999"),
        ("verify_floor_gbps", "fast", "give a number of at least 0: verify_floor_gbps: 1"),
    ],
)
def test_setup_refuses_a_name_that_is_none_before_it_does_anything(name: str, value: object, told: str) -> None:
    command = ["ansible-playbook", "setup.yml", "-e", json.dumps({name: value})]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert f"{name}: got {json.dumps(value)}; {told}" in done.stdout + done.stderr
    assert "PLAY [Preflight]" not in done.stdout


def test_a_state_of_node_containers_is_refused_in_one_line() -> None:
    """Ansible's own check of a role's options takes two, and does not say what to type."""
    command = ["ansible-playbook", "playbooks/containers.yml", "--check", "-e", "container_state=gone"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, timeout=60)
    told = 'container_state: got "gone"; choose one of present, absent, built: -e container_state=present'
    assert done.returncode == 2 and told in done.stdout + done.stderr
    assert "PLAY [Node containers]" not in done.stdout


@pytest.mark.parametrize("book", ["setup.yml", "verify.yml", "remove.yml"])
def test_a_cluster_is_not_limited_to_some_of_its_nodes(book: str) -> None:
    command = ["ansible-playbook", book, "--limit", "localhost"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert '--limit: got "localhost"; leave nodes out with -e away=n7' in done.stdout + done.stderr
    assert done.stdout.count("PLAY [") == 2  # the checks


def test_a_job_id_is_used_once(fleet: Fleet) -> None:
    assert fleet.play(workload=TELL, job_id="once").rc == 0
    before = (fleet.runs / "once" / "result.json").read_bytes()
    again = fleet.play(workload=TELL, job_id="once")
    assert again.rc != 0
    assert "job_id" in again.msg and "exists already" in again.msg
    other = fleet.play(workload=TELL, job_id="once", runs_dir=str(fleet.root / "other"))
    assert other.rc != 0
    assert "was used on localhost" in other.msg
    assert not (fleet.root / "other").exists()
    assert (fleet.runs / "once" / "result.json").read_bytes() == before


def test_a_job_that_the_node_refuses_leaves_no_run_behind(fleet: Fleet) -> None:
    """Nor `latest`: it would show a run that never was."""
    (fleet.home / "node.lock").mkdir()  # nothing of a job can be staged where this is no file
    played = fleet.play(workload=TELL, job_id="refused")
    assert played.rc != 0 and "cannot stage the job on localhost" in played.msg, played.stdout
    assert list(fleet.runs.iterdir()) == []
    (fleet.home / "node.lock").rmdir()
    assert fleet.play(workload=TELL, job_id="refused").rc == 0


def with_small_disk(fleet: Fleet, where: Path, mebibytes: int, **given: Any) -> subprocess.CompletedProcess[str]:
    """Run train.yml where a directory is a file system of its own, without touching this machine's mounts."""
    extra = fleet.root / "extra.json"
    extra.write_text(json.dumps(fleet.variables(workload=str(SCRIPTS / "output.py"), **given)))
    links = [f"ln -s {(fleet.home / name).resolve()} {where}/{name}" for name in ("pytorch", "openmpi")]
    mount = f"mount -t tmpfs -o size={mebibytes}m none {where}"
    script = " && ".join([mount, *links, f"exec ansible-playbook train.yml -e @{extra}"])
    return subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_disk_full_on_the_node(fleet: Fleet) -> None:
    done = with_small_disk(fleet, fleet.home, 4, workload_args=["million"])
    assert done.returncode != 0
    assert "disk: got" in done.stdout + done.stderr and "MiB free" in done.stdout + done.stderr
    assert not fleet.runs.exists()


def test_disk_full_on_the_controller(fleet: Fleet) -> None:
    fleet.runs.mkdir()
    done = with_small_disk(fleet, fleet.runs, 4, workload_args=["million"])
    assert done.returncode != 0
    assert "runs_dir: got" in done.stdout + done.stderr


def test_disk_fills_up_while_the_job_runs(fleet: Fleet) -> None:
    """The rank that hit it is named; what fitted came home. It ignores SIGTERM, and writes on: it is killed."""
    done = with_small_disk(fleet, fleet.home, 70, workload_args=["stubborn"], job_id="full")
    assert done.returncode != 0
    result = json.loads((fleet.runs / "full" / "result.json").read_text())
    assert result["state"] == "failed"
    assert result["first_failure"]["rank"] == 0
    assert "no space left" in result["first_failure"]["cause"]
    assert (fleet.runs / "full" / "ranks" / "0" / "stdout").stat().st_size > 60 << 20
