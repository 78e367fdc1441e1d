"""Pods that never start, users with few rights, and logs that are not kept: each ends in a line, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes.processes import descendants
from tests.kubernetes.cluster import TOKEN
from tests.kubernetes.pods import PI, SECONDS, Pods

pytestmark = pytest.mark.usefixtures("nothing_is_left")
SOON = {"pod_start_timeout": 10}
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "small"},
    "spec": {"hard": {"pods": "1"}},
}
# The kind alone: a cluster whose operator does not run.
PYTORCHJOBS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "pytorchjobs.kubeflow.org"},
    "spec": {
        "group": "kubeflow.org",
        "scope": "Namespaced",
        "names": {"plural": "pytorchjobs", "singular": "pytorchjob", "kind": "PyTorchJob"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
# Some hundred KB of log in a second, until a file is there: kubelets here rotate a log of a MiB every ten seconds.
TALKS = """import os, time
print("rank", os.environ["RANK"], "talks", flush=True)
while not os.path.exists("/torchfleet/enough"):
    print("x" * 500, flush=True)
    time.sleep(0.002)
"""


@contextmanager
def there(pods: Pods, thing: dict[str, Any]) -> Iterator[None]:
    """Keep an object in the cluster, from when the cluster knows it."""
    name = f"{thing['kind']}/{thing['metadata']['name']}"
    try:
        done = pods.cluster.ask("create", "--filename=-", given=json.dumps(thing))
        assert done.returncode == 0, done.stderr
        path = "jsonpath={.status.hard.pods}{.status.conditions[?(@.type=='Established')].status}"
        known = {"ResourceQuota": "1", "CustomResourceDefinition": "True"}.get(thing["kind"], "")
        pods.cluster.wait(name, lambda: pods.cluster.ask("get", name, f"--output={path}").stdout == known, 60)
        yield
    finally:
        pods.cluster.ask("delete", name)


def refused(pods: Pods, name: str, given: dict[str, Any]) -> str:
    """Return the one line that a job ends with that cannot start."""
    status, said = pods.train(name, *PI, "-e", json.dumps({**SOON, **given}))
    assert status != 0 and "Traceback" not in said, said
    assert pods.left() == "" and pods.processes() == []
    return " ".join(said.partition("msg:")[2].partition("PLAY RECAP")[0].split())


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("pytorchjob", "the server doesn''t have a resource type \"pytorchjobs\""),
        ("trainjob", "the server doesn''t have a resource type \"trainjobs\""),
        ("mpijob", "the server doesn''t have a resource type \"mpijobs\""),
    ],
)
def test_a_kind_that_the_cluster_does_not_have(pods: Pods, kind: str, why: str) -> None:
    assert why in refused(pods, f"no-{kind}", {"pod_kind": kind})


@pytest.mark.timeout(SECONDS)
def test_a_kind_whose_operator_does_not_run(pods: Pods) -> None:
    with there(pods, PYTORCHJOBS):
        line = refused(pods, "no-operator", {"pod_kind": "pytorchjob"})
        assert "2 of 2 pods did not start in 10 s: nothing makes them: no operator for this kind runs" in line
        assert pods.cluster.ask("get", "pytorchjobs", "--output=name").stdout == ""


@pytest.mark.timeout(SECONDS)
def test_a_quota_that_is_too_small(pods: Pods) -> None:
    """Only an event of the Job says so: there is no pod. The pod that is there waits for the other one, and ends."""
    with there(pods, QUOTA):
        line = refused(pods, "quota", {"pod_start_timeout": 20})
    assert "1 of 2 pods did not start in 20 s: FailedCreate: Error creating: pods" in line
    assert "exceeded quota: small" in line


@pytest.mark.timeout(SECONDS)
def test_no_machine_has_room(pods: Pods) -> None:
    line = refused(pods, "no-room", {"pod_cpus": 1000})
    assert "2 of 2 pods did not start in 10 s: 0/1 nodes are available: 1 Insufficient cpu" in line


RBAC = "rbac.authorization.k8s.io"
NO_LOGS = {
    "apiVersion": f"{RBAC}/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "no-logs"},
    "rules": [
        {"apiGroups": [""], "resources": ["pods", "services", "configmaps", "secrets", "events"], "verbs": ["*"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["*"]},
    ],
}


def binding(role: str) -> dict[str, Any]:
    """Return that the user with the name of a role has it in this namespace."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": role},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "name": role}],
    }


@contextmanager
def as_user(pods: Pods, role: str) -> Iterator[None]:
    """Let the user of a role run what is run."""
    kubeconfig = pods.cluster.kubeconfig.read_text()
    with there(pods, binding(role)):
        pods.cluster.kubeconfig.write_text(kubeconfig.replace(TOKEN, f"{TOKEN}-{role}"))
        try:
            yield
        finally:
            pods.cluster.kubeconfig.write_text(kubeconfig)


@pytest.mark.timeout(SECONDS)
def test_a_job_that_is_written_runs_without_us(pods: Pods) -> None:
    """Its pods say in their logs what their ranks did, to people; clean.yml takes it away when it is over."""
    path = pods.place / "job.json"
    status, said = pods.train("written", *PI, "-e", "pod_kind=jobs", "-e", f"pod_manifest={path}")
    assert status == 0 and pods.left() == "", said
    (line,) = [line for line in said.splitlines() if "kubectl create -f" in line]
    done = subprocess.run(line.split(), env=pods.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    done = pods.cluster.ask(
        "wait", "--for=condition=Complete", "--timeout=300s", "job/tf-written-0", "job/tf-written-1"
    )
    assert done.returncode == 0, done.stderr
    log = pods.cluster.ask("logs", pods.pod_of("written", 0)).stdout
    assert "rank 0: " in log and "3.14159" in log and "@torchfleet" not in log, log
    assert "torchfleet: tf-written-0: rank 1: exit status 0" in log, log
    status, said = pods.clean()
    assert status == 0 and "ended and taken away: written" in said, said


@pytest.mark.timeout(SECONDS)
def test_role_edit_is_enough(pods: Pods) -> None:
    """Also to be told why pods do not start: that is in events."""
    with as_user(pods, "edit"):
        status, said = pods.train("editor", *PI, "-e", json.dumps({"job_env": {"MY_TOKEN": "hush"}}))
        assert status == 0, said
    with as_user(pods, "edit"):
        assert "Insufficient cpu" in refused(pods, "editor-waits", {"pod_cpus": 1000})


@pytest.mark.timeout(SECONDS)
def test_role_view_is_refused_in_a_line(pods: Pods) -> None:
    with as_user(pods, "view"):
        line = refused(pods, "viewer", {})
    assert 'User "view" cannot' in line and "forbidden" in line and len(line) < 800


@pytest.mark.timeout(SECONDS)
def test_who_may_not_read_logs_is_refused_before_anything_starts(pods: Pods) -> None:
    with there(pods, NO_LOGS), as_user(pods, "no-logs"):
        assert "you may not read logs of pods (get pods/log)" in refused(pods, "no-logs", {})


@pytest.mark.timeout(SECONDS)
def test_a_job_outlives_a_log_that_is_cut_off_and_rotated(pods: Pods) -> None:
    """Connections to logs have an end (4 hours, or a load balancer's), and kubelets keep the last 10 MiB."""
    process = pods.begin("talks", TALKS, "-e", "pod_output=100k", word="talks")
    said: list[str] = []
    reading = threading.Thread(target=lambda: said.extend(process.stdout or []))  # or it waits for us, not for its pods
    reading.start()
    pod = pods.pod_of("talks", 1)
    (follower,) = [each.pid for each in descendants(process.pid) if follows(each.pid, pod)]
    os.kill(follower, signal.SIGSTOP)
    seen, until = set[str](), time.monotonic() + 120
    while len(seen) < 3 and time.monotonic() < until:  # the second file that was rotated away was never read
        seen |= set(pods.cluster.shell(f"ls /var/log/pods/default_{pod}_*/ranks").stdout.decode().split())
        time.sleep(1)
    os.kill(follower, signal.SIGKILL)
    while not any(follows(each.pid, pod) for each in descendants(process.pid)) and time.monotonic() < until:
        time.sleep(0.2)
    for number in range(2):
        done = pods.cluster.ask("exec", pods.pod_of("talks", number), "--", "touch", "/torchfleet/enough")
        assert done.returncode == 0, done.stderr
    reading.join()
    assert process.wait() == 0 and pods.result("talks")["state"] == "succeeded", "".join(said[-40:])
    told = [line for line in said if "its machine rotated a part of its log away" in line]
    assert "tf-talks-1" in {line.partition(":")[0] for line in told}, f"{seen}: {told}: {''.join(said[-40:])[-3000:]}"


def follows(pid: int, pod: str) -> bool:
    """Whether a process is a kubectl that reads the log of a pod."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return False
    return "logs" in words and pod in words
