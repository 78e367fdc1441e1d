"""Looking by itself at a job that is followed: when, how often, and what is told. The head is played."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.evidence import ALL_EVIDENCE
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import hang_watch
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.connection import HeadLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.hang_watch import HangWatch
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from tests.unit.watched import Clock, passed

LOOK = json.loads((Path(__file__).parent / "recorded/look.json").read_text())
RECORDED: list[Any] = list(ALL_EVIDENCE(LOOK["evidence"]))
PLACES = [{"rank": rank, "local_rank": rank, "host": "n1"} for rank in range(3)]


class Head:
    """Answers looks; `rows` is what it finds."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.asked, self.killed = rows, list[bool](), threading.Event()
        self.lost = False

    def __enter__(self) -> Head:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def look(self, _job_id: str, asks: bool = True) -> dict[str, Any]:
        if self.lost:
            raise HeadLost("it is gone")
        self.asked.append(asks)
        return {"placement": PLACES, "evidence": self.rows, "missing": []}

    def kill(self) -> None:
        self.killed.set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(hang_watch, "time", made)
    return made


def made(head: Head, tmp_path: Path, seconds: float = 60.0) -> tuple[HangWatch, list[str]]:
    said: list[str] = []
    watch: Any = HangWatch("run7", tmp_path / "run7", seconds, lambda: head, said.append)  # type: ignore[arg-type,return-value]
    return watch, said


FRAME = {"kind": "line", "rank": 0, "text": "x", "skipped": 0}


def test_a_hang_is_told_once_and_again_after_the_job_went_on(tmp_path: Path, clock: Clock) -> None:
    head = Head(RECORDED)
    watch, said = made(head, tmp_path)
    passed(watch, clock, 1000.0)
    assert head.asked == []  # the job has not begun
    see = watch.seeing(lambda _frame: None)
    see({"kind": "started"})
    passed(watch, clock, 55.0)
    assert head.asked == []
    passed(watch, clock, 2.0)  # two readings of two seconds follow, and the line comes soon after 60 seconds
    assert head.asked == [False, True] and len(said) == 1
    assert said[0].startswith("warning: job run7: rank 1 on n1 is computing at __init__.py:166 in match (hangs.py:34);")
    assert said[0].endswith(f"; evidence: {tmp_path / 'run7' / 'diagnosis'}")
    passed(watch, clock, 118.0)
    assert len(head.asked) == 2  # the next one comes after twice the time
    passed(watch, clock, 2.0)
    assert len(head.asked) == 4 and len(said) == 1
    see(FRAME)
    passed(watch, clock, 61.0)
    assert len(head.asked) == 6 and len(said) == 2


def test_a_job_that_is_alive_is_asked_nothing(tmp_path: Path, clock: Clock) -> None:
    head = Head([{**row, "wrote": True} for row in RECORDED])
    watch, said = made(head, tmp_path)
    watch.seeing(lambda _frame: None)({"kind": "started"})
    passed(watch, clock, 61.0)
    assert (head.asked, said) == ([False], [])


def test_a_long_silent_start_is_shown_and_told_again(tmp_path: Path, clock: Clock) -> None:
    """All compile, or one does and the others wait for it: neither is a hang."""
    compiles = {**RECORDED[0], "wrote": False, "cpu": 9.0, "busy": ["cc1plus", "ninja"]}
    head = Head([{**compiles, "rank": rank} for rank in range(3)])
    watch, said = made(head, tmp_path)
    watch.seeing(lambda _frame: None)({"kind": "started"})
    passed(watch, clock, 61.0)
    assert (head.asked, said) == ([False], ["ranks 0-2 on n1: 61 s without output: cc1plus of ninja is busy"])
    head.rows = [RECORDED[0], {**RECORDED[1], "busy": ["cc1plus", "ninja"]}, RECORDED[2]]
    passed(watch, clock, 121.0)
    assert said[1:] == ["rank 1 on n1: 182 s without output: cc1plus of ninja is busy"]


def test_a_look_that_fails_or_finds_no_hang_says_nothing(tmp_path: Path, clock: Clock) -> None:
    head = Head(RECORDED[:1])
    watch, said = made(head, tmp_path)
    watch.seeing(lambda _frame: None)({"kind": "started"})
    passed(watch, clock, 61.0)
    assert head.asked == [False, True]  # of two ranks nothing is known
    head.lost = True
    passed(watch, clock, 121.0)
    assert said == [] and not (tmp_path / "run7").exists()


@pytest.mark.parametrize("when", [False, True])
def test_a_sign_of_life_in_the_midst_of_a_look_names_nobody(tmp_path: Path, clock: Clock, when: bool) -> None:
    """Ranks are not asked if it came while /proc was read (False), and nothing is told if it came while they were."""
    head = Head(RECORDED)
    watch, said = made(head, tmp_path)
    see, looks = watch.seeing(lambda _frame: None), head.look

    def look(job_id: str, asks: bool = True) -> dict[str, Any]:
        if asks is when:
            clock.now += 1.0
            see(FRAME)
        return looks(job_id, asks)

    head.look = look  # type: ignore[method-assign]
    see({"kind": "started"})
    passed(watch, clock, 57.0)
    assert (head.asked, said) == ([False, True] if when else [False], [])
    head.look = looks  # type: ignore[method-assign]
    passed(watch, clock, 55.0)
    assert len(said) == 0  # the time begins with the sign of life
    passed(watch, clock, 2.0)
    assert len(said) == 1


@pytest.mark.parametrize(("seconds", "begins"), [(60.0, 56.0), (300.0, 296.0), (6.0, 3.0), (1.0, 0.5)])
def test_a_look_begins_early_so_that_its_line_comes_in_time(
    tmp_path: Path, clock: Clock, seconds: float, begins: float
) -> None:
    """Not earlier than after half of the time: what tells something every second is never looked at."""
    head = Head(RECORDED)
    watch, _said = made(head, tmp_path, seconds)
    watch.seeing(lambda _frame: None)({"kind": "started"})
    passed(watch, clock, begins - 0.01)
    assert head.asked == []
    passed(watch, clock, 0.02)
    assert head.asked == [False, True]


def test_zero_is_never(tmp_path: Path, clock: Clock) -> None:
    head = Head(RECORDED)
    watch, _said = made(head, tmp_path, 0.0)
    watch.seeing(lambda _frame: None)({"kind": "started"})
    passed(watch, clock, 1e6)
    assert head.asked == []


def test_a_look_does_not_outlive_the_job(tmp_path: Path, clock: Clock) -> None:
    head = Head(RECORDED)
    looks = head.look
    head.look = lambda job_id, asks=True: head.killed.wait(60) and looks(job_id, asks)  # type: ignore[method-assign,assignment]
    watch, said = made(head, tmp_path)
    watch.seeing(lambda _frame: None)({"kind": "started"})
    clock.now += 61.0
    watch.tick()
    while watch.session is None:
        pass
    thread = watch.thread
    watch.close()
    assert head.killed.is_set() and said == [] and thread is not None and not thread.is_alive()


@pytest.mark.parametrize(("given", "seconds"), [(None, 60.0), (0, 0.0), ("0", 0.0), ("300", 300.0), (1.5, 1.5)])
def test_seconds(given: Any, seconds: float) -> None:
    assert parse_request({"hang_look": given}).hang_look == seconds


@pytest.mark.parametrize("given", [-1, "soon", "nan", True, False, [3]])
def test_what_are_no_seconds(given: Any) -> None:
    with pytest.raises(InputError, match=r"hang_look: got .*; give seconds, or 0 for never: -e hang_look=300"):
        parse_request({"hang_look": given})
