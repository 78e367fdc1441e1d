"""The files of a job that is started again in its directory, wherever what moves them is interrupted."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job import node_job
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job.node_job import NodeJob
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores import earlier_attempts
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.fetched_files import (
    files_of,
    may_be_fetched,
)
from tests.unit.supervisors import PACKAGE, order_of_one, supervisor


class Cut(Exception):
    """The machine loses power."""


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    """The first attempt, which is over."""
    staged = NodeJob(order_of_one(tmp_path, restarts=0), {})
    Path(staged.job.rank(0, "stdout")).write_text("the first\n")
    os.close(staged.lock)
    return staged.job


def again(job: JobDir, restarts: int = 1) -> NodeJob:
    home = Path(job.path).parents[1]
    return NodeJob(order_of_one(home, restarts=restarts, known_jobs=["one"]), {})


def output(job: JobDir, *place: str) -> str:
    return Path(job.at(*place, "ranks", "0", "stdout")).read_text()


def attempt_in(job: JobDir) -> Any:
    order: Any = job.read_order()
    return order["restarts"]


def test_what_a_job_is_can_be_told_at_each_moment(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without an order is in no list, and no clean.yml fetches it."""
    seen: list[tuple[int, bool]] = []
    rename = os.rename

    def look(source: str, target: str) -> None:
        seen.append((attempt_in(job), job.staging() is not None))
        rename(source, target)

    monkeypatch.setattr(earlier_attempts.os, "rename", look)
    earlier_attempts.set_aside(job, 0)
    earlier_attempts.take_back(job, 0)
    assert len(seen) > 9 and set(seen) == {(0, True)}
    assert output(job) == "the first\n" and os.listdir(job.at("attempts")) == []
    assert os.stat(job.at("order.json")).st_nlink == 1


@pytest.mark.parametrize("moves", range(12))
def test_a_node_that_restarts_while_files_are_moved_takes_the_next_attempt(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    rename, left = os.rename, [moves]

    def cut(source: str, target: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Cut
        rename(source, target)

    monkeypatch.setattr(earlier_attempts.os, "rename", cut)
    with pytest.raises(Cut):
        earlier_attempts.set_aside(job, 0)
        raise Cut  # it was complete before that
    monkeypatch.undo()
    staged = again(job)
    assert output(job, "attempts", "0") == "the first\n" and not os.path.exists(job.rank(0, "stdout"))
    assert attempt_in(job) == 1 and os.listdir(job.at("attempts")) == ["0"]
    staged.unstage()
    assert output(job) == "the first\n" and attempt_in(job) == 0


def test_a_node_that_restarts_before_the_attempt_begins_takes_it_once_more(job: JobDir) -> None:
    os.close(again(job).lock)
    assert attempt_in(job) == 1
    staged = again(job)
    assert output(job, "attempts", "0") == "the first\n"
    os.close(staged.lock)
    with pytest.raises(FileExistsError):
        again(job, 3)


def test_the_name_of_another_run_is_no_attempt_before_this_one(tmp_path: Path) -> None:
    """As of `one-r1`, which a controller started again: it has a number too."""
    NodeJob(order_of_one(tmp_path, restarts=1), {})
    with pytest.raises(FileExistsError):
        NodeJob(order_of_one(tmp_path, restarts=1, known_jobs=["one"]), {})


def test_a_job_whose_directory_was_taken_away_is_not_begun_anew(job: JobDir) -> None:
    """Without the files of its program, and with all that the attempts before had written gone."""
    lock = job.lock()
    shutil.rmtree(job.path)
    with pytest.raises(OSError, match="was taken away"):
        NodeJob(order_of_one(Path(job.path).parents[1], restarts=1, known_jobs=["one"]), {}, lock=lock)
    assert not os.path.exists(job.path)
    os.close(lock)


def test_room_for_the_outcome_is_kept_on_a_full_disk(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node_job.JobDir, "fill", full)
    with pytest.raises(OSError, match="No space left"):
        again(job)
    assert os.path.getsize(job.at("ballast")) and output(job) == "the first\n"


def test_only_attempts_that_were_made_by_us_are_sent(job: JobDir) -> None:
    """A program could keep all files of its job from coming home by a directory with an odd name."""
    for name in ("0", "00", "²", "10000", "7"):
        os.makedirs(job.at("attempts", name, "ranks", "0"))
        Path(job.at("attempts", name, "ranks", "0", "stdout")).touch()
    for name in ("007", "²", "9" * 100):
        os.makedirs(job.at("ranks", name))
        Path(job.at("ranks", name, "stdout")).touch()
    names = [name for name in files_of(job) if name.endswith("stdout")]
    assert names == ["ranks/0/stdout", "attempts/0/ranks/0/stdout", "attempts/7/ranks/0/stdout"]


def test_a_node_sends_as_many_attempts_as_there_were() -> None:
    for name in ("attempts/2/ranks/3/stdout", "attempts/2/metrics.jsonl"):
        assert may_be_fetched(name, {3}, 2)
    for name in (
        "attempts/3/metrics.jsonl",
        "attempts/3/ranks/3/stdout",
        "attempts/2/ranks/4/stdout",
        "attempts/0/launcher.out",
    ):
        assert not may_be_fetched(name, {3}, 2)


def tries_beside_another(job: JobDir, other: JobDir) -> int:
    """Return how often a job tried to start again while another one that is exclusive had the node."""
    other.create([])
    other.write("order.json", {"exclusive": True, "ranks": [0]})
    lock, seen, until = other.lock(), set[str](), time.monotonic() + 60
    while len(seen) < 3 and time.monotonic() < until:
        seen.add((job.staging() or {"private_tmp": ""})["private_tmp"])  # another one for each pause
        assert attempt_in(job) == 0
        time.sleep(0.02)
    os.close(lock)
    return len(seen)


def test_a_head_keeps_the_files_of_each_attempt_apart(tmp_path: Path) -> None:
    """A launcher that fails at once: the same failure twice ends it. Another job took the node between the attempts."""
    order = order_of_one(tmp_path, ("/bin/false",), head="w1", master_port=1)
    own = {"environment": {}, "known_jobs": [], "ranks": order["ranks"]}
    job = {"job": order, "nodes": {"w1": own}, "routes": [], "secrets": {"w1": {}}, "files": {}}
    hook = f"from {PACKAGE}.head import restarting; restarting.PAUSE_SECONDS = restarting.LOOK_SECONDS = 0.1"
    remote, kinds, here = supervisor(hook), list[str](), JobDir(str(tmp_path / "jobs" / "one"))
    remote.channel.send({"kind": "run", "order": job, "detached": True, "restart": {"most": 2, "states": ["failed"]}})
    try:
        while "result" not in kinds and "refused" not in kinds:
            frame = remote.answer(120)
            kinds.append(frame["kind"])
            if frame["kind"] == "restarted":
                tries = tries_beside_another(here, JobDir(str(tmp_path / "jobs" / "alone")))
    finally:
        remote.close(5)
    assert [kind for kind in kinds if kind in ("started", "restarted")] == ["started", "restarted", "started"]
    assert frame["result"]["state"] == "failed"
    assert tries > 2
    assert attempt_in(here) == 1 and attempt_in(JobDir(here.at("attempts", "0"))) == 0
    assert sorted(os.listdir(here.at("attempts"))) == ["0"] and os.path.exists(here.at("attempts", "0", "result.json"))
    assert not os.path.exists(here.at("ballast"))
