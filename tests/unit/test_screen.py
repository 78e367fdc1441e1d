"""What is shown: live lines may be dropped where the reader is slow, what a job came to never is."""

from __future__ import annotations

import os
import pty
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import frames
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller import screen as screen_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.view import View, rank_table, summary, verdict

NOBODY = 65534


class Reader:
    """Ansible's display with a reader who looks when he likes."""

    columns = 80

    def __init__(self) -> None:
        self.looks = threading.Event()
        self.lines: list[str] = []

    def display(self, text: str, newline: bool, screen_only: bool) -> None:
        self.looks.wait(60)
        self.lines.append(text)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    made = Reader()
    monkeypatch.setattr(screen_module, "display", made)
    yield made
    made.looks.set()


def result(**given: Any) -> dict[str, Any]:
    row = {"rank": 0, "host": "n1", "local_rank": 0, "state": "succeeded", "rc": 0, "seconds": 1.0, "last_line": ""}
    return {
        "job_id": "j",
        "state": "succeeded",
        "seconds": 2.0,
        "world_size": 1,
        "backend": "gloo",
        "launcher": {"name": "openmpi", "version": "5"},
        "ranks": [row],
        "placement": [{**row, "seen": {"host": "n1", "local_rank": 0}}],
        "metrics": {},
        "usage": {"nodes": {}, "findings": []},
        "notes": [],
        "leftovers": {},
        **given,
    }


def test_the_last_words_are_shown_however_slow_the_reader(reader: Reader) -> None:
    screen = screen_module.Screen()
    screen.stdout = os.devnull
    view = View(screen.write, ["n1"], terminal=False, width=80)
    view.say("warning: first")
    for number in range(5000):
        view.show({"kind": "line", "rank": 0, "text": f"line {number}", "skipped": 0})
    closing = summary(result(), [], "/runs/j", 80, "state")
    for line in closing:
        view.say(line)
    reader.looks.set()
    assert screen.flush(lambda: False)
    assert reader.lines[0] == "warning: first"
    assert reader.lines[-len(closing) :] == closing
    assert reader.lines[-1] == '"succeeded"'
    lines = [line for line in reader.lines if line.startswith("[0@n1]")]
    assert len(lines) <= screen_module.ROOM + 1 and lines[-1] == "[0@n1] line 4999"  # the oldest are dropped
    assert f"... {5000 - len(lines)} lines are only in the files" in reader.lines


def test_after_ctrl_c_the_last_words_do_not_go_through_ansible(reader: Reader, tmp_path: Path) -> None:
    """It reads no more: what it was given last is on its way for ever, and the table and the answer were lost."""
    screen = screen_module.Screen()
    screen.stdout = str(tmp_path / "log")
    (tmp_path / "log").write_text("shown by Ansible\n")
    screen.write("[0@n1] a line", True, False)
    while screen.waiting:  # until the first thread waits for Ansible
        os.sched_yield()
    screen.take_over(-1)
    closing = summary(result(state="cancelled"), [], "/runs/j", 80, "state")
    for line in closing:
        screen.write(line)
    assert not screen.flush(lambda: True)  # the result would have no reader
    assert (tmp_path / "log").read_text().splitlines() == ["shown by Ansible", *closing]
    reader.looks.set()
    assert screen.flush(lambda: True)
    assert reader.lines == ["[0@n1] a line"]


def test_where_nobody_reads_the_last_words_go_to_the_terminal(reader: Reader) -> None:
    """`ansible-playbook ... | tee log`: Ctrl-C ends tee as well."""
    controller, inside = pty.openpty()
    incoming, outgoing = os.pipe()
    screen = screen_module.Screen()
    screen.stdout = f"/proc/self/fd/{outgoing}"
    os.close(incoming)
    screen.take_over(inside)
    screen.write("the last words")
    assert screen.flush(lambda: True)
    assert os.read(controller, 100) == b"the last words\r\n"
    for descriptor in (controller, inside, outgoing):
        os.close(descriptor)


def test_without_a_reader_and_a_terminal_nothing_is_waited_for(reader: Reader) -> None:
    screen = screen_module.Screen()
    screen.parent = -1
    screen.take_over(-1)
    screen.write("the last words")
    assert screen.flush(lambda: False)


def test_many_leftovers_are_ten_lines_and_a_count() -> None:
    left = {f"n{node}": [{"pid": pid, "command": "sleep 600"} for pid in range(8)] for node in range(1, 5)}
    lines = summary(result(leftovers=left), [], "/runs/j", 80, None)
    assert len([line for line in lines if line.startswith("ended a leftover on ")]) == 10
    assert "ended 22 more on n2-n4: result.json names them" in lines
    few = {"n1": left["n1"]}
    assert not any(" more on " in line for line in summary(result(leftovers=few), [], "/runs/j", 80, None))


def test_many_ranks_that_succeeded_are_one_line() -> None:
    rows = [{**result()["ranks"][0], "rank": number} for number in range(240)]
    assert rank_table(rows, 80) == "all 240 ranks succeeded"


def test_a_pipe_without_a_reader_is_not_read(reader: Reader) -> None:
    incoming, outgoing = os.pipe()
    screen = screen_module.Screen()
    screen.stdout = f"/proc/self/fd/{outgoing}"
    assert screen.is_read()
    os.close(incoming)
    assert not screen.is_read()
    os.close(outgoing)


def test_a_reader_that_stands_still_is_left_soon_after_the_user_wants_out(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen_module, "LAST_SECONDS", 0.05)
    screen = screen_module.Screen()
    screen.stdout = os.devnull
    screen.write("never seen")
    looking = threading.Timer(30.0, reader.looks.set)
    looking.start()
    assert screen.flush(lambda: True) is False
    looking.cancel()


def test_what_is_missing_of_a_run_and_what_died_while_leaving_is_told() -> None:
    died = {"rank": 0, "host": "n1", "local_rank": 0, "state": "succeeded", "rc": 134, "signal": 6, "seconds": 1.0}
    told = summary(result(ranks=[{**died, "last_line": ""}]), ["n2: it sent too much"], "/runs/j", 80, None)
    assert "warning: the files of n2: it sent too much; they wait there: ansible-playbook clean.yml" in told
    assert "rank 0 finished, then died of signal 6 at exit; it counts as succeeded" in told


def test_a_long_last_line_is_cut_to_the_width_of_the_terminal() -> None:
    row = {"rank": 0, "host": "n1", "state": "failed", "rc": 1, "seconds": 1.0, "last_line": "x" * 500}
    lines = rank_table([row], 80).splitlines()
    (line,) = [line.rstrip() for line in lines if "failed" in line]
    assert len(line) <= 80 and line.endswith("xxx...")


def test_nothing_is_handed_to_ansible_for_a_pipe_that_nobody_reads(reader: Reader) -> None:
    """Its thread that displays dies of that write, and with it all that Ansible would still say."""
    incoming, outgoing = os.pipe()
    screen = screen_module.Screen()
    screen.stdout = f"/proc/self/fd/{outgoing}"
    os.close(incoming)
    reader.looks.set()
    screen.write("lost")
    assert screen.flush(lambda: False)
    assert reader.lines == []
    os.close(outgoing)


@pytest.mark.parametrize(("environment", "terminal"), [({}, True), ({"AWX_ISOLATED_DATA_DIR": "/runner"}, False)])
def test_a_terminal_that_ansible_runner_made_has_no_bar(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], terminal: bool
) -> None:
    controller, inside = pty.openpty()
    monkeypatch.delenv("AWX_ISOLATED_DATA_DIR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(screen_module, "terminal_of", lambda _pid, _numbers: os.dup(inside))
    assert screen_module.Screen().is_terminal() is terminal
    monkeypatch.setattr(screen_module, "terminal_of", lambda _pid, _numbers: -1)
    assert screen_module.Screen().is_terminal() is False
    os.close(inside)
    os.close(controller)


def test_what_cannot_be_opened_is_shown(reader: Reader, tmp_path: Path) -> None:
    """On a system without /proc, in a container that hides it, and where the pipe is another user's (`sudo -u`)."""
    screen = screen_module.Screen()
    screen.stdout = str(tmp_path / "none")
    assert screen.is_read()
    incoming, outgoing = os.pipe()
    screen.stdout = f"/proc/self/fd/{outgoing}"
    if os.getuid() == 0:
        os.seteuid(NOBODY)
    else:
        screen.stdout = "/proc/1/fd/1"
    try:
        with pytest.raises(PermissionError):
            os.close(os.open(screen.stdout, os.O_WRONLY | os.O_NONBLOCK))
        assert screen.is_read()
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        os.close(incoming)
        os.close(outgoing)


def test_nobody_reads_what_goes_to_an_ansible_playbook_that_is_gone(reader: Reader) -> None:
    screen = screen_module.Screen()
    screen.parent = -1
    assert not screen.is_read()


def test_no_escape_sequence_or_line_end_of_a_node_gets_into_a_line() -> None:
    """Command lines of leftovers, last lines and causes are what a program chose."""
    evil = "x\x1b]0;TITLE\x07\nrun: /etc\r\x9b31m\u202e\u2028"
    row = {"rank": 0, "host": "n1", "local_rank": 0, "state": "failed", "rc": 1, "seconds": 1.0, "signal": None}
    told = result(
        state="failed",
        rc=1,
        ranks=[{**row, "last_line": evil}],
        placement=[{"rank": 0, "host": "n1", "local_rank": 0, "seen": {"host": "n1", "local_rank": 0}}],
        launcher={"name": evil, "version": evil},
        backend=evil,
        notes=[{"code": "cancelled_by_a_node", "text": evil}],
        metrics={evil: evil},
        leftovers={"n1": [{"pid": 7, "command": evil, "ended": "SIGTERM"}]},
        first_failure={"rank": 0, "host": "n1", "cause": evil, "message": evil, "log": evil},
    )
    frame = frames.checked({"kind": "result", "result": told}, frames.FROM_HEAD)
    lines = [*summary(frame["result"], [], "/runs/j", 80, None), verdict(frame["result"], "/runs/j")]
    assert any("TITLE" in line for line in lines)
    assert all(line.isprintable() for line in lines), lines
