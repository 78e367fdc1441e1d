"""When the user wants out: what is noted, what is raised, and when he insists."""

from __future__ import annotations

import os
import pty
import signal
import threading
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import TERMINAL_CLOSED
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import RemoteProcess
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import (
    NOTHING_LEFT,
    Stopped,
    StopWatch,
    signals_later,
    terminal_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.connection import HeadLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_before_a_job_a_signal_ends_whatever_is_waited_for(number: int) -> None:
    """Also what would never return: reading from a head that says nothing."""
    silent, _writer = os.pipe()
    with StopWatch() as stop:
        threading.Timer(0.05, send, (number,)).start()
        with pytest.raises(Stopped):
            os.read(silent, 1)
        assert stop.noted == [number.name]


def test_a_program_that_is_being_started_has_an_owner_before_a_signal_stops_all() -> None:
    """Reproduced before, one time in some hundred: ssh was started and nobody knew it, for Ctrl-C came before that."""
    done: list[str] = []
    with StopWatch(), pytest.raises(Stopped):
        with signals_later():
            signal.raise_signal(signal.SIGINT)
            done.append("started")
        done.append("too late")
    assert done == ["started"]


def test_the_first_signal_before_a_job_says_at_once_that_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible shows nothing of it before its worker is gone, if at all."""
    said: list[str] = []
    monkeypatch.setattr(StopWatch, "say", lambda _watch, text: said.append(text))
    with pytest.raises(Stopped), StopWatch():
        send(signal.SIGINT)
    assert said == [NOTHING_LEFT]


def test_a_login_that_is_lost_is_no_cancellation() -> None:
    """Whoever reads the result must not take a lost connection for a decision of the user."""
    with StopWatch() as stop:
        stop.hold("ending the job")
        send(signal.SIGHUP)
        assert stop.reason() == TERMINAL_CLOSED and TERMINAL_CLOSED[0] == "lost"


def test_the_sigterm_that_ansible_sends_behind_a_ctrl_c_is_no_second_one() -> None:
    with StopWatch() as stop:
        stop.hold("ending the job")
        send(signal.SIGINT)
        send(signal.SIGTERM)
        send(signal.SIGTERM)  # and again 5 seconds later
        assert stop.reason() == ("cancelled", "SIGINT to ansible-playbook")
        assert not stop.insisted()
        send(signal.SIGINT)
        assert stop.insisted()


@pytest.mark.parametrize("order", [(signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)])
def test_it_may_even_be_noted_before(order: tuple[int, int]) -> None:
    """Reproduced before: it came while the other was being noted, and the second Ctrl-C was no second one."""
    with StopWatch() as stop:
        stop.hold("ending the job")
        for number in (*order, signal.SIGTERM):
            send(number)
        assert stop.reason() == ("cancelled", "SIGINT to ansible-playbook")
        assert not stop.insisted()
        parent, stop.parent = stop.parent, -1
        assert stop.insisted()
        stop.parent = parent


def test_one_that_comes_while_another_is_noted_is_not_answered_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Noted(list[str]):
        """A second signal comes just when the first is added."""

        def append(self, name: str) -> None:
            if not said and name == "SIGINT":
                said.append("")
                send(signal.SIGTERM)
            super().append(name)

    with StopWatch() as stop:
        stop.hold("ending the job")
        monkeypatch.setattr(stop, "noted", Noted())
        monkeypatch.setattr(stop, "say", said.append)
        send(signal.SIGINT)
        assert sorted(stop.noted) == ["SIGINT", "SIGTERM"] and len(said) == 2


def test_after_ctrl_c_the_death_of_ansible_playbook_is_a_second_one() -> None:
    for number, insisted in ((signal.SIGINT, True), (signal.SIGTERM, False)):
        with StopWatch() as stop:
            stop.hold("ending the job")
            send(number)
            parent, stop.parent = stop.parent, -1
            assert stop.insisted() is insisted
            assert stop.reason() == ("cancelled", f"{number.name} to ansible-playbook")
            stop.parent = parent


def test_a_stop_that_came_before_the_order_raises() -> None:
    with StopWatch() as stop:
        stop.hold("ending the job")
        stop.check()
        send(signal.SIGTERM)
        with pytest.raises(Stopped):
            stop.check()


def test_a_terminal_that_was_closed_is_known() -> None:
    controller, inside = pty.openpty()
    with StopWatch() as stop:
        stop.hold("ending the job")
        stop.terminal = terminal_of(os.getpid(), (inside,))
        assert stop.terminal >= 0 and not stop.hung_up()
        stop.say("hello")
        assert b"hello" in os.read(controller, 100)
        os.close(inside)
        os.close(controller)
        assert stop.hung_up()
        parent, stop.parent = stop.parent, -1
        assert stop.reason() == TERMINAL_CLOSED
        stop.parent = parent


def test_what_fails_after_ctrl_c_is_said_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible shows no result after it."""
    said: list[str] = []
    monkeypatch.setattr(StopWatch, "say", lambda _watch, text: said.append(text))
    with StopWatch() as stop:
        assert stop.tell("it is full") == "it is full"
    with pytest.raises(HeadLost), StopWatch():
        raise HeadLost("silent for 60 s")
    assert not said
    with pytest.raises(HeadLost), StopWatch() as stop:
        stop.hold("ending the job")
        send(signal.SIGINT)
        assert stop.tell("it is full") == "it is full"
        raise HeadLost("silent for 60 s")
    assert said[1:] == ["it is full", "silent for 60 s"]


def test_what_is_no_terminal_is_not_taken_for_one(tmp_path: Path) -> None:
    incoming, outgoing = os.pipe()
    with open(tmp_path / "log", "w") as log, open(os.devnull) as null:
        assert terminal_of(os.getpid(), (incoming, outgoing, log.fileno(), null.fileno(), 999)) == -1
    os.close(incoming)
    os.close(outgoing)


def test_a_fetch_is_given_up_when_the_user_insists(tmp_path: Path) -> None:
    """The head says nothing any more, and would be waited for without end."""
    session, (incoming, _says), (_hears, outgoing) = object.__new__(Session), os.pipe(), os.pipe()
    session.head, session.home, session.remote = Node("n1", "n1"), "/home", object.__new__(RemoteProcess)
    session.remote.channel = Channel(incoming, outgoing)
    with StopWatch() as stop:
        stop.hold("bringing the job home")
        send(signal.SIGINT)  # noted before the next is sent: two that wait would be one
        threading.Timer(0.05, send, (signal.SIGINT,)).start()
        with pytest.raises(HeadLost, match="stopped twice"):
            session.fetch("one", tmp_path, [(0, "n1")], 1 << 30, stop.insisted)
