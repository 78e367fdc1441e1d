"""`train.yml -e target=kubernetes` on a real cluster: jobs that end in every way that they can (`make kubernetes`)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.driver import REPO
from tests.kubernetes.cluster import PAUSE, POD_IMAGE, TOKEN, Cluster

PYTHON = Path.home() / ".torchfleet" / "pytorch" / "bin" / "python"
SECONDS = 1800
PI = ("-e", "workload=pi", "-e", "workload_args=--intervals=1000000")
# Directories of this machine that pods mount by a claim: they stand for a shared file system with PyTorch.
VOLUME = """apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: PersistentVolume
  metadata: {{name: {name}}}
  spec:
    accessModes: [ReadOnlyMany]
    capacity: {{storage: 1Gi}}
    storageClassName: ""
    hostPath: {{path: "{path}"}}
    claimRef: {{namespace: default, name: {name}}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata: {{name: {name}}}
  spec:
    accessModes: [ReadOnlyMany]
    storageClassName: ""
    resources: {{requests: {{storage: 1Gi}}}}
    volumeName: {name}
"""
PROCESSES = """import glob
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        print(open(path).read().replace("\\0", " "))
    except OSError:
        pass
"""
SLEEPS = "import os, time\nprint('rank', os.environ['RANK'], 'sleeps', flush=True)\ntime.sleep(600)\n"
FAILS = """import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
if os.environ["RANK"] == "3":
    sys.exit("ValueError: rank three does not like this")
time.sleep(600)
"""


def base_of(python: Path) -> Path:
    """Return the directory of the interpreter that an environment was made of."""
    told = subprocess.run(
        [python, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True, check=True
    )
    return Path(told.stdout.strip())


class Pods:
    """The cluster, and train.yml for it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.torch, base = PYTHON.parent.parent.resolve(), base_of(PYTHON)
        self.mounts = {"torch": self.torch, **({} if base == Path("/usr") else {"python": base})}
        self.cluster = Cluster(place, tuple(self.mounts.values()))

    def up(self) -> None:
        self.cluster.up()
        for name, path in self.mounts.items():
            done = self.cluster.ask("create", "--filename=-", given=VOLUME.format(name=name, path=path))
            assert done.returncode == 0, done.stderr

    @property
    def environment(self) -> dict[str, str]:
        bin_directory = os.path.dirname(self.cluster.kubectl)
        path = f"{bin_directory}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {
            **os.environ,
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "PATH": path,
            "LC_ALL": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
        }

    def words(self, *words: str, playbook: str = "train.yml") -> list[str]:
        return ["ansible-playbook", playbook, "-e", "target=kubernetes", *words]

    def job(self, name: str, script: str = "") -> list[str]:
        """Return what a job of two pods with two ranks each is asked for with."""
        volumes = ",".join(f"{claim}:{path}:ro" for claim, path in self.mounts.items())
        given = {
            "pod_image": POD_IMAGE, "pod_kind": "jobs", "python": f"{self.torch}/bin/python", "pod_volumes": volumes,
            "pods": 2, "ranks_per_node": 2, "job_id": name, "runs_dir": str(self.place / "runs"),
        }  # fmt: skip
        if script:
            folder = self.place / name
            folder.mkdir()
            (folder / "train.py").write_text(script)
            given["workload"] = str(folder / "train.py")
        return ["-e", json.dumps(given)]

    def train(self, name: str, *words: str, script: str = "") -> tuple[int, str]:
        done = subprocess.run(
            self.words(*self.job(name, script), *words), cwd=REPO, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def begin(self, name: str, script: str) -> subprocess.Popen[str]:
        """Start a job, and return when all its pods have ranks that run."""
        words = self.words(*self.job(name, script), "-e", "show_ranks=all")
        process = subprocess.Popen(
            words, cwd=REPO, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        seen = ""
        while seen.count(" sleeps") < 4:
            line = process.stdout.readline() if process.stdout else ""
            assert line, seen
            seen += line
        return process

    def result(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.place / "runs" / name / "result.json").read_text())
        return found

    def left(self) -> str:
        """Return what is in the cluster of any job."""
        kinds = "jobs,pods,services,configmaps,secrets"
        return self.cluster.ask("get", kinds, "--selector=torchfleet.dev/part-of", "--output=name").stdout

    def processes(self) -> list[str]:
        """Return the processes of jobs in the machine: programs of ours, and of users."""
        told = self.cluster.shell(f"python3 -c '{PROCESSES}'", check=False).stdout.decode()
        return [line for line in told.splitlines() if "train.py" in line or "/torchfleet/" in line]


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    made = Pods(tmp_path_factory.mktemp("kubernetes"))
    try:
        made.up()
        yield made
    finally:
        made.cluster.down()


@pytest.fixture(autouse=True)
def nothing_is_left(pods: Pods) -> Iterator[None]:
    yield
    assert pods.left() == ""


@pytest.mark.timeout(SECONDS)
def test_two_pods_with_two_ranks(pods: Pods) -> None:
    status, said = pods.train("first", *PI)
    assert status == 0, said
    result = pods.result("first")
    assert result["state"] == "succeeded" and result["world_size"] == 4
    assert {row["host"] for row in result["ranks"]} == {"tf-first-0", "tf-first-1"}
    assert abs(float(result["metrics"]["pi"]) - 3.14159265) < 1e-6
    assert "NIC eth0" in said and pods.processes() == []
    assert "pi=" in (pods.place / "runs" / "first" / "ranks" / "0" / "stdout").read_text()


@pytest.mark.timeout(SECONDS)
def test_pi_with_two_pods_of_twenty_processes(pods: Pods) -> None:
    """The example of document 003: 40 processes on two nodes."""
    status, said = pods.train("forty", *PI, "-e", "ranks_per_node=20", "-e", "job_env={}")
    assert status == 0, said
    assert [row["state"] for row in pods.result("forty")["ranks"]] == ["succeeded"] * 40


@pytest.mark.timeout(SECONDS)
def test_a_rank_fails(pods: Pods) -> None:
    """It is blamed by its number and its pod, its last words are here, and no process of the others is left."""
    status, said = pods.train("fails", script=FAILS)
    assert status != 0
    result = pods.result("fails")
    assert result["state"] == "failed"
    failure = result["first_failure"]
    assert (failure["rank"], failure["host"]) == (3, "tf-fails-1"), said
    assert "rank three does not like this" in failure["message"]
    assert {row["state"] for row in result["ranks"]} <= {"failed", "ended"}
    assert pods.processes() == []


@pytest.mark.timeout(SECONDS)
def test_a_pod_is_deleted(pods: Pods) -> None:
    process = pods.begin("deleted", SLEEPS)
    found = pods.cluster.ask("get", "pods", "--selector=job-name=tf-deleted-1", "--output=name").stdout.split()
    assert pods.cluster.ask("delete", "--wait=false", *found).returncode == 0
    said = process.communicate()[0]
    result = pods.result("deleted")
    assert process.returncode != 0 and result["state"] == "lost", said
    assert "tf-deleted-1 is lost: its pod was deleted" in result["first_failure"]["cause"], said
    assert pods.processes() == []


@pytest.mark.timeout(SECONDS)
def test_the_user_ends_it(pods: Pods) -> None:
    process = pods.begin("ctrl-c", SLEEPS)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate()
    until = time.monotonic() + 120
    while not (pods.place / "runs" / "ctrl-c" / "result.json").exists() and time.monotonic() < until:
        time.sleep(0.5)
    assert pods.result("ctrl-c")["state"] == "cancelled"
    while (pods.left() or pods.processes()) and time.monotonic() < until:
        time.sleep(0.5)
    assert pods.processes() == []


@pytest.mark.timeout(SECONDS)
def test_the_controller_is_killed_and_clean_ends_the_job(pods: Pods) -> None:
    process = pods.begin("orphan", SLEEPS)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    time.sleep(1)
    status, said = clean(pods)
    assert status == 0 and "no job of torchfleet" in said, said  # it runs: clean.yml needs its name
    status, said = clean(pods, "-e", "job_id=orphan")
    assert status == 0 and "ended and taken away: orphan" in said, said
    assert pods.left() == "" and pods.processes() == []


def clean(pods: Pods, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        pods.words(*words, playbook="clean.yml"), cwd=REPO, env=pods.environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"pod_kind": "indexed"}, 'unknown field "completionMode"'),
        ({"pod_image": PAUSE, "python": None}, "executable file not found"),
        ({"pod_image": "registry.invalid/none:1"}, "not started|ErrImagePull|ImagePullBackOff"),
        ({"python": "/usr/bin/python3"}, "No module named torch|torch"),
        ({"pod_volumes": "nothing:/nothing", "pod_start_timeout": 15}, 'persistentvolumeclaim "nothing" not found'),
        ({"pod_context": "other"}, "not found for specified context: other"),
        ({"pod_namespace": "nowhere"}, 'namespaces "nowhere" not found'),
    ],
)
def test_bad_input_is_told_in_one_line(pods: Pods, given: dict[str, Any], why: str) -> None:

    status, said = pods.train(f"bad-{abs(hash(why)) % 10**6}", *PI, "-e", json.dumps(given))
    assert status != 0
    (line,) = [line for line in said.splitlines() if line.strip().startswith("msg:")][-1:]
    assert re.search(why, said), said
    assert "Traceback" not in said and len(line) < 800


@pytest.mark.timeout(SECONDS)
def test_without_credentials(pods: Pods) -> None:
    kubeconfig = pods.cluster.kubeconfig.read_text()
    pods.cluster.kubeconfig.write_text(kubeconfig.replace(TOKEN, "wrong"))
    try:
        status, said = pods.train("nobody", *PI)
    finally:
        pods.cluster.kubeconfig.write_text(kubeconfig)
    assert status != 0 and "must be logged in" in said, said


@pytest.mark.timeout(SECONDS)
def test_the_kubelet_stops(pods: Pods) -> None:
    """Last, for its machine does not answer then."""
    process = pods.begin("kubelet", SLEEPS)
    pods.cluster.stop("kubelet")
    said = process.communicate()[0]
    pods.cluster.start("kubelet")
    result = pods.result("kubelet")
    assert result["state"] == "lost" and "its machine machine is not ready" in result["first_failure"]["cause"], said
    until = time.monotonic() + 180
    while (pods.left() or pods.processes()) and time.monotonic() < until:
        time.sleep(1)
    assert pods.processes() == []
