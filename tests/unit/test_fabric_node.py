"""The part of the fabric that runs on nodes: sysfs, netlink, the agent and the probe; and the rounds of the matrix."""

from __future__ import annotations

import errno
import itertools
import math
import os
import select
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric import (
    netlink,
    nics,
    probe,
    probe_server,
    rail_probe,
    rdma,
    unreached,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.answers import measured_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.link_matrix import (
    rates,
    rounds,
    slow_links,
    steps,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.networks import node_net
from tests.unit.nets import Sysfs, write


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


# --- sysfs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "flags", "files", "directories"),
    [
        ("loopback", 0x9, {"type": "772"}, []),
        ("physical", 0x1003, {}, ["device"]),
        ("veth", 0x1003, {"iflink": "77"}, []),
        ("bridge", 0x1003, {"uevent": "DEVTYPE=bridge\nINTERFACE=br0"}, ["bridge"]),
        ("bridge", 0x1003, {}, ["bridge"]),
        ("bond", 0x1403, {}, ["bonding"]),
        ("vlan", 0x1003, {"uevent": "DEVTYPE=vlan\nINTERFACE=eth0.7", "iflink": "3"}, []),
        ("tunnel", 0x1091, {"type": "65534", "uevent": "DEVTYPE=wireguard"}, []),
        ("tunnel", 0x1091, {"type": "512"}, []),
        ("tunnel", 0x81, {"type": "65534"}, []),
        ("tunnel", 0x1003, {"tun_flags": "0x1002"}, []),
        ("tunnel", 0x10D1, {}, []),
        ("virtual", 0x83, {}, []),
    ],
)
def test_the_kind_of_a_nic(sysfs: Sysfs, kind: str, flags: int, files: dict[str, str], directories: list[str]) -> None:
    path = sysfs.nic("x0", flags=flags, **files)
    for name in directories:
        (path / name).mkdir()
    assert nics.link(str(path))["kind"] == kind


def test_a_nic_that_is_up_and_one_that_is_not(sysfs: Sysfs) -> None:
    sysfs.nic("eth0", speed="25000", mtu="9000")
    down = sysfs.nic("eth1", flags=0x1002, operstate="down", speed="-1")
    (down / "carrier").unlink()  # reading it is an error
    write(sysfs.root / "class/net/bonding_masters", "bond0")
    row = {"nic": "eth0", "address": "10.0.0.1", "prefix": 8, "peer": "", "stable": True, "route": "eth0", "index": 2}
    up, other = nics.nics(str(sysfs.root), [row])
    assert (up["up"], up["carrier"], up["speed_mbit"], up["mtu"]) == (True, True, 25000, 9000)
    assert up["addresses"] == [{key: row[key] for key in ("address", "prefix", "peer", "stable", "route")}]
    assert (other["up"], other["carrier"], other["speed_mbit"], other["addresses"]) == (False, False, None, [])


def test_the_port_of_a_bridge(sysfs: Sysfs) -> None:
    sysfs.nic("br0")
    (sysfs.nic("eth0") / "master").symlink_to(sysfs.root / "class/net/br0")
    assert [row["port_of"] for row in nics.nics(str(sysfs.root), [])] == ["", "br0"]


def test_rdma_ports_and_their_gids(sysfs: Sysfs) -> None:
    port = sysfs.port("mlx5_0")
    sysfs.gid(port, 0, "fe80::1", "IB/RoCE v1")
    sysfs.gid(port, 2, "10.92.0.7", "RoCE v2", "eth1.5")
    sysfs.port("mlx5_1", 2, state="1: DOWN", layer="InfiniBand")
    first, second = rdma.rdma_ports(str(sysfs.root))
    assert (first["device"], first["port"], first["active"], first["rate_gbit"]) == ("mlx5_0", 1, True, 100.0)
    assert [(gid["index"], gid["type"], gid["netdev"]) for gid in first["gids"]] == [
        (0, "IB/RoCE v1", "eth0"),
        (2, "RoCE v2", "eth1.5"),
    ]
    assert (second["active"], second["port"], second["link_layer"], second["gids"]) == (False, 2, "InfiniBand", [])


@pytest.mark.parametrize(
    ("rate", "gbit", "width"),
    [
        ("400 Gb/sec (4X NDR)", 400.0, "4X NDR"),
        ("200 Gb/sec (2X NDR)", 200.0, "2X NDR"),
        ("2.5 Gb/sec (1X SDR)", 2.5, "1X SDR"),  # what a port has that is down
        ("10 Gb/sec (4X)", 10.0, ""),
        ("fast", None, ""),
        ("", None, ""),
    ],
)
def test_rate_and_width_of_a_link(sysfs: Sysfs, rate: str, gbit: float | None, width: str) -> None:
    """Documentation/ABI/stable/sysfs-class-infiniband: "rate: Port data rate (active width * active speed)"."""
    write(sysfs.port("mlx5_0") / "rate", rate)
    (port,) = rdma.rdma_ports(str(sysfs.root))
    assert (port["rate_gbit"], port["width"]) == (gbit, width)


def test_model_and_firmware_of_a_device(sysfs: Sysfs) -> None:
    """board_id is the PSID of a ConnectX; devices of others have hca_type at most."""
    for device, files in {
        "mlx5_0": {"fw_ver": "28.39.1002", "board_id": "MT_0000000838", "hca_type": "MT4129"},
        "bnxt_re0": {"fw_ver": "230.2.52.0", "hca_type": "BCM57608"},
        "rxe0": {},
    }.items():
        place = sysfs.port(device).parents[1]
        for name, text in files.items():
            write(place / name, text)
    found = {row["device"]: (row["board"], row["firmware"]) for row in rdma.rdma_ports(str(sysfs.root))}
    assert found == {
        "mlx5_0": ("MT_0000000838", "28.39.1002"),
        "bnxt_re0": ("BCM57608", "230.2.52.0"),
        "rxe0": ("", ""),
    }
    assert {port.device for port in node_net("n1", nics.survey("/nowhere", str(sysfs.root))).ports} == set(found)


def test_the_facts_become_values(sysfs: Sysfs, tmp_path: Path) -> None:
    sysfs.gid(sysfs.port("mlx5_0"), 3, "10.92.0.7", "RoCE v2")
    sysfs.nic("eth0")
    node = node_net("n1", nics.survey(str(tmp_path), str(sysfs.root)))
    assert [nic.name for nic in node.nics] == ["eth0"]
    assert str(node.ports[0].gids[0].ip) == "10.92.0.7"


def test_no_rdma_and_no_sysfs_are_no_errors(tmp_path: Path) -> None:
    assert rdma.rdma_ports(str(tmp_path)) == []
    assert nics.nics(str(tmp_path), []) == []


def test_what_is_read_of_text() -> None:
    hosts = "127.0.0.1 localhost\n127.0.1.1 n1.lan n1 # own\n#10.0.0.9 n1\n10.0.0.1\tn1\n"
    assert nics.addresses_in_hosts(hosts, "n1") == ["127.0.1.1", "10.0.0.1"]
    assert nics.arrival({"SSH_CONNECTION": "10.0.0.9 40000 fe80::1%eth0 22"}) == "fe80::1"
    assert nics.arrival({}) == ""
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    table = head + "wlan0\t00000000\t0100A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
    table += "eth0\t00000000\t01005B0A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    table += "tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0\n"
    table += "eth1\t00005C0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    assert nics.default_nic(table) == "eth0"
    assert nics.default_nic(head) == ""


@pytest.mark.parametrize(
    ("address", "prefix", "neighbour"),
    [("10.0.0.1", 24, "10.0.0.2"), ("10.0.0.9", 24, "10.0.0.1"), ("10.0.0.1", 32, ""), ("fd00::1", 64, "fd00::2")],
)
def test_a_neighbour(address: str, prefix: int, neighbour: str) -> None:
    assert nics.neighbour_of(address, prefix) == neighbour


# --- netlink: messages as the kernel sent them ------------------------------------------------------------------------

IPV4 = (
    "021880000400000008000100c000020208000200c000020208000400c00002ff09000300657468300000000008000800"
    "8000000014000600ffffffffffffffff1400000014000000"
)
IPV6 = (
    "0a4080fd0400000014000100fe8000000000000000fc00fffe00000114000600ffffffffffffffff1400000014000000"
    "080008008000000005000b0003000000"
)


def test_addresses_of_the_kernel() -> None:
    plain = {"index": 4, "peer": "", "stable": True}
    assert netlink.parse_address(bytes.fromhex(IPV4)) == {**plain, "address": "192.0.2.2", "prefix": 24}
    assert netlink.parse_address(bytes.fromhex(IPV6)) == {
        **plain,
        "address": "fe80::fc:ff:fe00:1",
        "prefix": 64,
    }
    other_end = IPV4.replace("08000100c0000202", "080001000a080001")
    assert (netlink.parse_address(bytes.fromhex(other_end)) or {})["peer"] == "10.8.0.1"
    for flag in (0x01, 0x08, 0x20, 0x40):  # temporary, a duplicate, deprecated, tentative (linux/if_addr.h)
        unstable = IPV6.replace("0800080080000000", f"08000800{flag:02x}000000")
        assert (netlink.parse_address(bytes.fromhex(unstable)) or {})["stable"] is False


def test_this_machine_has_a_loopback() -> None:
    assert ("127.0.0.1", 8) in [(row["address"], row["prefix"]) for row in netlink.addresses()]
    assert netlink.route_to("127.0.0.1") == ("lo", "127.0.0.1")


# --- agents, here as threads on loopback ------------------------------------------------------------------------------

Start = Callable[..., dict[str, Any]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts an agent and returns what its peers need; `left` is set when it would end."""
    listeners = []

    def begin(name: str, *expected: str) -> dict[str, Any]:
        listener, left = probe_server.bind([0]), threading.Event()
        agent = probe_server.Agent(name, f"token of {name}", expected, left.set)
        threading.Thread(target=serve, args=(agent, listener), daemon=True).start()
        listeners.append(listener)
        return {"node": name, "port": listener.getsockname()[1], "token": agent.token, "left": left}

    def serve(agent: probe_server.Agent, listener: socket.socket) -> None:
        try:
            agent.serve(listener)
        except OSError:
            pass  # the test is over

    yield begin
    for listener in listeners:
        listener.close()


def seen_by(agent: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Return an agent as a peer of the probe, over loopback."""
    over = {"network": "127.0.0.0/8", "address": "127.0.0.1", "nic": "lo", "source": "127.0.0.1", "mtu": 65536}
    return {**{key: agent[key] for key in ("node", "port", "token")}, **over, **changed}


def test_a_peer_is_reached_and_told_goodbye(start: Start) -> None:
    agent = start("n2", "n1", "n3")
    row = {"node": "n2", "network": "127.0.0.0/8", "code": "", "reason": "", "mtu": 65535}
    assert probe.reach("n1", [seen_by(agent)], 2.0) == [row]
    assert not agent["left"].wait(0.1)
    assert probe.reach("n3", [seen_by(agent), seen_by(agent)], 2.0) == [row, row]
    assert agent["left"].wait(5)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"nic": "eth1"}, "leaves over lo, not over eth1"),
        ({"source": "127.0.0.9"}, "leaves from 127.0.0.1, not from 127.0.0.9"),
        ({"node": "n3"}, "n2 answers at this address"),
        ({"token": "wrong"}, "another program answers at this address"),
    ],
)
def test_a_peer_that_is_not_as_it_should_be(start: Start, changed: dict[str, Any], words: str) -> None:
    (row,) = probe.reach("n1", [seen_by(start("n2", "n1"), **changed)], 2.0)
    assert words in row["reason"]
    assert row["mtu"] is None


def test_an_address_that_is_rewritten_on_the_way(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "check_route", lambda _peer: None)
    (row,) = probe.reach("n1", [seen_by(start("n2", "n1"), source="127.0.0.9")], 2.0)
    assert "arrives from 127.0.0.1, not from 127.0.0.9" in row["reason"]


def test_nobody_measures_out_of_turn(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_server, "TURN_SECONDS", 0.05)
    step = {**seen_by(start("n2", "n1")), "round": 7, "seconds": 0.02}
    assert probe.measure("n1", step)["error"] == "n2 was not ready"


def test_nobody_waits_for_a_turn_as_long_as_a_peer_says(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rail_probe, "TURN_SECONDS", 0.05)
    line, _hello = probe.greet("n1", "127.0.0.1", seen_by(start("n2", "n1")), 2.0)
    with line.socket:
        line.send(do="turn", round=7, seconds=3600)
        assert line.receive() == {"go": False}


def test_nobody_listens() -> None:
    """Reproduced before: the kernel was asked for ICMP's reason all the time that the connection was given."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    peer = seen_by({"node": "n2", "port": port, "token": ""})
    assert "refused" in probe.reach("n1", [peer], 3600.0)[0]["reason"]


def test_a_range_of_ports_of_which_a_part_is_open_is_told(start: Start) -> None:
    agent = start("n2", "n1", "n3")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()[1]
    (row,) = probe.reach("n1", [seen_by(agent, last_port=closed)], 2.0)
    assert (row["code"], row["mtu"]) == ("refused", None)
    assert row["reason"].startswith(f"port {agent['port']} is open, port {closed} is not: refused")
    (row,) = probe.reach("n1", [seen_by(agent, last_port=agent["port"])], 2.0)
    assert row["code"] == ""


@pytest.mark.parametrize(
    ("error", "state", "code"),
    [
        (TimeoutError(), 0x02, "dropped"),  # reachable
        (TimeoutError(), 0x20, "no-neighbour"),  # failed
        (TimeoutError(), 0x01, "no-neighbour"),  # incomplete
        (TimeoutError(), None, "silent"),  # behind a router
        (OSError(errno.EHOSTUNREACH, ""), 0x04, "rejected"),  # stale
        (OSError(errno.EHOSTUNREACH, ""), 0x20, "no-neighbour"),
        (OSError(errno.EHOSTUNREACH, ""), None, "rejected"),
        (unreached.FromRouter(OSError(errno.EHOSTUNREACH, ""), 1), None, "no-host"),  # ICMP: host unreachable
        (unreached.FromRouter(OSError(errno.EHOSTUNREACH, ""), 1), 0x20, "no-neighbour"),
        (unreached.FromRouter(OSError(errno.EHOSTUNREACH, ""), 1), 0x02, "rejected"),
        (unreached.FromRouter(OSError(errno.EHOSTUNREACH, ""), 10), None, "rejected"),  # prohibited
        (OSError(errno.EACCES, ""), None, "rejected"),
        (OSError(errno.EPERM, ""), None, "own-firewall"),
        (OSError(errno.ECONNREFUSED, ""), 0x02, "refused"),
        (OSError(errno.ENETUNREACH, ""), None, "no-route"),
        (EOFError(), 0x02, "not-unique"),
    ],
)
def test_a_firewall_is_told_from_a_cut_link(
    monkeypatch: pytest.MonkeyPatch, error: Exception, state: int | None, code: str
) -> None:
    """To a program both are the same error. The kernel's own questions on the link pass every firewall."""
    monkeypatch.setattr(unreached, "neighbour", lambda _address: state)
    found, why = unreached.in_words(error, 2.0, "192.0.2.2")
    assert found == code and why


class Queue:
    """The queue of errors of a connection."""

    def __init__(self, *messages: tuple[int, int, bytes]) -> None:
        self.messages = list(messages)

    def recvmsg(self, *_sizes: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        if not self.messages:
            raise BlockingIOError
        return b"", self.messages, 0, None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("71000000 02 03 01 00 00000000 00000000 0200000000000000", 1),  # of a router, host unreachable
        ("71000000 02 03 0a 00 00000000 00000000 0200000000000000", 10),  # prohibited
        ("71000000 01 00 00 00 00000000 00000000 0200000000000000", None),  # of this node itself
        ("7100", None),
    ],
)
def test_what_a_router_says_of_a_connection(text: str, code: int | None) -> None:
    """The bytes of struct sock_extended_err (linux/errqueue.h), little endian."""
    queue = Queue((socket.IPPROTO_IP, unreached.RECVERR, bytes.fromhex(text)))
    assert unreached.icmp_code(queue) == code  # type: ignore[arg-type]
    assert unreached.icmp_code(Queue((socket.IPPROTO_IP, 2, b""))) is None  # type: ignore[arg-type]
    assert unreached.icmp_code(Queue()) is None  # type: ignore[arg-type]


def test_what_the_kernel_doubts_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a cut it believes for 5 seconds that the neighbour is there, then asks three times."""
    states = [0x08, 0x10, 0x20]
    monkeypatch.setattr(unreached, "neighbour", lambda _address: states.pop(0))
    monkeypatch.setattr(unreached.time, "sleep", lambda _seconds: None)
    assert unreached.on_link("192.0.2.2") is False


def test_an_address_of_no_neighbour_has_no_state() -> None:
    assert netlink.neighbour("192.0.2.2") is None and netlink.neighbour("2001:db8::2") is None


@pytest.mark.parametrize("words", [b"", b"\n", b"{}\n", b'{"token": "x"}\n', b"[1]\n", b"\xff\xfe\n"])
def test_a_stranger_learns_nothing(start: Start, words: bytes) -> None:
    agent = start("n2", "n1")
    with socket.create_connection(("127.0.0.1", agent["port"])) as stranger:
        stranger.sendall(words)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(100) == b""


def test_a_way_that_takes_small_packets_only_is_told(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some switch between the nodes has a smaller MTU, and says nothing: a job would hang at its first tensor."""
    monkeypatch.setattr(probe_server.Agent, "echo", lambda *_given: threading.Event().wait(5))
    (row,) = probe.reach("n1", [seen_by(start("n2", "n1"), mtu=9000)], 0.1)
    assert row["reason"] == "small packets pass, full ones do not: MTU 9000 is too large for the path"
    assert row["mtu"] is None


def test_no_router_may_split_the_packets_of_a_test() -> None:
    """Split, full ones would pass, and those of RDMA would be lost all the same."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        probe.Line(one)
        assert one.getsockopt(socket.IPPROTO_IP, 10) == 2  # IP_MTU_DISCOVER: IP_PMTUDISC_DO (ip(7))


def test_a_line_without_end_is_no_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _address = listener.accept()
    with one, other:
        sending = threading.Thread(target=lambda: (one.sendall(bytes(2 << 20)), one.shutdown(socket.SHUT_WR)))
        sending.start()
        with pytest.raises(ValueError, match="no message"):
            probe.Line(other).receive()
        probe.discard(other)
        sending.join(20)


def test_an_agent_keeps_no_more_for_a_peer_than_a_test_sends(start: Start) -> None:
    """A node in the hands of an attacker would fill the memory of the others."""
    agent = start("n2", "n1")
    line, _hello = probe.greet("n1", "127.0.0.1", seen_by(agent), 2.0)
    with line.socket:
        line.send(do="echo", size=1 << 40)
        with pytest.raises(EOFError):
            line.exactly(1)


def test_an_agent_that_nobody_visits_ends_by_itself() -> None:
    """Whoever started it may be gone: a second one would find its port taken."""
    agent = probe_server.start("n1", [0], 1, ["n2"])
    ended = os.pidfd_open(agent["pid"])
    try:
        assert select.select([ended], [], [], 30)[0], "it is still there"
    finally:
        signal.pidfd_send_signal(ended, signal.SIGKILL)
        os.close(ended)
        _pid, status = os.waitpid(agent["pid"], 0)
    assert os.WTERMSIG(status) == signal.SIGALRM


def test_an_agent_holds_nothing_that_its_starter_had_open() -> None:
    """Ansible waits for the end of its connection, and would do so for as long as the agent lives."""
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    agent = probe_server.start("n1", [0], 60, ["n2"])
    os.close(theirs)
    try:
        assert select.select([ours], [], [], 20)[0], "the agent has it open"
        assert os.read(ours, 1) == b""
    finally:
        os.close(ours)
        os.kill(agent["pid"], signal.SIGKILL)
        os.waitpid(agent["pid"], 0)


def test_agents_measure_in_rounds(start: Start) -> None:
    names = ["n1", "n2", "n3"]
    agents = {name: start(name, *names) for name in names}
    ports = {name: {key: agent[key] for key in ("port", "token")} for name, agent in agents.items()}
    plan = steps({"127.0.0.0/8": dict.fromkeys(names, "127.0.0.1")}, ports, 0.02)
    for name in names:
        assert probe.ask(name, agents[name], 5.0, {"do": "schedule", "steps": plan[name]}) == {"started": True}
    rows = {name: probe.ask(name, agents[name], 30.0, {"do": "collect"})["rows"] for name in names}
    assert [row["error"] for found in rows.values() for row in found] == ["", "", ""]
    matrix = rates(rows, "127.0.0.0/8")
    assert matrix.keys() == set(itertools.permutations(names, 2))
    assert min(matrix.values()) > 0
    assert probe.ask("n1", agents["n1"], 5.0, {"do": "stop"}) == {"stopped": True}
    assert agents["n1"]["left"].wait(5)


@pytest.mark.parametrize("told", [{}, {"mbit": "much"}, {"mbit": math.nan}, {"mbit": 1e300}, {"mbit": -1}, "deep"])
def test_what_a_peer_makes_up_costs_only_its_own_row(start: Start, monkeypatch: pytest.MonkeyPatch, told: Any) -> None:
    """The others' answer was refused for it, and what they would have measured afterwards was lost."""
    honest = probe_server.Agent.rate

    def rate(self: probe_server.Agent, line: probe.Line, *given: Any) -> None:
        if self.name == "n3":
            honest(self, line, *given)
        elif told == "deep":
            line.socket.sendall(b"[" * 100_000 + b"\n")
        else:
            line.send(**told)

    monkeypatch.setattr(probe_server.Agent, "rate", rate)
    agents = {name: start(name, "n1") for name in ("n1", "n2", "n3")}
    plans: dict[str, list[dict[str, Any]]] = {"n1": []}
    for number, name in enumerate(("n2", "n3")):
        shared = {"round": number, "seconds": 0.02}
        where = {"network": "127.0.0.0/8", "address": "127.0.0.1"}
        peer = {key: agents[name][key] for key in ("node", "port", "token")}
        plans["n1"].append({**shared, "role": "client", **where, **peer})
        plans[name] = [{**shared, "role": "server", "node": "n1"}]
    for name, plan in plans.items():
        probe.ask(name, agents[name], 5.0, {"do": "schedule", "steps": plan})
    found = probe.ask("n1", agents["n1"], 120.0, {"do": "collect"})["rows"]
    rows = measured_of("n1", found, ["n1", "n2", "n3"])
    assert [(row["node"], bool(row["error"])) for row in rows] == [("n2", True), ("n3", False)]


def test_a_peer_that_is_gone_holds_up_nothing(start: Start) -> None:
    agent = start("n1", "n2")
    step = {"network": "x", "round": 0, "seconds": 0.02, "role": "client", "node": "n2", "address": "127.0.0.1"}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = {"port": listener.getsockname()[1], "token": "x"}
    probe.ask("n1", agent, 5.0, {"do": "schedule", "steps": [{**step, **gone}]})
    assert "refused" in probe.ask("n1", agent, 30.0, {"do": "collect"})["rows"][0]["error"]


def test_a_peer_that_takes_nothing_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy node does not run for longer than a measurement takes: what was seen until then is but the slow start."""
    looks = iter([100.0] * 9)
    monkeypatch.setattr(probe, "delivery_rate", lambda _connection: next(looks, 9000.0))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sender = socket.socket()
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        sender.connect(listener.getsockname())
        receiver, _address = listener.accept()
        taking = threading.Timer(0.3, probe.discard, [receiver])
        taking.start()
        with sender, receiver:
            assert probe.flood(sender, 0.1) == 9000.0
            sender.close()
            taking.join(20)


def test_a_port_of_the_range_is_taken() -> None:
    with probe_server.bind([0]) as first:
        taken = first.getsockname()[1]
        with pytest.raises(OSError, match="fabric_ports"):
            probe_server.bind([taken])


# --- the matrix -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 33])
def test_the_tournament(count: int) -> None:
    names = [f"n{number}" for number in range(count)]
    plan = rounds(names)
    assert len(plan) == count - 1 + count % 2
    assert {frozenset(pair) for pairs in plan for pair in pairs} == {
        frozenset(p) for p in itertools.combinations(names, 2)
    }
    for pairs in plan:
        assert max(Counter(name for pair in pairs for name in pair).values()) == 1


def test_one_node_has_no_rounds() -> None:
    assert [pair for pairs in rounds(["n1"]) for pair in pairs] == []
    assert steps({"x": {"n1": "10.0.0.1"}}, {"n1": {}}, 0.1) == {"n1": []}


def test_fewer_rounds() -> None:
    names = [f"n{number}" for number in range(6)]
    plan = steps({"x": dict.fromkeys(names, "a"), "y": dict.fromkeys(names, "b")}, {name: {} for name in names}, 0.1, 2)
    assert [row["round"] for row in plan["n3"]] == [0, 1, 2, 3]


def test_the_best_that_a_link_has_shown_counts() -> None:
    row = {"node": "b", "network": "x", "error": "", "rtt_us": 1.0, "mbit_out": 10.0, "mbit_in": 90.0}
    rows = [row, {**row, "mbit_out": 80.0, "mbit_in": 20.0}]
    assert rates({"a": rows, "b": []}, "x") == {("a", "b"): 80.0, ("b", "a"): 90.0}


def test_what_failed_is_left_out() -> None:
    row = {"node": "b", "network": "x", "error": "", "rtt_us": 1.0, "mbit_out": 10.0, "mbit_in": 90.0}
    other = {"node": "c", "network": "x", "error": "was not ready"}
    assert rates({"a": [row, other], "b": [{**row, "network": "y"}]}, "x") == {("a", "b"): 10.0, ("b", "a"): 90.0}


def matrix_of(names: str, **slow: float) -> dict[tuple[str, str], float]:
    """Return a matrix of single-letter nodes: 9000 Mbit/s, except for pairs like ab=100."""
    return {(one, two): slow.get(one + two, 9000.0) for one, two in itertools.permutations(names, 2)}


def test_a_slow_link_is_named() -> None:
    (found,) = slow_links(matrix_of("abcd", ab=100.0))
    assert str(found) == "a -> b: 100 Mbit/s, the median is 9,000"
    assert slow_links(matrix_of("abcd", ab=6000.0)) == []
    assert slow_links({}) == []


def test_a_slow_node_is_named_not_its_links() -> None:
    assert [str(row) for row in slow_links(matrix_of("abcd", ca=90.0, cb=80.0, cd=100.0, ab=50.0))] == [
        "all that c sends: 100 Mbit/s, the median is 9,000",
        "a -> b: 50 Mbit/s, the median is 9,000",
    ]
    (found,) = slow_links(matrix_of("abcd", ac=90.0, bc=80.0, dc=100.0))
    assert (found.source, found.target) == ("", "c")


def test_a_slow_direction_between_two_nodes() -> None:
    assert [(row.source, row.target) for row in slow_links({("a", "b"): 100.0, ("b", "a"): 9000.0})] == [("a", "b")]
