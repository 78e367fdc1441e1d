"""Collecting from a job that is followed: when, what stays, and what is told. The head is played."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.artifacts import Limits
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import collect_watch
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.collect_watch import CollectWatch
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.connection import HeadLost

FRAME = {"kind": "line", "rank": 0, "text": "x", "skipped": 0}


class Head:
    """Sends one file, whose content is `text`. None: it is lost."""

    def __init__(self) -> None:
        self.text: str | None = "one"
        self.damaged = self.dropped = False
        self.fetched = 0

    def __enter__(self) -> Head:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def drop(self) -> None:
        self.dropped = True

    def fetch(self, job_id: str, run_dir: Path, _placement: Any, limit: int, over: bool, artifacts: Any) -> list[str]:
        assert (job_id, limit, over, artifacts.limits.files) == ("run7", 7, False, 5)
        self.fetched += 1
        if self.text is None:
            raise HeadLost("head n1 is gone")
        path = artifacts.place / "artifacts" / "n1" / "model"
        path.parent.mkdir(parents=True)
        path.write_text(self.text)
        data = self.text.encode()
        digest = "0" * 64 if self.damaged else hashlib.sha256(data).hexdigest()
        row = {"path": "model", "bytes": len(data), "sha256": digest}
        artifacts.take({"kind": "file", "name": "artifacts/n1/model", "first": True, "data": data})
        told = {"kind": "artifacts", "host": "n1", "files": [row], "left_out": {}, "unmatched": ["x"], "refused": ""}
        artifacts.take(told)
        return list(artifacts.damaged)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(collect_watch, "time", made)
    return made


def passed(watch: CollectWatch, clock: Clock, seconds: float) -> None:
    """Let time pass, and the collection that it begins come to its end."""
    clock.now += seconds
    watch.tick()
    if watch.thread:
        watch.thread.join()
        watch.tick()


def watching(head: Head, run_dir: Path, seconds: float | None = 60.0) -> tuple[CollectWatch, list[str]]:
    said: list[str] = []
    limits = (7, Limits(5, 1000))
    watch: Any = CollectWatch("run7", run_dir, [(0, "n1")], limits, seconds, lambda: head, said.append)  # type: ignore[arg-type,return-value]
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


def test_nothing_is_collected_that_was_not_asked_for_or_of_a_job_that_is_over(tmp_path: Path, clock: Clock) -> None:
    head = Head()
    for seconds, closed in ((None, False), (60.0, True)):
        watch, said = watching(head, tmp_path, seconds)
        watch.seeing(lambda _frame: None)({"kind": "started"})
        if closed:
            watch.close()
        passed(watch, clock, 1e6)
        assert (head.fetched, said) == (0, [])
