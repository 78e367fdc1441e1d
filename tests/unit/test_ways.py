"""The parts that join nodes: a way there, one clock."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime import bootstrap, remote_shell
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.channel import Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.link import ConnectionLost, RemoteProcess
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.peer import RemoteNode, in_head_time
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import runtime_archive
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import session as session_module


def test_our_code_comes_up_behind_a_noisy_login(tmp_path: Path) -> None:
    """Profiles print, and the first time the archive has to cross the wire; the second time it must not."""
    start = bootstrap.bootstrap(sys.executable, str(tmp_path / "a home"), runtime_archive.digest())
    for archive in (runtime_archive.archive, never):
        remote = RemoteProcess(["/bin/sh", "-c", 'echo "Welcome!"; echo; exec "$@"', "sh", *start])
        remote.greet(archive)
        assert remote.ask("clock")["time"] > 1e9
        remote.close()


def never() -> bytes:
    raise AssertionError("the archive was asked for again")


def test_a_way_that_leads_nowhere_tells_why() -> None:
    with pytest.raises(ConnectionLost, match="Permission denied"):
        RemoteProcess(["/bin/sh", "-c", "echo banner >&2; echo 'me@n2: Permission denied (publickey).' >&2"]).greet(
            bytes
        )
    with pytest.raises(ConnectionLost, match="/no/such: No such file"):
        RemoteProcess(["/no/such"])
    silent = RemoteProcess(["sleep", "60"])
    with pytest.raises(ConnectionLost, match="no answer within 0 s"):
        silent.greet(bytes, seconds=0.2)
    silent.process.kill()
    silent.close()


def test_a_session_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduced before: it waited until the head had left, whatever held that up. What it does there goes on."""
    monkeypatch.setattr(session_module, "LEAVE_SECONDS", 0.1)
    session = object.__new__(session_module.Session)
    session.remote = RemoteProcess(["sleep", "600"])
    with session:
        pass
    assert session.remote.process.poll() is None
    session.remote.process.kill()
    session.remote.process.wait()


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


def test_a_daemon_is_looked_for_where_it_lies_on_its_node() -> None:
    command = "PRTE_PREFIX=/home/a/ompi;export PRTE_PREFIX;/home/a/ompi/bin/prted -x /home/a/ompi2"
    there = "PRTE_PREFIX=/srv/o;export PRTE_PREFIX;/srv/o/bin/prted -x /home/a/ompi2"
    names = {"launcher_prefix": "/home/a/ompi", "nic": "eth0"}, {"launcher_prefix": "/srv/o", "nic": "ib0"}
    assert remote_shell.localized(command, *names) == there
    proxy = '"/home/a/ompi/bin/hydra_pmi_proxy" --control-port 10.0.0.1:1 --iface eth0 --pgid 0 --x eth0'
    assert remote_shell.localized(proxy, *names) == (
        '"/srv/o/bin/hydra_pmi_proxy" --control-port 10.0.0.1:1 --iface ib0 --pgid 0 --x eth0'
    )


def test_times_of_a_node_are_turned_into_ours() -> None:
    report = {"records": {"3": {"rank": 3, "started": 105.0, "ended": 107.5}}, "launcher": {"pid": 7, "at": 108.0}}
    ours = in_head_time(report, 5.0)
    assert ours["records"]["3"] == {"rank": 3, "started": 100.0, "ended": 102.5} and ours["launcher"]["at"] == 103.0
