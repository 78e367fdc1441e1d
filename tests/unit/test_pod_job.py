"""A job in pods beside others: what of a cluster is whose, and what a pod may send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._kubernetes.pod_log import Here, LogReader, lines_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.forms import BadFrame
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.protocol import Report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.identity import owner
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._kubernetes.following import Following, Seat
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._kubernetes.jobs_there import jobs_there
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._kubernetes.kubectl import Kubectl
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._kubernetes.manifest import JOB_ID, OWNER, Field, Thing
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._kubernetes.pod_job import submit
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._kubernetes.pod_output import OutputFiles
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._kubernetes.pod_request import parse_volumes


class StandIn(Kubectl):
    """A cluster that has these Jobs, and notes what it is told to do."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        super().__init__()
        self.there, self.asked = list(jobs), list[str]()

    def run(self, *words: str, **_given: Any) -> str:
        self.asked.append(words[0])
        if words[0] == "get":
            names = "".join(f"job.batch/{row['metadata']['name']}\n" for row in self.there)
            return json.dumps({"items": self.there}) if "--output=json" in words else names
        return "{}"


def job(name: str, who: str = "", condition: str = "", **status: Any) -> dict[str, Any]:
    conditions = [{"type": condition, "status": "True"}] if condition else []
    notes = {JOB_ID: name, OWNER: who or owner()}
    return {
        "kind": "Job",
        "metadata": {"name": f"tf-{name}", "annotations": notes},
        "status": {"conditions": conditions, **status},
    }


def test_without_a_name_only_this_user_s_jobs_that_have_ended_are_taken_away() -> None:
    """A Job without pods is not over: Kueue or a quota may hold it."""
    rows = [
        job("failed", condition="Failed"),
        job("done", condition="Complete"),
        job("runs", active=1),
        job("waits-for-kueue", condition="Suspended"),
        job("waits-for-a-quota"),
        job("of-bob", who="bob@desk", condition="Complete"),
        *(job("one-of-two-pods", condition="Complete"), job("one-of-two-pods", active=1)),
    ]
    assert list(jobs_there(StandIn(*rows), "")) == ["done", "failed"]
    assert list(jobs_there(StandIn(rows[5]), "of-bob")) == ["of-bob"]  # by its name


def test_a_job_of_the_same_name_is_neither_joined_nor_ended() -> None:
    """Both would be found by one label: what cannot be created would take the other one with it."""
    cluster = StandIn(job("demo", who="bob@desk", active=1))
    with pytest.raises(InputError, match=r"job_id: got .*the cluster has a job of that name \(job.batch/tf-demo\)"):
        submit(cluster, [Thing("Job", "tf-demo-0", ())], "torchfleet.dev/job=tf-demo")
    assert set(cluster.asked) == {"get"}
    alone = StandIn()
    submit(alone, [Thing("Job", "tf-demo", (Field(("apiVersion",), "batch/v1", "it is a Job"),))], "x=tf-demo")
    assert alone.asked[-1] == "create"


def test_metrics_have_an_end(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path)
    files.room = 200
    report: Report = {"kind": "report", "rank": 0, "values": {"loss": 0.1}}  # type: ignore[typeddict-item]
    with pytest.raises(BadFrame, match="the pods send more than"):
        for _each in range(100):
            files.note_metrics(report)
    assert (tmp_path / "metrics.jsonl").stat().st_size <= 200


def here(number: int) -> Here:
    frame = {"kind": "here", "number": number, "said": [], "nic": "eth0", "rdma": [], "python": "3", "node": None}
    found = list(LogReader().take("".join(f"{line}\n" for line in lines_of(frame, 0)).encode()))
    assert found[0]["kind"] == "here"
    return found[0]


def test_a_pod_that_takes_itself_for_another_one_is_not_believed(tmp_path: Path) -> None:
    """Its ranks would be those of the other pod, and nobody would miss its own before pod_start_timeout."""
    order: Any = {"placement": [{"rank": rank, "host": f"tf-demo-{rank}"} for rank in range(2)], "head": "tf-demo-0"}
    said: list[str] = []
    following = Following(StandIn(), "tf-demo", order, tmp_path, 60.0, lambda _line: None, said.append)
    following.on_frame(Seat("tf-demo-1"), here(1))
    assert len(said) == 1
    with pytest.raises(BadFrame, match="takes itself for pod 0"):
        following.on_frame(Seat("tf-demo-1"), here(0))


def test_the_log_is_that_of_our_container(tmp_path: Path) -> None:
    """Of several containers kubectl shows the first, and a mesh of services puts its own there."""
    (tmp_path / "kubectl").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "kubectl").chmod(0o755)
    with Kubectl(program=str(tmp_path / "kubectl")).follow_log("tf-demo-0-abcde") as log:
        assert log.stdout and log.stdout.read() == b"logs --follow --container=ranks tf-demo-0-abcde\n"


@pytest.mark.parametrize(
    "path", ["/torchfleet", "//torchfleet/", "/etc//torchfleet", "/dev/shm/./x", "/etc/torchfleet-secret"]
)
def test_no_claim_lies_over_torchfleet_s_own_paths(path: str) -> None:
    with pytest.raises(InputError, match="is torchfleet's own in the pods: -e pod_volumes=claim:/scratch"):
        parse_volumes("pod_volumes", f"claim:{path}")


def test_two_claims_at_one_path_are_refused_however_it_is_written() -> None:
    with pytest.raises(InputError, match="two claims have one path"):
        parse_volumes("pod_volumes", "a:/data,b:/data/")
