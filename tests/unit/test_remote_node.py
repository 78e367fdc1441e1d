"""Another node, seen from the head: when it is lost, and what it may ask for."""

from __future__ import annotations

import math
import os
import threading
import time
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.alone import NotAlone
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.remote_node import (
    NotStaged,
    RemoteNode,
    in_head_time,
    stage_on_all,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.frames import FROM_NODE
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import ConnectionLost, RemoteProcess

OFFERED, OTHER = "0" * 64, "1" * 64


def peer_and_node() -> tuple[RemoteNode, Channel]:
    """Return the head's view of a node, and the node's end of the wire."""
    (incoming, says), (hears, outgoing) = os.pipe(), os.pipe()
    peer = object.__new__(RemoteNode)
    peer.name, peer.home, peer.remote = "n2", "/home/me/.torchfleet", object.__new__(RemoteProcess)
    peer.channel = peer.remote.channel = Channel(incoming, outgoing, None, FROM_NODE)
    peer.report, peer.lost, peer.lease, peer.grace, peer.end_by = None, "", 10.0, 0.5, math.inf
    peer.last_received = peer.last_sent = time.monotonic()
    return peer, Channel(hears, says)


def test_a_node_that_is_silent_for_the_lease_is_lost_and_not_before() -> None:
    peer, node = peer_and_node()
    peer.last_received -= 9.0
    peer.beat()
    assert peer.lost == ""
    node.send({"kind": "beat"})
    assert peer.messages() == [] and time.monotonic() - peer.last_received < 5  # any sign of life counts
    peer.last_received -= 10.0
    peer.beat()
    assert peer.lost == "silent for 10 s" and peer.over


def test_a_node_is_told_in_time_that_the_head_lives() -> None:
    peer, node = peer_and_node()
    peer.beat()
    assert node.receive(0) is None
    peer.last_sent -= 3.0
    peer.beat()
    frame = node.receive(5)
    assert frame is not None and frame["kind"] == "beat"


@pytest.mark.parametrize("wanted", [[OTHER], [OFFERED, OTHER]])
def test_a_node_has_no_file_that_it_was_not_offered(wanted: list[str]) -> None:
    """The head has the files of other people's jobs as well."""
    peer, node = peer_and_node()
    answers: list[Any] = []

    def answer() -> None:
        answers.append(node.receive(30))
        node.send({"kind": "wanted", "wanted": wanted})

    answering = threading.Thread(target=answer, daemon=True)
    answering.start()
    with pytest.raises(ConnectionLost, match="it asks for files that were not offered"):
        peer.ask_for_folder([["train.py", OFFERED, False]])
    answering.join(30)
    assert answers[0]["kind"] == "folder"


ORDER = {"address": "192.0.2.1", "launcher_prefix": "/opt", "nic": "eth0", "grace": None, "lease": 60.0}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"reason": "No space left on device"}, NotStaged),
        ({"reason": "other jobs run here", "running": [{"job_id": "one", "owner": "me", "own_home": True}]}, NotAlone),
    ],
)
def test_a_job_is_staged_on_all_nodes_or_on_none(answer: dict[str, Any], error: type[OSError]) -> None:
    """The node that could would keep its job directory, and refuse the same job id for ever."""
    (good, node), (bad, other) = peer_and_node(), peer_and_node()
    bad.name = "n3"
    heard: dict[str, list[str]] = {"n2": [], "n3": []}

    def play(name: str, end: Channel, answer: dict[str, Any]) -> None:
        for _frame in range(2):
            frame = end.receive(30)
            heard[name].append(frame["kind"] if frame else "nothing")
            if frame and frame["kind"] == "stage":
                end.send({"kind": "staged", **answer})

    playing = [
        threading.Thread(target=play, args=given, daemon=True) for given in (("n2", node, {}), ("n3", other, answer))
    ]
    for thread in playing:
        thread.start()
    with pytest.raises(error) as refused:
        stage_on_all([good, bad], {"n2": ORDER, "n3": ORDER}, {"n2": {}, "n3": {}})
    for thread in playing:
        thread.join(30)
    assert heard == {"n2": ["stage", "unstage"], "n3": ["stage", "unstage"]}
    if isinstance(refused.value, NotAlone):
        assert refused.value.running == {"n3": [{"job_id": "one", "owner": "me", "own_home": True}]}
    else:
        assert str(refused.value) == "n3: No space left on device"


def test_a_node_that_is_silent_for_the_lease_is_lost() -> None:
    peer = object.__new__(RemoteNode)
    (incoming, _out), (_in, outgoing) = os.pipe(), os.pipe()
    peer.channel, peer.report, peer.lost, peer.lease = Channel(incoming, outgoing), None, "", 20.0
    peer.end_by, peer.last_sent = math.inf, time.monotonic()
    peer.last_received = time.monotonic() - 15
    peer.beat()
    assert not peer.lost
    peer.last_received -= 6
    peer.beat()
    assert peer.lost == "silent for 20 s"


def test_times_of_a_node_are_turned_into_ours() -> None:
    report = {"records": {"3": {"rank": 3, "started": 105.0, "ended": 107.5}}, "launcher": {"pid": 7, "at": 108.0}}
    ours = in_head_time(report, 5.0)
    assert ours["records"]["3"] == {"rank": 3, "started": 100.0, "ended": 102.5} and ours["launcher"]["at"] == 103.0
