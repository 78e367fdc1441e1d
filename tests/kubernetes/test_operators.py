"""Jobs of Kubeflow's operators on a real cluster. What makes their pods stands in for the operators (operators.py).

So they prove what we do with pods of such names, labels, hosts and environment, and no operator.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.kubernetes.operators import Controllers, running
from tests.kubernetes.pods import PI, SECONDS, SLEEPS, Pods
from tests.kubernetes.test_kubernetes import FAILS, assert_lost, kill

HOSTS = {
    "mpijob": ("launcher", "worker-0"),
    "pytorchjob": ("master-0", "worker-0"),
    "trainjob": ("node-0-0", "node-0-1"),
}
ALL = "mpijobs,pytorchjobs,trainjobs,trainingruntimes,jobs,pods,services,configmaps,secrets"


@pytest.fixture(scope="module")
def operators(pods: Pods) -> Iterator[Controllers]:
    with running(pods.cluster) as controllers:
        yield controllers


@pytest.fixture(autouse=True)
def nothing_is_left(pods: Pods, operators: Controllers) -> Iterator[None]:
    """Nor of what the operator made; the cluster takes that away after its job."""
    yield
    until, left = time.monotonic() + 60, ["all"]
    while left and time.monotonic() < until:
        rows = pods.cluster.ask("get", ALL, "--output=name").stdout.split()
        left = [row for row in rows if "/tf-" in row]
    assert left == [] and pods.processes() == [] and operators.errors == []


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("kind", HOSTS)
def test_two_pods_with_two_ranks(pods: Pods, kind: str) -> None:
    name = f"first-{kind}"
    status, said = pods.train(name, *PI, "-e", f"target={kind}")
    assert status == 0, said
    result = pods.result(name)
    assert result["state"] == "succeeded" and result["world_size"] == 4
    hosts = [f"tf-{name}-{host}" for host in HOSTS[kind]]
    assert [row["host"] for row in result["ranks"]] == [hosts[0], hosts[0], hosts[1], hosts[1]]
    assert abs(float(result["metrics"]["pi"]) - 3.14159265) < 1e-6
    assert "pi=" in (pods.place / "runs" / name / "ranks" / "0" / "stdout").read_text()


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("kind", HOSTS)
def test_a_rank_fails(pods: Pods, kind: str) -> None:
    name = f"fails-{kind}"
    status, said = pods.train(name, "-e", f"target={kind}", script=FAILS)
    result = pods.result(name)
    assert status != 0 and result["state"] == "failed", said
    failure = result["first_failure"]
    assert (failure["rank"], failure["host"]) == (3, f"tf-{name}-{HOSTS[kind][1]}"), said
    assert "rank three does not like this" in failure["message"]
    assert {row["state"] for row in result["ranks"]} <= {"failed", "ended"}


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("kind", HOSTS)
def test_the_user_ends_it(pods: Pods, kind: str) -> None:
    name = f"ctrl-c-{kind}"
    process = pods.begin(name, SLEEPS, "-e", f"target={kind}")
    os.killpg(process.pid, signal.SIGINT)
    said, path = process.communicate()[0], pods.place / "runs" / name / "result.json"
    until = time.monotonic() + 120
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.5)
    assert pods.result(name)["state"] == "cancelled", said


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("kind", HOSTS)
def test_the_controller_is_killed_and_clean_ends_the_job(pods: Pods, kind: str) -> None:
    kill(pods.begin(f"orphan-{kind}", SLEEPS, "-e", f"target={kind}"))
    status, said = pods.clean("-e", f"target={kind}")
    assert status == 0 and f"-e job_id=NAME ends one: orphan-{kind}" in said, said
    status, said = pods.clean("-e", f"target={kind}", "-e", f"job_id=orphan-{kind}")
    assert status == 0 and f"ended and taken away: orphan-{kind}" in said, said


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("kind", ["mpijob", "pytorchjob"])
def test_a_pod_is_deleted_that_its_operator_makes_again(pods: Pods, kind: str) -> None:
    """With the same name: a rank that starts again alone waits for the others for ever."""
    name = f"again-{kind}"
    process, worker = pods.begin(name, SLEEPS, "-e", f"target={kind}"), f"tf-{name}-worker-0"
    assert pods.cluster.ask("delete", "--grace-period=0", "--force", "pod", worker).returncode == 0
    assert_lost(pods, process, name, f"{worker} is lost: its pod was deleted")
