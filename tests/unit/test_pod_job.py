"""A job in pods beside others: what of a cluster is whose, and what a pod may send."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import BadFrame
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import Reason
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import Report
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.framed_log import Here, LogReader, lines_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.identity import owner
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.jobs_there import jobs_there
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.kubectl import (
    KubeCode,
    Kubectl,
    KubeError,
    pod_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.manifest import JOB_ID, OWNER, Field, Thing
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.output_files import OutputFiles
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_following import PodFollowing, PodSeat
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_job import submit, take_away
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_plan import name_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_request import parse_volumes


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
    there = jobs_there(StandIn(*rows), "")
    assert list(there.taken) == ["done", "failed"]
    assert there.going == ["one-of-two-pods", "runs", "waits-for-a-quota", "waits-for-kueue"]
    assert list(jobs_there(StandIn(rows[5]), "of-bob").taken) == ["of-bob"]  # by its name


def test_an_object_that_poses_as_one_of_an_ended_job_does_not_end_a_running_one() -> None:
    """What is deleted is found by a name that is made of the id: another id can have the same."""
    running = job("FOO", active=1)
    posing = {**job(name_of("FOO").removeprefix("tf-")), "kind": "ConfigMap"}
    there = jobs_there(StandIn(running, posing), "")
    assert there.taken == {} and there.going == ["FOO"]


def test_an_object_of_a_job_cannot_have_another_job_ended_with_it() -> None:
    """Whoever may create a ConfigMap gives it the label of one job, and the id of another."""
    posing = {**job("other"), "kind": "ConfigMap"}
    assert list(jobs_there(StandIn(job("mine", active=1), posing), "mine").taken) == ["mine"]
    assert list(jobs_there(StandIn(posing), "mine").taken) == ["mine"]


def test_a_job_of_the_same_name_is_neither_joined_nor_ended() -> None:
    """Both would be found by one label: what cannot be created would take the other one with it."""
    cluster = StandIn(job("demo", who="bob@desk", active=1))
    with pytest.raises(InputError, match=r"job_id: got .*the cluster has a job of that name \(job.batch/tf-demo\)"):
        submit(cluster, [Thing("Job", "tf-demo-0", ())], "torchfleet.dev/job=tf-demo")
    assert set(cluster.asked) == {"get"}
    alone = StandIn()
    submit(alone, [Thing("Job", "tf-demo", (Field(("apiVersion",), "batch/v1", "it is a Job"),))], "x=tf-demo")
    assert alone.asked[-1] == "create"


class Lost(StandIn):
    """A cluster whose answer to `verb` does not come, though it does what it was told."""

    def __init__(self, verb: str, code: KubeCode) -> None:
        super().__init__()
        self.verb, self.code, self.stuck = verb, code, False

    def run(self, *words: str, **given: Any) -> str:
        said = super().run(*words, **given)
        if words[0] == self.verb or (self.stuck and words[0] == "delete"):
            raise KubeError(self.code, f"kubectl {words[0]}: no")
        return said


JOB = Thing("Job", "tf-demo", (Field(("apiVersion",), "batch/v1", "it is a Job"),))


def test_who_may_not_read_logs_starts_nothing() -> None:
    """The job would run, and nobody would know what its ranks do and how they end."""
    cluster = Lost("auth", KubeCode.FAILED)
    with pytest.raises(KubeError, match=r"you may not read logs of pods \(get pods/log\)"):
        submit(cluster, [JOB], "x=y")
    assert cluster.asked == ["get", "auth"]
    with pytest.raises(KubeError, match="kubectl auth: no"):
        submit(Lost("auth", KubeCode.NO_ANSWER), [JOB], "x=y")


@pytest.mark.parametrize(("code", "undone"), [(KubeCode.FAILED, False), (KubeCode.NO_ANSWER, True)])
def test_a_job_is_taken_away_whose_creation_had_no_answer(code: KubeCode, undone: bool) -> None:
    """It may be there, and run with nobody to follow it. One that was refused is not."""
    cluster = Lost("create", code)
    with pytest.raises(KubeError, match="kubectl create: no"):
        submit(cluster, [JOB], "x=y")
    assert ("delete" in cluster.asked) == undone


def test_what_is_left_of_a_job_that_could_not_be_created_is_said() -> None:
    cluster = Lost("create", KubeCode.NO_ANSWER)
    cluster.stuck = True
    with pytest.raises(
        KubeError, match=r"kubectl create: no; what is left in the cluster is not known: .*clean.yml"
    ) as e:
        submit(cluster, [JOB], "x=y")
    assert e.value.code == KubeCode.NO_ANSWER


class Late(StandIn):
    """A cluster of which a pod is left after the first deletion. `ended`: its machine said that it is over."""

    def __init__(self, first: str, ended: bool = False, why: str = "") -> None:
        super().__init__()
        self.first, self.ended, self.why, self.pods_left = first, ended, why, ["pod/late"]

    def run(self, *words: str, **_given: Any) -> str:
        self.asked.append(words[0])
        if words[0] == "delete" and self.asked.count("delete") == 1:
            if self.why:
                raise KubeError(KubeCode.FAILED, self.why)
            return self.first
        if words[0] == "delete":
            self.pods_left = []
        if "--output=json" not in words:
            return "".join(f"{name}\n" for name in self.pods_left)
        state = {"terminated": {"exitCode": 0}} if self.ended else {"running": {}}
        status = {"containerStatuses": [{"name": "ranks", "state": state}]}
        return json.dumps({"items": [{"metadata": {"name": "late"}, "status": status}]})


def test_a_pod_that_is_made_late_is_taken_away_too() -> None:
    """Controllers of a busy cluster see late that a Job is gone."""
    assert take_away(Late("job.batch/tf-demo\n"), "x=y") == []
    cluster = Late("pod/late\n")  # it was deleted, and does not go
    assert take_away(cluster, "x=y") == ["pod/late is left in the cluster: its machine does not answer"]
    assert cluster.asked.count("delete") == 1


def test_a_pod_that_has_ended_gets_the_time_that_its_machine_takes() -> None:
    late = "kubectl delete: error: timed out waiting for the condition on pods/late"
    assert take_away(Late("", ended=True, why=late), "x=y") == []
    assert take_away(Late("pod/late\n", ended=True), "x=y") == []
    cluster = Late("", why=late)
    assert take_away(cluster, "x=y") == [f"pod/late is left in the cluster: {late}"]
    assert cluster.asked.count("delete") == 1


class Silent(Late):
    """One whose API gives no answer after the first deletion."""

    def run(self, *words: str, **given: Any) -> str:
        if "--output=json" in words:
            raise KubeError(KubeCode.NO_ANSWER, "kubectl get gave no answer in 60 s")
        return super().run(*words, **given)


def test_what_was_seen_to_be_left_is_told_though_a_later_answer_lacks() -> None:
    late = "kubectl delete: error: timed out waiting for the condition on pods/late"
    assert take_away(Silent("", why=late), "x=y") == [f"pod/late is left in the cluster: {late}"]


class Warns(StandIn):
    """A cluster with a pod that waits, and with warnings."""

    def __init__(self, pods: list[dict[str, Any]], events: list[dict[str, Any]] | None) -> None:
        super().__init__()
        self.pods_there, self.events = pods, events

    def run(self, *words: str, **_given: Any) -> str:
        self.asked.append(words[1])
        if words[1] == "events" and self.events is None:
            raise KubeError(KubeCode.FAILED, "kubectl get: events is forbidden")
        return json.dumps({"items": self.events if words[1] == "events" else self.pods_there})


def event(name: str, message: str, when: str, field: str = "lastTimestamp") -> dict[str, Any]:
    return {"involvedObject": {"name": name}, "reason": "FailedCreate", "message": message, field: when}


EVENTS = [
    event("tf-demo-1", "exceeded quota", "2026-01-01T10:00:02Z"),
    event("tf-demo-1", "something before", "2026-01-01T10:00:01Z", "eventTime"),
    event("tf-demo-10", "of another job", "2026-01-01T10:00:09Z"),
]
WAITS = {
    "metadata": {"name": "tf-demo-1-abcde"},
    "spec": {"hostname": "tf-demo-1"},
    "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no room"}]},
}


@pytest.mark.parametrize(
    ("pods", "events", "why"),
    [
        ([], EVENTS, "FailedCreate: exceeded quota"),
        ([WAITS], EVENTS, "no room"),
        ([], [], "nothing makes them: no operator for this kind runs, or a queue holds the job"),
        ([], None, "nothing makes them: no operator for this kind runs, or a queue holds the job"),
    ],
)
def test_who_waits_for_pods_is_told_why_they_do_not_start(
    tmp_path: Path, pods: list[dict[str, Any]], events: list[dict[str, Any]] | None, why: str
) -> None:
    """While it waits, once, and at the end of pod_start_timeout."""
    order: Any = {"placement": [{"rank": rank, "host": f"tf-demo-{rank}"} for rank in range(2)], "head": "tf-demo-0"}
    said: list[str] = []
    cluster = Warns(pods, events)
    following = PodFollowing(cluster, "tf-demo", order, tmp_path, 60.0, lambda _line: None, said.append)
    following.seats["tf-demo-0"].placed = True
    following.look_now()
    assert said == [] and "events" not in cluster.asked
    for _each in range(2):
        following.waiting.due = 0.0
        following.look_now()
    assert said == [f"1 of 2 pods have not started yet: {why}"]
    assert following.reason_to_end() is None
    following.began -= 61.0
    found = following.reason_to_end()
    assert found and found[0].detail == f"1 of 2 pods did not start in 60 s: {why}"


def test_pods_that_wait_for_others_are_not_named(tmp_path: Path) -> None:
    order: Any = {"placement": [{"rank": 0, "host": "tf-demo-0"}], "head": "tf-demo-0"}
    runs = {"containerStatuses": [{"name": "ranks", "state": {"running": {}}}]}
    pod = {"metadata": {"name": "tf-demo-0-abcde"}, "spec": {"hostname": "tf-demo-0"}, "status": runs}
    cluster = Warns([pod], EVENTS)
    following = PodFollowing(cluster, "tf-demo", order, tmp_path, 60.0, lambda _line: None, lambda _line: None)
    following.seats["tf-demo-0"].pod = pod_of(pod, ["tf-demo-0"])
    following.began -= 61.0
    found = following.reason_to_end()
    assert found and found[0].detail == "1 of 1 pods did not start in 60 s" and cluster.asked == []


def test_an_image_has_its_time_from_when_it_was_first_not_there(tmp_path: Path) -> None:
    """A pod may have waited for room for long, and a registry not answer once after that."""
    order: Any = {"placement": [{"rank": 0, "host": "tf-demo-0"}], "head": "tf-demo-0"}
    following = PodFollowing(StandIn(), "tf-demo", order, tmp_path, 600.0, lambda _line: None, lambda _line: None)
    (seat,) = following.seats.values()
    following.began -= 300.0

    def seen(waits: dict[str, str]) -> tuple[Reason, str] | None:
        states = [{"name": "ranks", "state": {"waiting": waits}}]
        pod = {"metadata": {"name": "tf-demo-0-abcde"}, "spec": {"hostname": "tf-demo-0"}}
        following.look_at(seat, pod_of({**pod, "status": {"containerStatuses": states}}, ["tf-demo-0"]))
        return following.reason_to_end()

    assert seen({"reason": "ErrImagePull", "message": "no such host"}) is None
    assert seen({"reason": "ImagePullBackOff", "message": "Back-off pulling image"}) is None
    seat.unpulled -= 21.0
    assert seen({"reason": "ContainerCreating"}) is None
    assert seen({"reason": "ErrImagePull", "message": "no such host"}) is None
    seat.unpulled -= 21.0
    found = seen({"reason": "ImagePullBackOff", "message": "Back-off pulling image"})
    assert found and found[0].detail == "ImagePullBackOff: no such host"
    assert seen({"reason": "InvalidImageName"}) is not None


def test_a_pod_that_its_operator_makes_again_is_another_one(tmp_path: Path) -> None:
    """It has the same name, and ranks do not start again in it."""
    order: Any = {"placement": [{"rank": 0, "host": "tf-demo-worker-0"}], "head": "tf-demo-worker-0"}
    following = PodFollowing(StandIn(), "tf-demo", order, tmp_path, 60.0, lambda _line: None, lambda _line: None)
    for uid, doubts in (("u-1", []), ("u-1", []), ("u-2", ["tf-demo-worker-0 is lost: its pod was deleted"])):
        pod = pod_of({"metadata": {"name": "tf-demo-worker-0", "uid": uid}}, ["tf-demo-worker-0"])
        following.take_pods([pod] if pod else [])
        assert [why.detail for why, _doubt, _host in following.doubts()] == doubts


def test_a_pod_whose_log_was_rotated_goes_on(tmp_path: Path) -> None:
    """Its first frames are gone, and with them perhaps that its ranks are there."""
    order: Any = {"placement": [{"rank": 0, "host": "tf-demo-0"}], "head": "tf-demo-0"}
    said: list[str] = []
    following = PodFollowing(StandIn(), "tf-demo", order, tmp_path, 60.0, lambda _line: None, said.append)
    (seat,) = following.seats.values()
    reading, writing = os.pipe()
    os.write(writing, b"".join(f"{line}\n".encode() for line in lines_of({"kind": "beat"}, 70_000)))
    os.close(writing)
    following.read_log(seat, reading)
    os.close(reading)
    assert seat.placed and not seat.gone and following.end is None
    assert said == ["tf-demo-0: its machine rotated a part of its log away: some of its output may be missing"]


def test_metrics_have_an_end(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path, "pod_output")
    files.room = 200
    report: Report = {"kind": "report", "rank": 0, "values": {"loss": 0.1}}  # type: ignore[typeddict-item]
    with pytest.raises(BadFrame, match="all nodes send more than"):
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
    following = PodFollowing(StandIn(), "tf-demo", order, tmp_path, 60.0, lambda _line: None, said.append)
    following.on_frame(PodSeat("tf-demo-1"), here(1))
    assert len(said) == 1
    with pytest.raises(BadFrame, match="takes itself for pod 0"):
        following.on_frame(PodSeat("tf-demo-1"), here(0))


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
    with pytest.raises(InputError, match="two claims are mounted at the same path"):
        parse_volumes("pod_volumes", "a:/data,b:/data/")
