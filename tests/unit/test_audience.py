"""Who follows a job: those who come later hear how far it is, may end it, and leave without ending it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.audience import MOST, SOCKET, Audience
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import Channel

ORDER: Any = {"placement": [{"rank": 0, "local_rank": 0, "host": "n1"}]}
REPORT = {"kind": "report", "rank": 0, "values": {"step": 1}}


class Owner:
    """The controller that started the job, and its end of the channel."""

    def __init__(self) -> None:
        incoming, self.says = os.pipe()
        self.hears, outgoing = os.pipe()
        self.channel = Channel(incoming, outgoing)

    def leave(self) -> None:
        os.close(self.says)


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def audience(tmp_path: Path, owner: Owner) -> Iterator[Audience]:
    made = Audience(owner.channel, detached=True)
    made.open(str(tmp_path), ORDER)
    yield made
    made.close()


def follower(directory: Path) -> Channel:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(directory / SOCKET))
    descriptor = connection.detach()
    return Channel(descriptor, os.dup(descriptor))


def heard(channel: Channel) -> dict[str, Any]:
    frame = channel.receive(60)
    assert frame is not None
    return {name: value for name, value in frame.items() if name != "data"}


def test_who_comes_later_hears_what_the_job_is_and_how_far_it_came(audience: Audience, tmp_path: Path) -> None:
    audience.offer(REPORT)
    late = follower(tmp_path)
    assert audience.receive() is None
    assert heard(late) == {"kind": "attached", **ORDER}
    assert heard(late) == REPORT
    audience.send({"kind": "started"})
    assert heard(late) == {"kind": "started"}


def test_a_follower_may_end_the_job_and_say_nothing_else(audience: Audience, tmp_path: Path) -> None:
    first, second = follower(tmp_path), follower(tmp_path)
    for _ in range(2):
        assert audience.receive() is None
    second.send({"kind": "run", "order": {}})  # no such frame is taken from it
    assert audience.receive() is None and len(audience.channels) == 2
    first.send({"kind": "end", "reason": "cancelled", "detail": "do=cancel"})
    frame = audience.receive()
    assert frame is not None and (frame["kind"], frame["reason"]) == ("end", "cancelled")


def test_a_detached_job_goes_on_without_anybody(audience: Audience, owner: Owner, tmp_path: Path) -> None:
    late = follower(tmp_path)
    audience.receive()
    late.close()
    owner.leave()
    for _ in range(3):
        assert audience.receive() is None
    assert audience.channels == [] and len(audience.inputs()) == 1


def test_any_other_job_ends_with_its_controller(owner: Owner) -> None:
    audience = Audience(owner.channel, detached=False)
    assert audience.receive() is None
    owner.leave()
    with pytest.raises(EOFError):
        audience.receive()


def test_no_more_than_some_are_let_in(audience: Audience, tmp_path: Path) -> None:
    """A program of the job may connect as often as it likes."""
    channels = [follower(tmp_path) for _ in range(MOST + 1)]
    for _ in range(MOST + 3):
        audience.receive()
    assert len(audience.others) == MOST and len(audience.inputs()) == MOST + 1
    channels[0].close()
    audience.receive()
    audience.receive()
    assert len(audience.others) == MOST  # the last one came in for the one that left
