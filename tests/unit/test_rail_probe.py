"""Two agents test their rails, here on loopback: by TCP for real, by RDMA with a stand-in of ib_write_bw.

The stand-in is a program that prints what was recorded of the real one: no machine here has RDMA. Client and server
meet on the port as the real ones do.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric import (
    perftest,
    probe,
    probe_server,
    rail_probe,
    unreached,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.answers import rails_measured_of
from tests.unit.file_tree import tree
from tests.unit.test_perftest import GOOD, LOST

Measure = Callable[..., list[dict[str, Any]]]
TCP = {
    "rail": "mlx5_0:1",
    "peer": "mlx5_0:1",
    "by": "tcp",
    "nic": "lo",
    "source": "127.0.0.1",
    "address": "127.0.0.1",
    "mtu": 9000,
}
PORT = {"device": "mlx5_3", "port": 1, "gid_index": 3}
RDMA = {"rail": "mlx5_3:1", "peer": "mlx5_3:1", "by": "rdma", "own": PORT, "other": PORT}
STAND_IN = """#!/usr/bin/env python3
import socket, sys
words = sys.argv[1:]
port, size = int(words[words.index("--port") + 1]), words[words.index("--size") + 1]
if words[-2] == "--iters":  # the server
    connection, _client = socket.create_server(("", port)).accept()
    connection.recv(1)
    sys.exit(0)
try:
    socket.create_connection((words[-1], port)).close()
except OSError:
    sys.exit("Couldn't connect to %s:%d" % (words[-1], port))
print(open("{there}/" + ("small" if size == "64" else "large")).read())
"""


@pytest.fixture
def measure() -> Iterator[Measure]:
    """Return a function by which n1 measures rails to n2, as both do it in a round of a real test."""
    listeners = []

    def agent(name: str) -> dict[str, Any]:
        listener, left = probe_server.bind([0]), threading.Event()
        server = probe_server.Agent(name, "t", ["n1", "n2"], left.set)
        listeners.append(listener)
        threading.Thread(target=serve, args=(server, listener), daemon=True).start()
        return {"port": listener.getsockname()[1], "token": "t"}

    def serve(server: probe_server.Agent, listener: socket.socket) -> None:
        try:
            server.serve(listener)
        except OSError:
            pass  # the test is over

    def rows(*rails: dict[str, Any], **changed: Any) -> list[dict[str, Any]]:
        agents = {name: agent(name) for name in ("n1", "n2")}
        shared = {"round": 3, "seconds": 0.02, "rails": list(rails)}
        client = {**shared, "role": "client", "node": "n2", "address": "127.0.0.1", **agents["n2"], **changed}
        plans = {"n1": [client], "n2": [{**shared, "role": "server", "node": "n1"}]}
        for name, plan in plans.items():
            probe.ask(name, agents[name], 5.0, {"do": "schedule", "steps": plan})
        found = probe.ask("n1", agents["n1"], 300.0, {"do": "collect"})["rows"]
        return rails_measured_of("n1", found, ["n1", "n2"])

    yield rows
    for listener in listeners:
        listener.close()


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lay the stand-in on the search path; what it prints lies beside it."""
    program = tmp_path / perftest.TOOL
    program.write_text(STAND_IN.replace("{there}", str(tmp_path)))
    program.chmod(0o755)
    for name in ("small", "large"):
        (tmp_path / name).write_text(GOOD)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def test_a_rail_is_measured_by_tcp_over_its_nic(measure: Measure) -> None:
    (row,) = measure(TCP)
    assert (row["node"], row["rail"], row["code"], row["mtu"]) == ("n2", "mlx5_0:1", "", 9000)
    assert row["mbit"] > 0


def test_a_rail_whose_nic_the_kernel_does_not_use_is_not_judged(measure: Measure) -> None:
    (bad, good) = measure({**TCP, "nic": "rail7"}, {**TCP, "rail": "mlx5_1:1"})
    assert (bad["code"], good["code"]) == ("other-nic", "")


@pytest.mark.parametrize("files", [{"carrier": "0"}, {"operstate": "down"}])
def test_a_cut_cable_is_told_before_any_way_that_the_kernel_would_take(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    tree(tmp_path, **{f"lo/{name}": text for name, text in files.items()})
    monkeypatch.setattr(probe, "NICS", str(tmp_path))
    (row,) = measure(TCP)
    assert (row["code"], row["error"][:29]) == ("no-carrier", "lo is down or has no carrier:")


def test_full_packets_that_are_lost_are_not_a_slow_rail(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "FULL_SECONDS", 2.0)
    echo = probe_server.Agent.echo

    def narrow(agent: probe_server.Agent, line: probe.Line, peer: str, order: dict[str, Any]) -> None:
        if order["size"] > 1500:
            threading.Event().wait(30)
        echo(agent, line, peer, order)

    monkeypatch.setattr(probe_server.Agent, "echo", narrow)
    (row,) = measure(TCP)
    assert row["code"] == "small-mtu" and "mbit" not in row
    assert row["error"] == "small packets pass, full ones do not: MTU 9000 is too large for the path"


def test_a_busy_node_may_be_late_once(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "FULL_SECONDS", 2.0)
    echo, late = probe_server.Agent.echo, threading.Event()

    def slow(agent: probe_server.Agent, line: probe.Line, peer: str, order: dict[str, Any]) -> None:
        if order["size"] > 1500 and not late.is_set():
            late.set()
            threading.Event().wait(4)
        echo(agent, line, peer, order)

    monkeypatch.setattr(probe_server.Agent, "echo", slow)
    (row,) = measure(TCP)
    assert (row["code"], late.is_set()) == ("", True)


def test_a_node_that_falls_silent_is_not_said_to_be_behind_a_firewall(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "FULL_SECONDS", 1.0)
    monkeypatch.setattr(probe_server.Agent, "echo", lambda *_given: threading.Event().wait(30))
    (row,) = measure(TCP)
    assert (row["code"], row["error"]) == ("failed", probe.FELL_SILENT)


def test_a_kernel_that_sends_smaller_packets_does_not_hide_a_small_mtu(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    bind = probe_server.bind

    def narrow(ports: Sequence[int]) -> socket.socket:
        listener = bind(ports)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        return listener

    monkeypatch.setattr(probe_server, "bind", narrow)
    (row,) = measure(TCP)
    assert row["code"] == "small-mtu" and row["error"].startswith("packets of about 1")


def test_smaller_packets_than_the_full_ones_are_told_too() -> None:
    """The kernel may find out that they are lost, and send smaller ones: TCP works then, and RoCE does not."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        one.connect(listener.getsockname())
        probe.check_size(one, 1500)
        with pytest.raises(unreached.Unreached, match="full ones do not: MTU 9000 is too large") as error:
            probe.check_size(one, 9000)
    assert error.value.code == "small-mtu"


@pytest.mark.usefixtures("tool")
def test_a_rail_is_measured_by_rdma(measure: Measure) -> None:
    (row,) = measure(RDMA)
    assert row == {
        "node": "n2",
        "rail": "mlx5_3:1",
        "peer": "mlx5_3:1",
        "by": "rdma",
        "code": "",
        "error": "",
        "mbit": 394250.0,
        "mtu": 4096,
    }


@pytest.mark.parametrize(
    ("small", "large", "code"),
    [(LOST, LOST, "rdma-lost"), (GOOD, LOST, "small-mtu"), (GOOD, "Couldn't allocate MR", "no-tool")],
)
def test_a_cut_rail_is_told_from_one_that_loses_full_packets(
    measure: Measure, tool: Path, small: str, large: str, code: str
) -> None:
    (tool / "small").write_text(small)
    (tool / "large").write_text(large)
    (row,) = measure(RDMA)
    assert row["code"] == code


def test_perftest_that_is_not_there_is_no_fault_of_the_rail(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (row,) = measure(RDMA)
    assert (row["code"], row["error"]) == ("no-tool", "on n2: ib_write_bw: No such file or directory")


@pytest.mark.usefixtures("tool")
@pytest.mark.parametrize("port", [None, "x", 1e999, 70000])
def test_a_port_that_a_node_makes_up_is_no_end_of_the_test(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, port: Any
) -> None:
    monkeypatch.setattr(probe_server.Agent, "serve_rdma", lambda _self, line, _peer, _order: line.send(port=port))
    rows = measure(RDMA, TCP)
    assert [bool(row["code"]) for row in rows] == [True, False]


def test_a_node_that_is_not_reached_says_nothing_of_its_rails(measure: Measure) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()[1]
    rows = measure(TCP, RDMA, port=closed)
    assert [row["code"] for row in rows] == ["not-ready", "not-ready"]
    assert rows[0]["error"].startswith("n2 over 127.0.0.1: refused")


# --- a machine that was on the link a moment ago ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "there"),
    [
        ([(0x02, 20.0), (0x08, 31.0), (0x10, 36.0), (0x20, 39.0)], False),  # it was there, and answers no more
        ([(0x02, 20.0), (0x10, 36.0), (0x02, 0.1)], True),  # it answers the kernel: something drops the rest
        ([(0x02, 0.0)], True),
        ([None], None),
        ([(0x01, 0.0)], False),
    ],
)
def test_the_kernel_is_asked_again_for_a_machine_that_it_knew(
    monkeypatch: pytest.MonkeyPatch, entries: list[tuple[int, float] | None], there: bool | None
) -> None:
    clock = [100.0]
    monkeypatch.setattr(unreached, "neighbour_entry", lambda _address: entries.pop(0))
    monkeypatch.setattr(unreached.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(unreached.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    assert unreached.is_there("127.0.0.1", 98.0) is there


def test_rows_without_an_answer_are_settled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"10.0.0.2": False, "10.0.0.3": True}
    monkeypatch.setattr(probe, "is_there", lambda address, _since: asked[address])
    rows: list[dict[str, Any]] = [{"address": address, "since": 1.0, "code": "silent"} for address in asked]
    probe.settle([*rows, {"code": ""}])
    assert [row["code"] for row in rows] == ["no-neighbour", "dropped"]
    assert all(not {"address", "since"} & row.keys() for row in rows)


def test_a_step_of_rails_waits_longer_for_the_other_node() -> None:
    assert rail_probe.TURN_SECONDS > probe_server.TURN_SECONDS
