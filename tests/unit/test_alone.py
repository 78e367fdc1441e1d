"""A job that is to have its nodes alone is asked for again while it is staged: the survey may have been too early."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job.node_job import NodeJob
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes import alone as alone_module
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.alone import NotAlone
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes import processes
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import RemoteProcess
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import refusal
from tests.unit.supervisors import PACKAGE, order_of_one, supervisor

NO_OTHERS = f"from {PACKAGE}.processes import processes as marks\n"
NO_OTHERS += "marks.marked = lambda *_given: []"


@pytest.fixture(autouse=True)
def no_jobs_of_other_homes(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may run some."""
    monkeypatch.setattr(processes, "marked", lambda *_given: [])


@pytest.fixture
def remotes() -> Iterator[list[RemoteProcess]]:
    made = [supervisor(NO_OTHERS), supervisor(NO_OTHERS)]
    yield made
    for remote in made:
        remote.close()


def staged(home: Path, remotes: list[RemoteProcess], **alone: bool) -> dict[str, dict[str, Any]]:
    """Have the supervisors stage a job each at the same time; return what they answer, by job id."""
    for remote, (job_id, exclusive) in zip(remotes, alone.items(), strict=True):
        remote.channel.send(
            {"kind": "stage", "order": order_of_one(home, job_id=job_id, exclusive=exclusive), "secrets": {}}
        )
    return {job_id: remote.answer(60) for remote, job_id in zip(remotes, alone, strict=True)}


@pytest.mark.parametrize("both", [True, False])
def test_of_two_that_start_at_once_one_is_refused(tmp_path: Path, remotes: list[RemoteProcess], both: bool) -> None:
    """Reproduced before: both had asked when neither was there, and both ran."""
    answers = staged(tmp_path, remotes, one=True, two=both)
    ((refused, running),) = ((name, answer["running"]) for name, answer in answers.items() if answer.get("reason"))
    (other,) = answers.keys() - {refused}
    assert [row["job_id"] for row in running] == [other]
    assert os.listdir(tmp_path / "jobs") == [other]  # nothing of the one that was refused


def test_of_two_heads_that_start_a_job_at_once_one_is_refused(tmp_path: Path, remotes: list[RemoteProcess]) -> None:
    """The whole way, until the controller hears of it. They wait for their turn until both were asked."""
    staging_lock = os.open(tmp_path / alone_module.WHOLE_JOB, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(staging_lock, fcntl.LOCK_EX)
    for remote, job_id in zip(remotes, ("one", "two"), strict=True):
        order = order_of_one(tmp_path, job_id=job_id, exclusive=True, head="w1")
        whole = {"job": order, "nodes": {"w1": order}, "routes": [], "secrets": {"w1": {}}, "files": {}}
        remote.channel.send({"kind": "run", "order": whole, "beats": True})
    for remote in remotes:
        assert remote.channel.receive(60)["kind"] == "beat"  # it is at work
    assert not (tmp_path / "jobs").exists()
    os.close(staging_lock)
    answers = {job_id: remote.answer(60) for remote, job_id in zip(remotes, ("one", "two"), strict=True)}
    ((refused, answer),) = ((name, answer) for name, answer in answers.items() if answer["kind"] == "refused")
    ((other, started),) = ((name, answer) for name, answer in answers.items() if name != refused)
    assert started["kind"] == "started"
    assert [row["job_id"] for row in answer["running"]["w1"]] == [other]
    assert os.listdir(tmp_path / "jobs") == [other]


def test_jobs_that_may_share_do_not_wait_for_each_other(tmp_path: Path, remotes: list[RemoteProcess]) -> None:
    held = os.open(tmp_path / alone_module.ONE_NODE, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_SH)  # a third one is being staged
    answers = staged(tmp_path, remotes, one=False, two=False)
    assert not any(answer.get("reason") for answer in answers.values())
    assert sorted(os.listdir(tmp_path / "jobs")) == ["one", "two"]
    os.close(held)


def test_a_job_that_was_told_of_the_other_is_not_kept_away(tmp_path: Path) -> None:
    first = NodeJob(order_of_one(tmp_path, job_id="first", exclusive=True), {})
    with pytest.raises(NotAlone):
        NodeJob(order_of_one(tmp_path, job_id="second"), {})
    second = NodeJob(order_of_one(tmp_path, job_id="second", known_jobs=["first"]), {})
    for part in (first, second):
        part.unstage()


def test_the_order_of_another_user_keeps_nobody_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduced before: a user whose process named a directory of his own had each job of root's refused."""
    first = NodeJob(order_of_one(tmp_path, job_id="first", exclusive=True), {})
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    second = NodeJob(order_of_one(tmp_path, job_id="second"), {})
    with pytest.raises(NotAlone):
        NodeJob(order_of_one(tmp_path, job_id="third", exclusive=True), {})
    for part in (first, second):
        part.unstage()


def test_a_node_without_ranks_is_no_node_of_the_job(tmp_path: Path) -> None:
    first = NodeJob(order_of_one(tmp_path, job_id="first", exclusive=True), {})
    elsewhere = {"placement": [{"rank": 0, "local_rank": 0, "host": "w2"}], "ranks": list[int]()}
    NodeJob(order_of_one(tmp_path, job_id="head", exclusive=True, **elsewhere), {}).unstage()
    first.unstage()


def test_the_lock_is_ones_own_and_waited_for_with_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone_module, "STAGING_LOCK_SECONDS", 0.0)
    with alone_module.staging_lock(str(tmp_path), alone_module.WHOLE_JOB, False):
        assert (tmp_path / alone_module.WHOLE_JOB).stat().st_mode & 0o777 == 0o600
        with (
            pytest.raises(OSError, match=f"another job is being staged.*{tmp_path}/head.lock"),  # for lslocks, fuser
            alone_module.staging_lock(str(tmp_path), "head.lock", True),
        ):
            pass
    with alone_module.staging_lock(str(tmp_path), alone_module.WHOLE_JOB, True):
        pass


def test_the_refusal_is_that_of_the_survey() -> None:
    order = {"job_id": "second", "exclusive": True, "placement": [{"host": "n1"}, {"host": "n1"}, {"host": "n2"}]}
    frame = {"reason": "", "running": {"n2": [{"job_id": "first", "owner": "alice", "own_home": True}]}}
    told = "job first of alice runs on n2: wait for its end, or take -e nodes=n1"
    assert str(refusal(frame, order)) == f'exclusive: got "true"; {told}'
    shared = str(refusal(frame, {**order, "exclusive": False}))
    assert shared.startswith('exclusive: got "false"; job first of alice has just started with exclusive=true')
    assert str(refusal({"reason": "full", "running": {}}, order)) == 'job: got "second"; full'
