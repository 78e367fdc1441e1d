"""Memory of pods: what the kernel killed, by codes of the cluster and of records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.kubectl import Kubectl
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.outcome import keep, result_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_following import PodFollowing
from tests.unit.test_pod_manifest import made, script

__all__ = ["script"]  # a fixture
HOSTS = ("tf-demo-0", "tf-demo-1")


def record(rank: int, **ended: Any) -> dict[str, Any]:
    own = {"rank": rank, "local_rank": 0, "host": HOSTS[rank], "wrapper_pid": 7, "cpus": [], "started": 100.0}
    return {**own, "ended": 110.0, "ended_by_us": False, **ended}


def report(rank: int, **ended: Any) -> dict[str, Any]:
    lines = {str(rank): ("stderr", "")}
    return {
        "records": {str(rank): record(rank, **ended)},
        "lines": lines,
        "leftovers": [],
        "launcher": {},
        "metrics": [],
    }


KILLED = report(1, rc=137, signal=9)
OURS = report(0, rc=143, signal=15, ended_by_us=True)


def outcome(script: Path, reports: dict[str, Any], end: dict[str, Any], short: list[str]) -> dict[str, Any]:
    order = made(script, pods=2).order["job"]
    return dict(result_of(order, reports, end, 100.0, short))  # type: ignore[arg-type]


@pytest.mark.parametrize(("short", "code"), [(["tf-demo-1"], "out_of_memory"), (["tf-demo-0"], None), ([], None)])
def test_a_rank_that_was_killed_in_a_pod_without_memory(
    script: Path, tmp_path: Path, short: list[str], code: str | None
) -> None:
    """Of a pod that was not short of memory SIGKILL came from somebody else."""
    reports = json.loads(json.dumps({HOSTS[0]: OURS, HOSTS[1]: KILLED}))
    end = {"reason": "rank_failed", "detail": "rank 1 failed", "at": 111.0, "host": HOSTS[1]}
    result = outcome(script, reports, end, short)
    failure = result["first_failure"]
    assert (result["state"], failure["rank"], failure["host"]) == ("failed", 1, HOSTS[1])
    assert failure["cause"].startswith("killed by SIGKILL") and ("OOMKilled" in failure["cause"]) == bool(code)
    (tmp_path / "ranks" / "1").mkdir(parents=True)
    keep(tmp_path, result, reports)  # type: ignore[arg-type]
    kept = tmp_path / "ranks" / "1" / "record.json"  # the pod's own is what is there without this
    assert kept.exists() == bool(code)
    assert not code or json.loads(kept.read_text())["error_code"] == code


@pytest.mark.parametrize("rank", ["0", "7777"])
def test_a_node_writes_no_record_of_a_rank_that_is_not_its_own(script: Path, tmp_path: Path, rank: str) -> None:
    """It may say of any rank that it had no memory, and that it came up there."""
    false = {**record(1), "rc": 137, "error_code": "out_of_memory"}
    reports = {HOSTS[1]: {**report(1, rc=0), "records": {rank: false, "1": {**false, "rank": 1}}}}
    end = {"reason": "rank_failed", "detail": "rank 1 failed", "at": 111.0, "host": HOSTS[1]}
    keep(tmp_path, outcome(script, reports, end, []), reports)  # type: ignore[arg-type]
    assert [path.name for path in (tmp_path / "ranks").iterdir()] == ["1"] and (tmp_path / "result.json").exists()


def test_a_rank_that_we_killed_is_not_blamed_on_memory(script: Path) -> None:
    reports = {HOSTS[0]: OURS, HOSTS[1]: report(1, rc=137, signal=9, ended_by_us=True)}
    end = {"reason": "timed_out", "detail": "job_timeout of 5 s", "at": 105.0, "host": HOSTS[1]}
    result = outcome(script, reports, end, ["tf-demo-1"])
    assert result["state"] == "timed_out" and "OOMKilled" not in json.dumps(result)


@pytest.mark.parametrize("short", [["tf-demo-1"], []])
def test_a_pod_that_was_killed_whole(script: Path, short: list[str]) -> None:
    """It says nothing: without the cluster's code it is lost."""
    end = {"reason": "lost", "detail": "tf-demo-1 is lost: its pod ended", "at": 111.0, "host": HOSTS[1]}
    result = outcome(script, {HOSTS[0]: OURS}, end, short)
    failure = result["first_failure"]
    assert result["state"] == ("failed" if short else "lost")
    assert failure["host"] == HOSTS[1] and ("OOMKilled" in failure["cause"]) == bool(short)


class Cluster(Kubectl):
    """A cluster that says in its second answer how the container ended."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0

    def run(self, *_words: str, **_given: Any) -> str:
        self.answers += 1
        ended = {"terminated": {"reason": "OOMKilled", "exitCode": 1}}
        states = [{"name": "ranks", "state": ended if self.answers > 1 else {"running": {}}}]
        pod = {
            "metadata": {"name": "tf-demo-1-abcde"},
            "spec": {"hostname": HOSTS[1]},
            "status": {"containerStatuses": states},
        }
        return json.dumps({"items": [pod]})


def test_the_cluster_is_asked_until_it_says_how_a_container_ended(tmp_path: Path) -> None:
    order: Any = {
        "placement": [{"rank": rank, "host": HOSTS[rank]} for rank in range(2)],
        "head": HOSTS[0],
        "lease": 60,
    }
    following = PodFollowing(Cluster(), "tf-demo", order, tmp_path, 60.0, lambda _line: None, lambda _line: None)
    for host, told in zip(HOSTS, (OURS, KILLED), strict=True):
        following.seats[host].report = told  # type: ignore[assignment]
    following.look_now()
    assert following.out_of_memory == []
    following.finish()
    assert following.out_of_memory == ["tf-demo-1"]
