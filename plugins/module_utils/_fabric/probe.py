# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The client side of the network test: whether this node reaches the others over the right NIC, and how fast."""

from __future__ import annotations

import json
import os
import socket
import statistics
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Mapping, Sequence

from .netlink import route_to
from .probe_types import FullLinkStep, LinkStep, Peer, RailTest, Server, Step
from .sysfs import read
from .unreached import Unreached, UnreachedCode, connect, in_words, is_there, no_answer

AT_ONCE = 64  # connections that one node opens at the same time
BUSY_SECONDS = 20.0  # time for the answer of a connected agent: 32 nodes on 2 cores took 5
PINGS = 20
ENOUGH_LOOKS, PATIENCE = 20, 10  # samples of a connection, and how many times longer they may take
BLOCK = bytes(1 << 18)
DELIVERY_RATE = struct.Struct("=160xQ")  # its place in struct tcp_info
SEGMENT = struct.Struct("=16xL")  # snd_mss in struct tcp_info
HEADERS = 120  # the most that IP and TCP take of a packet, IPv6 and options included
LARGEST = 9216  # bytes: of a larger MTU (loopback, IPoIB) TCP's window may not take a whole packet
NEVER_SPLIT = ((socket.IPPROTO_IP, 10, 2), (socket.IPPROTO_IPV6, 23, 2))  # ip(7), ipv6(7): IP_MTU_DISCOVER, _DO
FULL_SECONDS = 8.0  # for a few full packets between busy nodes; twice that is less than a turn
FELL_SILENT = "it stopped answering: a link that loses packets, or a node that is too busy"
NICS = "/sys/class/net"
FASTEST = 100_000_000  # Mbit/s that are believed
IP_MTU, IPV6_MTU = 14, 24  # ip(7), ipv6(7): the path MTU of a connected socket


class Line:
    """A socket for JSON lines and plain bytes in turn. Raise EOFError when the other end is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.waiting = b""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        never_split(connection)

    def send(self, **message: object) -> None:
        """Send a message."""
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, object]:
        """Return the next message. Raise ValueError for an invalid one."""
        while b"\n" not in self.waiting:
            self.more()
            if len(self.waiting) > 1 << 20:
                raise ValueError("no message")
        line, self.waiting = self.waiting.split(b"\n", 1)
        try:
            message = json.loads(line)
        except RecursionError:
            raise ValueError("no message") from None
        if not isinstance(message, dict):
            raise ValueError("no message")
        return message

    def exactly(self, size: int) -> bytes:
        """Return the next bytes."""
        while len(self.waiting) < size:
            self.more()
        data, self.waiting = self.waiting[:size], self.waiting[size:]
        return data

    def more(self) -> None:
        """Wait for bytes."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError
        self.waiting += data


def figure(message: Mapping[str, object], name: str, most: float) -> float:
    """Return a number from 0 to `most` of a message. Raise ValueError for anything else: another node sent it."""
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise ValueError(f"no {name}")
    return float(value)


def never_split(connection: socket.socket) -> None:
    """Forbid routers to split the packets of a connection: one that is too large is lost, as one of RDMA would be."""
    for level, option, value in NEVER_SPLIT:
        try:
            connection.setsockopt(level, option, value)
        except OSError:  # it is of the other family
            pass


def greet(name: str, address: str, agent: Server, seconds: float, source: str = "") -> tuple[Line, dict[str, object]]:
    """Connect to an agent; return the connection and the answer: node, and seen (our address as the agent sees it).

    `source`: the address of this node to connect from; empty for the kernel's choice.
    """
    connection = connect(address, int(agent["port"]), seconds, source)
    try:
        connection.settimeout(BUSY_SECONDS)  # its kernel answered; now wait for the busy node
        line = Line(connection)
        line.send(token=agent["token"], **{"from": name})
        return line, line.receive()
    except BaseException:
        connection.close()
        raise


def ask(name: str, agent: Server, seconds: float, order: Mapping[str, object]) -> dict[str, object]:
    """Send a request to this node's own agent and return its answer."""
    line, _hello = greet(name, "127.0.0.1", agent, 2.0)
    with line.socket:
        line.socket.settimeout(seconds)
        line.send(**order)
        return line.receive()


def reach(name: str, peers: Sequence[Peer], seconds: float) -> list[dict[str, object]]:
    """Test all peers at the same time, then say goodbye to the agents that were reached.

    Return for each: node, network, code and reason (empty on success), mtu (of the path, null if it was not reached).
    """
    lines: dict[str, Line] = {}

    def attempt(peer: Peer) -> dict[str, object]:
        row: dict[str, object] = {
            "node": peer["node"],
            "network": peer["network"],
            "code": "",
            "reason": "",
            "mtu": None,
        }
        try:
            row["mtu"], line = try_peer(name, peer, seconds)
            lines.setdefault(peer["node"], line)
        except Unreached as error:
            row["code"], row["reason"] = error.code, str(error)
        return row

    with ThreadPoolExecutor(max(1, min(AT_ONCE, len(peers)))) as pool:
        rows = list(pool.map(attempt, peers))
    for line in lines.values():
        try:
            line.send(do="bye")
        except OSError:
            pass
    return rows


def try_peer(name: str, peer: Peer, seconds: float) -> tuple[int, Line]:
    """Return the path MTU to a peer and an open connection. Raise Unreached with the reason."""
    check_route(peer)
    try:
        line, hello = greet(name, peer["address"], peer, seconds)
    except (OSError, EOFError, ValueError) as error:
        raise Unreached(*in_words(error, seconds, peer["address"])) from None
    check_last_port(peer, seconds)
    if hello.get("node") != peer["node"]:
        why = f"{hello.get('node')} answers at this address: the address is not unique"
        raise Unreached(UnreachedCode.NOT_UNIQUE, why)
    if hello.get("seen") != peer["source"]:
        seen = f"arrives from {hello.get('seen')}, not from {peer['source']}"
        raise Unreached(UnreachedCode.REWRITTEN, f"{seen}: something rewrites addresses")
    full_packets(line, int(peer["mtu"]), 4 * seconds)
    return path_mtu(line.socket), line


def full_packets(line: Line, mtu: int, seconds: float) -> None:
    """Send some packets of the full size there and back. Raise Unreached if they are lost."""
    size = 4 * max(mtu, 1500)
    line.socket.settimeout(seconds)
    try:
        line.send(do="echo", size=size)
        line.socket.sendall(bytes(size))
        line.exactly(size)
    except (OSError, EOFError):
        why = f"small packets pass, full ones do not: MTU {mtu} is too large for the path"
        raise Unreached(UnreachedCode.SMALL_MTU, why) from None


def check_size(connection: socket.socket, mtu: int) -> None:
    """Raise Unreached if the kernel has found out that full packets do not pass, and now sends smaller ones."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SEGMENT.size)
    segment = SEGMENT.unpack(info)[0] if len(info) == SEGMENT.size else mtu
    if segment + HEADERS < min(mtu, LARGEST):
        why = f"packets of about {segment} bytes pass, full ones do not: MTU {mtu} is too large for the path"
        raise Unreached(UnreachedCode.SMALL_MTU, why)


def check_last_port(peer: Peer, seconds: float) -> None:
    """Raise Unreached if the peer is reached at the first port of the range, and not at the last one."""
    try:
        if peer.get("last_port"):
            socket.create_connection((peer["address"], int(peer["last_port"])), timeout=seconds).close()
    except OSError as error:
        code, why = in_words(error, seconds, peer["address"])
        raise Unreached(code, f"port {peer['port']} is open, port {peer['last_port']} is not: {why}") from None


def check_route(peer: Peer | FullLinkStep | RailTest) -> None:
    """Raise Unreached if the kernel would send over another NIC or from another address.

    A NIC without a carrier is told first: the kernel, or a program that looks after it, then sends another way.
    """
    place = os.path.join(NICS, os.path.basename(peer["nic"]))
    if read(os.path.join(place, "carrier")) == "0" or read(os.path.join(place, "operstate")) == "down":
        why = f"{peer['nic']} is down or has no carrier: a cut link, or its other end is off"
        raise Unreached(UnreachedCode.NO_CARRIER, why)
    nic, source = route_to(peer["address"])
    if not nic:
        raise Unreached(UnreachedCode.NO_ROUTE, "no route to that network")
    if nic != peer["nic"]:
        raise Unreached(UnreachedCode.OTHER_NIC, f"leaves over {nic}, not over {peer['nic']}: because of a route")
    wanted = peer.get("source")
    if wanted and source != wanted:
        why = f"leaves from {source}, not from {wanted}: {nic} has several addresses"
        raise Unreached(UnreachedCode.OTHER_ADDRESS, why)


def path_mtu(connection: socket.socket) -> int:
    """Return the path MTU that the kernel knows for a connection, in bytes."""
    if connection.family == socket.AF_INET6:
        return connection.getsockopt(socket.IPPROTO_IPV6, IPV6_MTU)
    return connection.getsockopt(socket.IPPROTO_IP, IP_MTU)


def measure(name: str, step: LinkStep | FullLinkStep) -> dict[str, object]:
    """Return node, network, code and error (empty on success), rtt_us, mbit_out and mbit_in of one pair.

    A row has `since` and `address` if no answer came: settle() says why.
    """
    row: dict[str, object] = {"node": step["node"], "network": step["network"], "code": "", "error": ""}
    since, answered = time.monotonic(), False
    try:
        if "nic" in step:
            check_route(step)
        line, _hello = greet(name, step["address"], step, 2.0)
        answered = True
        with line.socket:
            line.socket.settimeout(30.0)
            line.send(do="turn", round=step["round"])
            if not line.receive().get("go"):
                return {**row, "code": UnreachedCode.NOT_READY, "error": f"{step['node']} was not ready"}
            row["rtt_us"] = round_trip(line)
            if "mtu" in step:
                check_full(name, step, step["address"], step["mtu"])
            row["mbit_out"] = rate_out(name, step, step["address"])
            row["mbit_in"] = rate_in(name, step, line)
            return row
    except Unreached as error:
        return {**row, "code": error.code, "error": str(error)}
    except socket.timeout as error:
        if answered:
            return {**row, "code": UnreachedCode.FAILED, "error": FELL_SILENT}
        code, why = in_words(error, 2.0, "")
        return {**row, "code": code, "error": why, "since": since, "address": step["address"]}
    except (OSError, EOFError, ValueError) as error:
        code, why = in_words(error, 2.0, step["address"])
        return {**row, "code": code, "error": why}


def check_full(name: str, server: Server, address: str, mtu: int, source: str = "") -> None:
    """Raise Unreached if a peer gets small packets and no full ones, socket.timeout if it does not answer at all.

    On a connection of its own, and twice: a busy node may be late once.
    """
    for last in (False, True):
        line, _hello = greet(name, address, server, 2.0, source)
        with line.socket:
            line.socket.settimeout(FULL_SECONDS)
            try:
                round_trip(line)
                full_packets(line, int(mtu), FULL_SECONDS)
                check_size(line.socket, int(mtu))
                return
            except socket.timeout:
                raise Unreached(UnreachedCode.FAILED, FELL_SILENT) from None
            except Unreached:
                if last:
                    raise


def settle(rows: Sequence[dict[str, object]]) -> None:
    """Say of all rows without an answer whether the machine is there: it takes up to a minute, for all together."""
    doubtful = [row for row in rows if "since" in row]
    with ThreadPoolExecutor(max(1, min(AT_ONCE, len(doubtful)))) as pool:
        found = list(pool.map(lambda row: is_there(str(row.pop("address")), float(str(row.pop("since")))), doubtful))
    for row, there in zip(doubtful, found):
        row["code"], row["error"] = no_answer(2.0, there)


def round_trip(line: Line) -> float:
    """Return the shortest of some round trips of 64 bytes, in microseconds."""
    times = []
    for _attempt in range(PINGS):
        start = time.perf_counter()
        line.send(do="echo", size=64)
        line.socket.sendall(bytes(64))
        line.exactly(64)
        times.append(time.perf_counter() - start)
    return round(min(times) * 1e6, 1)


def rate_out(name: str, step: Step, address: str, source: str = "") -> float:
    """Return the rate to a peer in Mbit/s. `source`: the address of this node to send from."""
    line, _hello = greet(name, address, step, 2.0, source)
    with line.socket:
        line.send(do="sink")
        return flood(line.socket, float(step["seconds"]))


def rate_in(name: str, step: Step, control: Line) -> float:
    """Return the rate from a peer in Mbit/s, which the sender measures and reports on the control connection."""
    line, _hello = greet(name, step["address"], step, 2.0)
    with line.socket:
        line.send(do="source", seconds=step["seconds"])
        discard(line.socket)
    control.send(do="rate")
    return figure(control.receive(), "mbit", FASTEST)


def flood(connection: socket.socket, seconds: float) -> float:
    """Send for some seconds, drop unsent data, and return the rate of the path in Mbit/s.

    It is the median of the delivery rate that the kernel sees between data and acknowledgement (tcp_info, Linux 4.9).
    Counting a program's bytes measures the load of the node more than the link: with 12 others on 2 cores they were
    29 to 868 Mbit/s, this 18,600 to 60,800; on a link shaped to 200 Mbit/s it was 191 to 1,730. A busy node that
    hardly sends gets more time, and a peer that reads nothing for a while is waited for, because the first samples
    of a connection show its slow start.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.settimeout(seconds * PATIENCE)
    rates: list[float] = []
    start, sent = time.monotonic(), 0
    while time.monotonic() - start < seconds * (1 if len(rates) >= ENOUGH_LOOKS else PATIENCE):
        try:
            sent += connection.send(BLOCK)
        except socket.timeout:
            break
        rates.append(delivery_rate(connection))
    seen = [rate for rate in rates if rate] or [sent * 8 / 1e6 / (time.monotonic() - start)]
    return round(statistics.median(seen), 1)


def delivery_rate(connection: socket.socket) -> float:
    """Return the delivery rate of a connection in Mbit/s (linux/tcp.h); 0 if the kernel knows none."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, DELIVERY_RATE.size)
    return DELIVERY_RATE.unpack(info)[0] * 8 / 1e6 if len(info) == DELIVERY_RATE.size else 0.0


def discard(connection: socket.socket) -> None:
    """Read and discard data until the other end closes."""
    buffer = bytearray(1 << 20)
    try:
        while connection.recv_into(buffer):
            pass
    except ConnectionResetError:
        pass
