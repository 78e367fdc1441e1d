"""Collecting from a job that is followed: when, what stays, and what is told. The head is played."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.artifact_border import Limits
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import ConnectionLost, RemoteProcess
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import collect_watch, hang_watch
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.brought_home import (
    Fault,
    as_asked_for,
    within_room,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.collect_watch import CollectWatch
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.connection import HeadLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import COLLECT_FILES
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.run_directory import noted_every, noted_limits
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session
from tests.unit.watched import Clock, passed

FRAME = {"kind": "line", "rank": 0, "text": "x", "skipped": 0}


class Head:
    """Sends one file, whose content is `text`. None: it is lost."""

    def __init__(self) -> None:
        self.text: str | None = "one"
        self.damaged = False
        self.fetched, self.missing = 0, list[str]()

    def __enter__(self) -> Head:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def fetch(
        self, job_id: str, run_dir: Path, _placement: Any, limit: int, give_up: Any, over: bool, artifacts: Any
    ) -> list[str]:
        assert (job_id, limit, over, artifacts.limits.files, give_up()) == ("run7", 7, False, 5, False)
        self.fetched += 1
        if self.text is None:
            raise HeadLost("head n1 is gone")
        with artifacts.arriving(run_dir):
            self.send(self.text, run_dir, artifacts)
            artifacts.settle(run_dir)
        return [*self.missing, *artifacts.damaged]

    def send(self, text: str, run_dir: Path, artifacts: Any) -> None:
        path = run_dir / ".collecting" / "artifacts" / "n1" / "model"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        data = text.encode()
        digest = "0" * 64 if self.damaged else hashlib.sha256(data).hexdigest()
        row = {"path": "model", "bytes": len(data), "sha256": digest}
        artifacts.take({"kind": "file", "name": "artifacts/n1/model", "first": True, "data": data})
        told = {"kind": "artifacts", "host": "n1", "files": [row], "left_out": {}, "unmatched": ["x"], "refused": ""}
        artifacts.take(told)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(collect_watch, "time", made)
    return made


def watching(head: Any, run_dir: Path, seconds: float | None = 60.0) -> tuple[CollectWatch, list[str]]:
    said: list[str] = []
    limits = (7, Limits(5, 1000))
    watch: Any = CollectWatch("run7", run_dir, [(0, "n1")], limits, seconds, lambda: head, said.append)
    return watch, said


def test_what_ranks_write_comes_again_and_again_and_only_whole(tmp_path: Path, clock: Clock) -> None:
    head, model = Head(), tmp_path / "artifacts" / "n1" / "model"
    watch, said = watching(head, tmp_path)
    see = watch.seeing(lambda _frame: None)
    passed(watch, clock, 1000.0)
    see({"kind": "queued"})
    passed(watch, clock, 1000.0)
    assert head.fetched == 0  # it waits
    see({"kind": "started"})
    see(FRAME)
    passed(watch, clock, 59.0)
    assert head.fetched == 0
    passed(watch, clock, 2.0)
    assert (head.fetched, model.read_text(), said) == (1, "one", [])  # that a glob matches nothing yet is no news
    head.text, head.damaged = "two", True
    for _time in range(2):
        passed(watch, clock, 61.0)
    assert (head.fetched, model.read_text()) == (3, "one")
    why = "n1: model changed while it was read, or ends too soon"
    assert said == [f"warning: collect_every: {why}; it is tried again in 60 s"]  # once
    head.text = None
    passed(watch, clock, 61.0)
    assert model.read_text() == "one" and "head n1 is gone" in said[1]
    head.text, head.damaged = "three", False
    passed(watch, clock, 61.0)
    assert model.read_text() == "three" and len(said) == 2
    (row,) = json.loads((tmp_path / "artifacts.json").read_text())["files"]
    assert row["sha256"] == hashlib.sha256(b"three").hexdigest()
    assert not (tmp_path / ".collecting").exists()


def test_reasons_are_told_once_and_bounded(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduced before: each sentence had its own bytes or names of files, and was told again every time."""
    head = Head()
    watch, said = watching(head, tmp_path)
    watch.seeing(lambda _frame: None)({"kind": "started"})
    for size in (1, 2):
        head.missing = [f"all nodes: {size} bytes more than fetch_limit"]
        passed(watch, clock, 61.0)
    assert said == ["warning: collect_every: all nodes: 1 bytes more than fetch_limit; it is tried again in 60 s"]
    del said[:]
    watch.found = [Fault(f"n{number}", "left", f"left on n{number}: 1 links") for number in range(12)]
    watch.tell()
    assert len(said) == 6 and said[-1] == "warning: collect_every: and 7 more"
    monkeypatch.setattr(collect_watch, "TOLD_MOST", 15)
    watch.found = [Fault(f"n{number}", "left", "") for number in range(30)]
    watch.tell()
    assert len(watch.told) == 15 and len(said) == 8


def test_without_a_thread_the_job_goes_on(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduced before: a user with as many processes as allowed lost the job that was followed."""
    head = Head()
    watch, said = watching(head, tmp_path)
    watch.seeing(lambda _frame: None)({"kind": "started"})

    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        for _time in range(2):
            passed(watch, clock, 61.0)
        assert hang_watch.begun(lambda: None) is None
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ConnectionLost, match="can't start new thread"):
            RemoteProcess(["sleep", "600"])
        assert len(os.listdir("/proc/self/fd")) == before
    assert said == ["warning: collect_every: no thread can be started; it is tried again in 60 s"]
    watch.connect = lambda: refused(threading.current_thread())  # type: ignore[assignment,return-value]
    passed(watch, clock, 61.0)
    assert said[1:] == ["warning: collect_every: can't start new thread; it is tried again in 60 s"]
    watch.connect = lambda: head  # type: ignore[assignment,return-value]
    passed(watch, clock, 61.0)
    assert head.fetched == 1


def test_a_channel_is_closed_by_the_thread_that_uses_it_and_once(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reproduced before: it was closed twice, and by then the number was that of a file of the last fetch."""
    closers: list[threading.Thread] = []
    close = Channel.close
    monkeypatch.setattr(Channel, "close", lambda channel: (closers.append(threading.current_thread()), close(channel)))
    session: Any = object.__new__(Session)
    session.head, session.home, session.queued = Node("n1", "n1"), "/home", False
    session.remote = RemoteProcess(["sleep", "600"])
    watch, _said = watching(session, tmp_path)
    watch.seeing(lambda _frame: None)({"kind": "started"})
    clock.now += 61.0
    watch.tick()
    thread = watch.thread
    while not watch.session:
        pass
    watch.close()
    assert thread is not None and not thread.is_alive() and closers == [thread]
    assert session.remote.process.returncode is not None


def test_what_was_written_while_nobody_followed_comes_at_once(tmp_path: Path, clock: Clock) -> None:
    """Also of a job that tells nothing. What another playbook has fetched to the end is not fetched again."""
    head = Head()
    watch, said = watching(head, tmp_path)
    watch.begin_at_once()
    passed(watch, clock, 0.0)
    assert (head.fetched, said) == (1, [])
    watch.seeing(lambda _frame: None)({"kind": "restarted"})
    passed(watch, clock, 59.0)
    assert head.fetched == 1
    passed(watch, clock, 2.0)
    assert head.fetched == 2
    (tmp_path / "fetched.json").write_text('{"missing": []}')
    passed(watch, clock, 61.0)
    assert (head.fetched, said) == (2, [])


def test_seconds_between_collections_are_those_of_the_plan_or_of_who_follows(tmp_path: Path) -> None:
    assert noted_every(tmp_path, None) is None
    for plan, asked, found in (
        ({"collect": ["*"], "collect_every": 300}, None, 300.0),
        ({"collect": ["*"], "collect_every": 300}, 5.0, 5.0),
        ({"collect": ["*"]}, None, None),  # of an older version
        ({"collect": ["*"], "collect_every": 0}, None, None),
        ({"collect": [], "collect_every": None}, None, None),
    ):
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        assert noted_every(tmp_path, asked) == found
    with pytest.raises(InputError, match="it collects nothing: give train"):
        noted_every(tmp_path, 5.0)


def test_who_fetches_a_job_that_is_over_takes_what_it_was_started_with(tmp_path: Path) -> None:
    limits = {"collect_files": 3, "collect_limit": 10 << 40}
    for plan, noted, there in (
        (None, None, None),
        ({"collect": ["*"]}, None, None),  # of an older version
        ({"collect": [], **limits}, Limits(0, 0), Limits(0, 0)),
        ({"collect": ["*"], **limits}, Limits(3, 10 << 40), Limits(3, 10 << 40)),
    ):
        if plan is not None:
            (tmp_path / "plan.json").write_text(json.dumps(plan))
        assert noted_limits(tmp_path) == noted
        home = as_asked_for(tmp_path, [(0, "n1")])
        if there is None:
            assert home.limits.files == COLLECT_FILES and home.limits.bytes < 10 << 40
        else:
            assert home.limits == there
    unasked = within_room(tmp_path, [(0, "n1")], noted_limits(tmp_path))
    assert unasked.limits.files == 3 and unasked.limits.bytes < 10 << 40
    report: Any = {"kind": "artifacts", "host": "n1", "files": [], "left_out": {}, "unmatched": []}
    unasked.take({**report, "refused": "too_large"})
    assert f"more bytes than {unasked.limits.bytes:,}, for the free disk here; the files" in unasked.warnings[0]


def test_nothing_is_collected_that_was_not_asked_for_or_of_a_job_that_is_over(tmp_path: Path, clock: Clock) -> None:
    head = Head()
    for seconds, closed in ((None, False), (60.0, True)):
        watch, said = watching(head, tmp_path, seconds)
        watch.seeing(lambda _frame: None)({"kind": "started"})
        if closed:
            watch.close()
        passed(watch, clock, 1e6)
        assert (head.fetched, said) == (0, [])
