"""How long the controller waits for a head that says nothing, or only that it is there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import frames
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import RemoteProcess
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import StopWatch
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import connection, runtime_archive
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import session as session_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.connection import HeadLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session


class Head:
    """A head that says what a test has it say."""

    def __init__(self) -> None:
        (incoming, says), (hears, outgoing) = os.pipe(), os.pipe()
        self.session, self.channel = object.__new__(Session), Channel(hears, says)
        self.session.head, self.session.home, self.session.remote = (
            Node("n1", "n1"),
            "/home",
            object.__new__(RemoteProcess),
        )
        self.session.remote.channel = Channel(incoming, outgoing, accepted=frames.FROM_HEAD)

    def close(self) -> None:
        for channel in (self.channel, self.session.remote.channel):
            channel.close()


@pytest.fixture
def head() -> Iterator[Head]:
    made = Head()
    yield made
    made.close()


def never() -> bool:
    return False


def test_a_head_that_says_nothing_is_lost(head: Head) -> None:
    """Reproduced before: it was waited for without end."""
    with pytest.raises(HeadLost, match=r"the head n1 is lost: silent for 0\.1 s"):
        head.session.answer(never, 0.1)


def test_a_head_that_only_beats_is_lost_in_the_end(head: Head) -> None:
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.01):
            head.channel.send({"kind": "beat"})

    thread = threading.Thread(target=beat)
    thread.start()
    with pytest.raises(HeadLost, match=r"still at work after 0\.2 s, its disk may hang"):
        head.session.answer(never, 30.0, 0.2)
    stop.set()
    thread.join()


def test_a_head_that_beats_is_waited_for(head: Head) -> None:
    beats = iter(range(5))

    def another_beat() -> bool:
        """Asked before each look: so the answer comes behind five beats, however slow this machine is."""
        kind = "beat" if next(beats, None) is not None else "started"
        head.channel.send({"kind": kind})
        return False

    assert head.session.answer(another_beat, 30.0)["kind"] == "started"


def test_while_a_job_runs_a_head_may_be_silent_for_the_lease(head: Head) -> None:
    with StopWatch() as stop, pytest.raises(HeadLost, match=r"silent for 0\.3 s"):
        head.session.run({"job": {"lease": 0.3, "placement": []}}, lambda _frame: None, stop)
    asked = head.channel.receive(10)
    assert asked is not None and asked["kind"] == "run" and asked["beats"]
    assert asked["order"]["job"]["lease"] == 0.3


def test_a_head_that_takes_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduced before: an order, or a folder, that is more than a pipe holds was sent without end."""
    monkeypatch.setattr(connection, "SILENT_SECONDS", 0.2)
    entry = tmp_path / runtime_archive.entry()
    entry.parent.mkdir(parents=True)
    entry.touch()
    deaf = tmp_path / "python3"
    deaf.write_text("#!/bin/sh\nexec sleep 600\n")
    deaf.chmod(0o700)
    session = Session(Node("n1", "n1", local=True, home=str(tmp_path), interpreter=str(deaf)), ())
    sending = threading.Thread(
        target=session.remote.channel.send, args=({"kind": "run", "order": "x" * (1 << 20)},), daemon=True
    )
    sending.start()
    sending.join(20)
    try:
        assert not sending.is_alive() and session.remote.channel.lost
    finally:
        session.remote.process.kill()
        session.remote.process.wait()
        sending.join()
        session.remote.close()


def test_a_session_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduced before: it waited until the head had left, whatever held that up. What it does there goes on."""
    monkeypatch.setattr(connection, "LEAVE_SECONDS", 0.1)
    session = object.__new__(session_module.Session)
    session.remote = RemoteProcess(["sleep", "600"])
    with session:
        pass
    assert session.remote.process.poll() is None
    session.remote.process.kill()
    session.remote.process.wait()
