"""The lease of a job in pods: whoever is alone ends, and nobody goes on unseen."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.pod_lease import PodLease
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.kubectl import KubeCode, Kubectl, KubeError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.lease import Lease
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.manifest import Field, Thing
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_following import PodFollowing
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_job import lease_for, submit
from tests.unit.test_pod_manifest import made, objects, script

__all__ = ["script"]  # a fixture
JOB = Thing("Job", "tf-demo", (Field(("apiVersion",), "batch/v1", "it is a Job"),))


class StandIn(Kubectl):
    """A cluster that notes what it is told to do. `refused`: the word that its user has no right to."""

    def __init__(self, refused: str = "") -> None:
        super().__init__()
        self.refused, self.asked = refused, list[tuple[str, ...]]()

    def run(self, *words: str, **_given: Any) -> str:
        self.asked.append(words)
        if words[0] == self.refused:
            raise KubeError(KubeCode.FAILED, f"kubectl {words[0]}: it is forbidden")
        pod = {"metadata": {"name": "tf-demo-0-abcde"}, "spec": {"hostname": "tf-demo-0"}}
        return json.dumps({"items": [pod]}) if "--output=json" in words else ""

    def verbs(self) -> list[str]:
        return [words[0] for words in self.asked]


def earlier(lease: PodLease, seconds: float) -> None:
    """Let so many seconds pass for a lease."""
    lease.changed -= seconds
    lease.looked -= seconds


def test_a_pod_s_lease_holds_as_long_as_its_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "renewed"
    path.write_text("one")
    lease = PodLease(str(path), 100.0)
    earlier(lease, 90.0)
    assert not lease.is_over()
    path.write_text("two")
    earlier(lease, 90.0)
    assert not lease.is_over()
    earlier(lease, 90.0)
    assert not lease.is_over()
    earlier(lease, 90.0)  # 180 since the change
    assert lease.is_over()


def test_a_file_that_cannot_be_read_renews_nothing(tmp_path: Path) -> None:
    """Else a pod with a broken mount would go on for ever."""
    path = tmp_path / "renewed"
    path.write_text("one")
    lease = PodLease(str(path), 100.0)
    path.unlink()
    earlier(lease, 101.0)
    assert lease.is_over()
    assert not PodLease(str(path), 100.0).is_over()  # it is not there yet


def test_the_controller_renews_before_the_lease_is_over() -> None:
    cluster = StandIn()
    lease = Lease(cluster, "tf-demo", 60.0)
    lease.renew()
    lease.renew()  # not yet
    assert cluster.verbs() == ["patch"]
    assert cluster.asked[0][1:4] == ("configmap", "tf-demo-lease", "--type=merge")
    lease.due -= 15.0
    time.sleep(0.002)  # a time has milliseconds
    lease.renew()
    first, second = (json.loads(words[4].partition("=")[2])["data"]["renewed"] for words in cluster.asked)
    assert first < second  # another content: kubelets bring no ConfigMap that is the same


@pytest.mark.parametrize(("given", "deadline"), [({}, None), ({"job_timeout": 100}, 100 + 300 + 600)])
def test_pods_that_do_not_start_have_an_end_until_all_ranks_run(
    script: Path, tmp_path: Path, given: dict[str, Any], deadline: int | None
) -> None:
    """No guard is there to end them."""
    job = made(script, pod_kind="jobs", pods=2, pod_start_timeout=300, **given)
    for name in ("tf-demo-0", "tf-demo-1"):
        assert objects(job)[f"Job {name}"]["spec"]["activeDeadlineSeconds"] == 300 + 60 + 120 + 2
    cluster, lease = StandIn(), lease_for(job)
    lease.kubectl = cluster
    said: list[object] = []
    following = PodFollowing(cluster, "tf-demo", job.order["job"], tmp_path, 60.0, said.append, said.append, lease)
    following.look_now()
    assert [words[1] for words in cluster.asked if words[0] == "patch"] == ["configmap"]
    for seat in following.seats.values():
        seat.placed = True
    following.look_now()
    following.look_now()
    (words,) = [words for words in cluster.asked if words[:2] == ("patch", "jobs.batch")]
    assert words[2:4] == ("tf-demo-0", "tf-demo-1")
    assert json.loads(words[5].partition("=")[2]) == {"spec": {"activeDeadlineSeconds": deadline}}


def test_who_may_not_renew_starts_nothing() -> None:
    """The pods would end in the middle of their work, and nobody would know why."""
    cluster = StandIn(refused="patch")
    with pytest.raises(KubeError, match="kubectl patch: it is forbidden"):
        submit(cluster, [JOB], "x=y", Lease(cluster, "tf-demo", 60.0))
    assert cluster.verbs() == ["get", "auth", "create", "patch", "delete", "get"]  # to see whether anything is left


def test_a_renewal_that_fails_for_the_lease_ends_the_job(tmp_path: Path) -> None:
    """As no answer of the API does: the pods do not know of us any more."""
    cluster = StandIn(refused="patch")
    order: Any = {"placement": [{"rank": 0, "host": "tf-demo-0"}], "head": "tf-demo-0", "lease": 60.0}
    lease = Lease(cluster, "tf-demo", 60.0)
    following = PodFollowing(cluster, "tf-demo", order, tmp_path, 60.0, lambda _line: None, lambda _line: None, lease)
    following.look_now()
    assert following.seats["tf-demo-0"].pod  # what the pods do is seen all the same
    following.unanswered = time.monotonic() - 61.0
    with pytest.raises(KubeError, match="kubectl patch"):
        following.look_now()


@pytest.mark.parametrize("kind", ["indexed", "jobs", "pytorchjob", "trainjob", "mpijob"])
def test_every_pod_that_is_followed_has_the_lease(script: Path, kind: str) -> None:
    found = objects(made(script, pod_kind=kind, pods=2, lease=20))
    assert list(found["ConfigMap tf-demo-lease"]["data"]) == ["renewed"]
    text = json.dumps(found)
    assert text.count('"mountPath": "/etc/torchfleet-lease"') == text.count('"mountPath": "/etc/torchfleet"') > 0
    assert text.count('"configMap": {"name": "tf-demo-lease"}') == text.count('"configMap": {"name": "tf-demo"}')


def test_a_job_that_nobody_follows_has_none(script: Path) -> None:
    found = objects(made(script, pods=2, pod_manifest="job.json"))
    assert "lease" not in json.dumps(found)
