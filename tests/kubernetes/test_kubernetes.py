"""`train.yml -e target=kubernetes` on a real cluster: jobs that end in every way that they can (`make kubernetes`)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes.processes import descendants
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.pod_lease import DELAY_SECONDS
from tests.kubernetes.cluster import PAUSE, TOKEN
from tests.kubernetes.pods import PI, SECONDS, SLEEPS, Pods

pytestmark = pytest.mark.usefixtures("nothing_is_left")
RIGHTS = """import json, os
names = ("CapBnd", "CapEff", "NoNewPrivs", "Seccomp")
rows = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"uid": os.getuid(), **{name: int(rows[name], 16) for name in names}}))
"""
EATS = """import os, time
print("rank", os.environ["RANK"], "eats", flush=True)
held = b"x" * (2 << 30) if os.environ["RANK"] == "3" else b""
time.sleep(600)
"""
# Of its pod's processes the first, which is the guard's parent, goes before the one that eats (proc(5), oom_score_adj).
OFFERS = """import os
if os.environ["RANK"] == "3":
    open("/proc/1/oom_score_adj", "w").write("1000")
"""
FAILS = """import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
if os.environ["RANK"] == "3":
    sys.exit("ValueError: rank three does not like this")
time.sleep(600)
"""


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
    kill(pods.begin("orphan", SLEEPS))
    status, said = pods.clean()
    assert status == 0 and "-e job_id=NAME ends one: orphan" in said, said
    status, said = pods.clean("-e", "job_id=orphan")
    assert status == 0 and "ended and taken away: orphan" in said, said
    assert pods.left() == "" and pods.processes() == []


@pytest.mark.timeout(SECONDS)
def test_only_ansible_playbook_is_killed(pods: Pods) -> None:
    """Its worker process, which follows the job, ends it."""
    process = pods.begin("half", SLEEPS)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()  # the worker goes on
    until = time.monotonic() + 120
    while (pods.left() or pods.processes()) and time.monotonic() < until:
        time.sleep(0.5)
    while not (pods.place / "runs" / "half" / "result.json").exists() and time.monotonic() < until:
        time.sleep(0.5)
    result = pods.result("half")
    assert (result["state"], result["first_failure"]["cause"]) == ("lost", "ansible-playbook was killed")
    assert pods.left() == "" and pods.processes() == []


def kill(process: subprocess.Popen[str]) -> None:
    """Kill ansible-playbook and all that it started, as when its machine loses power."""
    started = [each.pid for each in descendants(process.pid)]
    for pid in (process.pid, *started):
        os.kill(pid, signal.SIGKILL)
    process.communicate()


def pods_that_wait(pods: Pods) -> list[str]:
    """Return the pods of a job whose image is nowhere."""
    return [name for name in (pods.pod_of("waits", number) for number in (0, 1)) if name]


@pytest.mark.timeout(SECONDS)
def test_the_controller_is_killed_and_nobody_comes(pods: Pods) -> None:
    """Its pods end when nobody renews their lease, or never start; those whose controller lives go on."""
    lease = ("-e", "lease=10")
    other, process = pods.begin("bystander", SLEEPS, *lease), pods.begin("alone", SLEEPS, *lease)
    waits = pods.start("waits", SLEEPS, *lease, "-e", "pod_image=registry.invalid/none:1", "-e", "pod_start_timeout=15")
    try:
        while not pods.pod_of("waits", 1):
            assert waits.poll() is None
        assert len(pods.processes("bystander")) == len(pods.processes("alone")) == 4
        kill(process)
        kill(waits)
        until = time.monotonic() + 10 + DELAY_SECONDS + 120
        while (found := [*pods.processes("alone"), *pods_that_wait(pods)]) and time.monotonic() < until:
            time.sleep(1)
        assert found == []
        assert len(pods.processes("bystander")) == 4 and other.poll() is None
        status, said = pods.clean()
        assert status == 0 and "ended and taken away: alone, waits" in said, said  # it is over: no name is needed
        assert len(pods.processes("bystander")) == 4
    finally:
        for each in (other, process, waits):
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGINT)
                each.communicate()
    until = time.monotonic() + 120
    while pods.left() and time.monotonic() < until:
        time.sleep(0.5)


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"pod_kind": "indexed"}, 'unknown field "completionMode"'),
        ({"pod_image": PAUSE, "python": None}, "executable file not found"),
        ({"pod_image": "registry.invalid/none:1"}, "not started|ErrImagePull|ImagePullBackOff"),
        ({"python": "/usr/bin/python3"}, "No module named torch|torch"),
        ({"pod_volumes": "nothing:/nothing", "pod_start_timeout": 15}, 'persistentvolumeclaim "nothing" not found'),
        ({"pod_security": "restricted"}, "runAsNonRoot and image will run as root"),
        ({"pod_context": "other"}, 'context "other" does not exist'),
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
def test_a_pod_is_evicted(pods: Pods) -> None:
    """As `kubectl drain` does it."""
    process = pods.begin("evicted", SLEEPS)
    name = pods.pod_of("evicted", 1)
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    path = f"/api/v1/namespaces/default/pods/{name}/eviction"
    done = pods.cluster.ask("create", f"--raw={path}", "--filename=-", given=json.dumps(eviction))
    assert done.returncode == 0, done.stderr
    assert_lost(pods, process, "evicted", "tf-evicted-1 is lost: its pod was deleted")


@pytest.mark.timeout(SECONDS)
def test_a_pod_is_preempted(pods: Pods) -> None:
    """By a pod of a higher class, for which the machine has no room beside the job."""
    process = pods.begin("preempted", SLEEPS, "-e", "pod_cpus=100m")
    cores = int(pods.cluster.ask("get", "nodes", "--output=jsonpath={.items[0].status.allocatable.cpu}").stdout)
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": preemptor(f"{cores * 1000 - 150}m")})
    try:
        done = pods.cluster.ask("create", "--filename=-", given=given)
        assert done.returncode == 0, done.stderr
        assert_lost(pods, process, "preempted", "is lost: its pod was deleted")
        state = pods.cluster.ask("get", "pod", "urgent", "--output=jsonpath={.spec.nodeName}").stdout
        assert state == "machine"  # the bystander has the room
    finally:
        pods.cluster.ask("delete", "--grace-period=0", "--force", "pod/urgent", "priorityclass/urgent")


def preemptor(cores: str) -> list[dict[str, Any]]:
    """Return a class, and a pod of it that asks for so many cores."""
    container = {"name": "only", "image": PAUSE, "resources": {"requests": {"cpu": cores}}}
    spec = {"priorityClassName": "urgent", "containers": [container], "terminationGracePeriodSeconds": 0}
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "urgent"}, "spec": spec}
    return [{**urgent, "value": 1000}, pod]


def assert_lost(pods: Pods, process: subprocess.Popen[str], name: str, why: str) -> None:
    """Check that a job has ended as lost, with one line that says why, and that no process of it is left."""
    said = process.communicate()[0]
    result = pods.result(name)
    assert process.returncode != 0 and result["state"] == "lost", said
    assert why in result["first_failure"]["cause"], said
    assert "Traceback" not in said and pods.processes() == []


@pytest.mark.timeout(SECONDS)
def test_job_timeout_ends_the_pods(pods: Pods) -> None:
    status, said = pods.train("late", "-e", "job_timeout=5", script=SLEEPS)
    assert status != 0 and pods.result("late")["state"] == "timed_out", said
    assert "job_timeout of 5 s" in said and "Traceback" not in said and pods.processes() == []


@pytest.mark.timeout(SECONDS)
def test_a_rank_takes_more_memory_than_its_pod_has(pods: Pods) -> None:
    """The kernel kills that rank, and the guard beside it lives. A code of the kubelet says why."""
    status, said = pods.train("greedy", "-e", "pod_memory=1Gi", script=EATS)
    result = pods.result("greedy")
    assert status != 0 and result["state"] == "failed", said
    failure = result["first_failure"]
    assert (failure["rank"], failure["host"]) == (3, "tf-greedy-1"), said
    assert failure["cause"] == "killed by SIGKILL, for its pod has no more memory (OOMKilled)", said
    record = json.loads((pods.place / "runs" / "greedy" / "ranks" / "3" / "record.json").read_text())
    assert record["error_code"] == "out_of_memory" and "pod-memory" in said
    assert [row["state"] for row in result["ranks"]] == ["ended"] * 3 + ["failed"] and pods.processes() == []


@pytest.mark.timeout(SECONDS)
def test_a_pod_is_killed_whole_for_want_of_memory(pods: Pods) -> None:
    """As kernels with cgroup v2 do it (Kubernetes 1.28 and newer): nothing in the pod can say so."""
    status, said = pods.train("killed", "-e", "pod_memory=1Gi", "-e", "pod_cpus=500m", script=OFFERS + EATS)
    result = pods.result("killed")
    assert status != 0 and result["state"] == "failed", said
    assert (result["first_failure"]["rank"], result["first_failure"]["host"]) == (None, "tf-killed-1"), said
    why = "all of tf-killed-1 was killed, for the pod has no more memory (OOMKilled)"
    assert result["first_failure"]["cause"] == why and "Traceback" not in said
    assert {row["state"] for row in result["ranks"]} == {"ended", "silent"} and pods.processes() == []


@pytest.mark.timeout(SECONDS)
def test_as_a_user_without_rights(pods: Pods) -> None:
    """Ranks have no capability, no way to new ones, a filter of system calls, and the uid that was asked for."""
    status, said = pods.train("limited", "-e", "pod_security=restricted", "-e", "pod_user=1000", script=RIGHTS)
    assert status == 0, said
    found = (pods.place / "runs" / "limited" / "ranks" / "0" / "stdout").read_text()
    assert json.loads(found) == {"uid": 1000, "CapBnd": 0, "CapEff": 0, "NoNewPrivs": 1, "Seccomp": 2}
    status, said = pods.train("open", "-e", "pod_security=none", script=RIGHTS)
    assert status == 0, said
    found = json.loads((pods.place / "runs" / "open" / "ranks" / "0" / "stdout").read_text())
    assert found["uid"] == 0 and found["CapEff"] and not found["Seccomp"]


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
