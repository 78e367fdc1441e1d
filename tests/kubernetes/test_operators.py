"""Jobs of Kubeflow's operators and of Run:ai on a real cluster.

What makes their pods stands in for the operators (operators.py), and a program of ours for `runai` (runai_program.py).
So this proves what we do with pods of such names, labels, hosts and environment, and no operator and no Run:ai.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.driver import REPO
from tests.kubernetes.operators import Controllers, running
from tests.kubernetes.pods import PI, SECONDS, SLEEPS, Pods
from tests.kubernetes.test_kubernetes import FAILS, assert_lost, kill

HOSTS = {
    "mpijob": ("launcher", "worker-0"),
    "pytorchjob": ("master-0", "worker-0"),
    "trainjob": ("node-0-0", "node-0-1"),
    "runai": ("master-0", "worker-0"),
}
ALL = "mpijobs,pytorchjobs,trainjobs,trainingruntimes,jobs,pods,services,configmaps,secrets"


@pytest.fixture(scope="module")
def operators(pods: Pods) -> Iterator[Controllers]:
    program = pods.place / "bin" / "runai"
    program.parent.mkdir()
    words = shlex.join([sys.executable, str(REPO / "tests" / "kubernetes" / "runai_program.py")])
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o700)
    with running(pods.cluster) as controllers:
        yield controllers


def asking(pods: Pods, kind: str) -> tuple[str, ...]:
    """Return the words that ask for a job of a kind."""
    if kind != "runai":
        return ("-e", f"target={kind}")
    claims = ",".join(f"{claim}:{path}" for claim, path in pods.mounts.items())  # Run:ai has none to read only
    return ("-e", "target=runai", "-e", "pod_project=lab", "-e", "pod_namespace=default", "-e", f"pod_volumes={claims}")


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
    status, said = pods.train(name, *PI, *asking(pods, kind))
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
    status, said = pods.train(name, *asking(pods, kind), script=FAILS)
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
    process = pods.begin(name, SLEEPS, *asking(pods, kind))
    os.killpg(process.pid, signal.SIGINT)
    said, path = process.communicate()[0], pods.place / "runs" / name / "result.json"
    until = time.monotonic() + 120
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.5)
    assert pods.result(name)["state"] == "cancelled", said


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("kind", ["mpijob", "runai"])
def test_the_controller_is_killed_and_clean_ends_the_job(pods: Pods, kind: str) -> None:
    kill(pods.begin(f"orphan-{kind}", SLEEPS, *asking(pods, kind)))
    where = ("-e", f"target={kind}", "-e", "pod_namespace=default")
    status, said = pods.clean(*where)
    assert status == 0 and f"-e job_id=NAME ends one: orphan-{kind}" in said, said
    where = (*where, "-e", "pod_project=lab") if kind == "runai" else where
    status, said = pods.clean(*where, "-e", f"job_id=orphan-{kind}")
    assert status == 0 and f"ended and taken away: orphan-{kind}" in said, said


@pytest.mark.timeout(SECONDS)
def test_a_pod_is_deleted_that_its_operator_makes_again(pods: Pods) -> None:
    """With the same name: a rank that starts again alone waits for the others for ever."""
    process, worker = pods.begin("again", SLEEPS, *asking(pods, "mpijob")), "tf-again-worker-0"
    assert pods.cluster.ask("delete", "--grace-period=0", "--force", "pod", worker).returncode == 0
    assert_lost(pods, process, "again", f"{worker} is lost: its pod was deleted")
