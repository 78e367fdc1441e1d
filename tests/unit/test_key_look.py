"""Looking at a job when Enter is pressed: what is told, and that nothing of it harms the job. The head is played."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import key_look
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.key_look import HINT, KeyLook
from tests.unit.test_hang_watch import RECORDED, Head

STARTED: Any = {"kind": "started"}
SENTENCE = "job run7: rank 1 on n1 is computing at __init__.py:166 in match (hangs.py:34);"


class Keys:
    """A keyboard on which `enter` is pressed."""

    is_there = True
    enter = closed = False

    def pressed(self) -> bool:
        pressed, self.enter = self.enter, False
        return pressed

    def close(self) -> None:
        self.closed = True


def made(head: Head, place: Path, hints: bool = True) -> tuple[Any, Keys, list[str]]:
    keys, said = Keys(), list[str]()
    given: Any = ("run7", place, keys, lambda: head, said.append, hints)
    return KeyLook(*given), keys, said


def pressed(watch: KeyLook, keys: Keys) -> None:
    """Press Enter, and let the look come to its end."""
    keys.enter = True
    watch.tick()
    if watch.thread:
        watch.thread.join()
    watch.tick()


def test_enter_looks_each_time_and_tells_what_it_finds(tmp_path: Path) -> None:
    head = Head(RECORDED)
    watch, keys, said = made(head, tmp_path / "run7")
    watch.seeing(lambda _frame: None)(STARTED)
    watch.tick()
    assert (said, head.asked) == ([HINT], [])
    for _time in range(2):
        said.clear()
        pressed(watch, keys)
        assert said[0] == "looking at job run7 ..." and said[1].startswith(SENTENCE)
        assert len(said) > 4 and said[-1] == f"evidence: {tmp_path / 'run7' / 'diagnosis'}"
    assert head.asked == [True, True]
    head.rows = RECORDED[:1]  # too little is known: that is told, too
    said.clear()
    pressed(watch, keys)
    assert said[1].startswith("job run7: ") and "computing" not in said[1], said
    watch.close()
    assert keys.closed


def test_enter_while_it_looks_is_no_second_look(tmp_path: Path) -> None:
    head = Head(RECORDED)
    looks, go_on = head.look, threading.Event()
    head.look = lambda job_id, asks=True: go_on.wait(60) and looks(job_id, asks)  # type: ignore[method-assign,assignment]
    watch, keys, said = made(head, tmp_path / "run7")
    watch.seeing(lambda _frame: None)(STARTED)
    for _time in range(3):
        keys.enter = True
        watch.tick()
    go_on.set()
    watch.thread.join()
    watch.tick()
    assert head.asked == [True] and said.count("looking at job run7 ...") == 1 and said[2].startswith(SENTENCE)


def test_before_the_ranks_are_started_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    head = Head(RECORDED)
    watch, keys, said = made(head, tmp_path / "run7")
    see = watch.seeing(lambda _frame: None)
    for frame in (None, {"kind": "queued", "place": 1}):
        if frame:
            see(frame)
        pressed(watch, keys)
    assert head.asked == [] and said == ["job run7: its ranks are not started yet"] * 2


@pytest.mark.parametrize("there", [True, False])
def test_the_hint_is_given_once_and_only_where_there_is_a_keyboard_and_a_screen(tmp_path: Path, there: bool) -> None:
    watch, keys, said = made(Head(RECORDED), tmp_path)
    keys.is_there = there
    see = watch.seeing(lambda _frame: None)
    for _time in range(2):
        see(STARTED)
    assert said == [HINT] * there
    watch, _keys, said = made(Head(RECORDED), tmp_path, hints=False)
    watch.seeing(lambda _frame: None)(STARTED)
    assert said == []


def test_what_goes_wrong_is_told_and_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(RECORDED)
    head.lost = True
    (tmp_path / "run7").touch()  # no directory
    watch, keys, said = made(head, tmp_path / "run7")
    watch.seeing(lambda _frame: None)(STARTED)
    pressed(watch, keys)
    assert said[2:] == ["job run7 was not looked at: it is gone"]
    head.lost = False
    pressed(watch, keys)
    assert said[-1] == f"the evidence could not be written: {tmp_path / 'run7'} is no directory of yours"
    monkeypatch.setattr(key_look, "begun", lambda _work: None)
    pressed(watch, keys)
    assert said[-1] == "job run7 was not looked at: no thread can be started"


def test_a_look_does_not_outlive_the_job(tmp_path: Path) -> None:
    head = Head(RECORDED)
    looks = head.look
    head.look = lambda job_id, asks=True: head.killed.wait(60) and looks(job_id, asks)  # type: ignore[method-assign,assignment]
    watch, keys, said = made(head, tmp_path)
    watch.seeing(lambda _frame: None)(STARTED)
    keys.enter = True
    watch.tick()
    while watch.session is None:
        pass
    thread = watch.thread
    watch.close()
    assert head.killed.is_set() and len(said) == 2 and not thread.is_alive()
