# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The server side of the network test: a small server that runs for seconds, checks its token, and ends itself.

Requests and answers are JSON lines. The agents do the measurements because they all run at the same time, unlike the
tasks of a play: with more nodes than forks, a task that waited for one that has not started would wait for ever. Each
agent does the rounds of its schedule in order, so no node is ever in two measurements at once.
"""

from __future__ import annotations

import hmac
import os
import secrets
import signal
import socket
import threading
from typing import Callable, Sequence

from . import perftest, probe, rail_probe
from .probe_types import Step

IDLE_SECONDS = 30.0  # a connection without data
TURN_SECONDS = 20.0  # how long a round waits for its other node
ECHO_MOST = 1 << 20  # bytes: four packets of the largest MTU are a quarter of that


def start(name: str, ports: Sequence[int], seconds: int, expected: Sequence[str]) -> dict[str, object]:
    """Start a node's agent as a separate process, and return its port, token, pid, and of a range the last free port.

    It ends when all expected nodes have said goodbye, on request, or after `seconds`. Raise OSError if none of the
    ports is free.
    """
    listener, token = bind(ports), secrets.token_hex(16)
    last = bind(ports[::-1]) if len(ports) > 1 else None  # a firewall may let a part of the range through
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            agent = Agent(name, token, expected, leave, ports)
            detach([each.fileno() for each in (listener, last) if each])
            if last:
                threading.Thread(target=agent.serve, args=(last,), daemon=True).start()
            agent.serve(listener)
        finally:
            leave()
    port = listener.getsockname()[1]
    listener.close()
    found: dict[str, object] = {"port": port, "token": token, "pid": pid}
    if last:
        found["last_port"] = last.getsockname()[1]
        last.close()
    return found


def bind(ports: Sequence[int]) -> socket.socket:
    """Return a listener on the first free port (0: any), for IPv4 and, if available, IPv6."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    for port in ports:
        try:
            return socket.create_server(("", port), family=family, backlog=512, dualstack_ipv6=both)
        except OSError:
            continue
    raise OSError(f"none of the ports {ports[0]}-{ports[-1]} is free; set fabric_ports to others")


def detach(keep: Sequence[int]) -> None:
    """Close everything inherited but these, above all the connection that Ansible waits for."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    begin = 3
    for number in sorted(keep):
        os.closerange(begin, number)
        begin = number + 1
    os.closerange(begin, 1024)
    os.chdir("/")


def leave() -> None:
    """End the agent's process with all threads, bypassing the exit of the module that it was forked from."""
    os._exit(0)


class Agent:
    """The shared state of the server's threads."""

    def __init__(
        self, name: str, token: str, expected: Sequence[str], leave: Callable[[], None], ports: Sequence[int] = (0,)
    ) -> None:
        self.name = name
        self.leave = leave
        self.token = token
        self.expected = set(expected)
        self.ports = ports  # that other programs may listen on
        self.changed = threading.Condition()
        self.turn = (-1, "")  # the round in which this node is the server of a measurement, and its client
        self.turn_over = False
        self.worker: threading.Thread | None = None
        self.rates: dict[str, float] = {}
        self.rows: list[dict[str, object]] = []

    def serve(self, listener: socket.socket) -> None:
        """Answer until the process ends."""
        while True:
            connection, peer = listener.accept()
            seen = peer[0][7:] if peer[0].startswith("::ffff:") else peer[0]
            threading.Thread(target=self.answer, args=(connection, seen), daemon=True).start()

    def answer(self, connection: socket.socket, seen: str) -> None:
        """Serve one connection; an error ends only this one."""
        try:
            with connection:
                connection.settimeout(IDLE_SECONDS)
                line = probe.Line(connection)
                hello = line.receive()
                if hmac.compare_digest(str(hello.get("token")).encode(), self.token.encode()):
                    line.send(node=self.name, seen=seen)
                    self.converse(line, str(hello.get("from")))
        except (OSError, ValueError, EOFError):
            pass

    def converse(self, line: probe.Line, peer: str) -> None:
        """Serve the requests of a peer until it closes."""
        orders: dict[str, Callable[[probe.Line, str, dict[str, object]], None]] = {
            "echo": self.echo,
            "bye": self.bye,
            "stop": self.stop,
            "sink": self.sink,
            "source": self.source,
            "rate": self.rate,
            "turn": self.take_turn,
            "rdma": self.serve_rdma,
            "schedule": self.schedule,
            "collect": self.collect,
        }
        while True:
            order = line.receive()
            orders[str(order.get("do"))](line, peer, order)

    def echo(self, line: probe.Line, _peer: str, order: dict[str, object]) -> None:
        """Send received data back. ValueError for more than a test sends: all of it is in memory until it has come."""
        size = int(str(order["size"]))
        if size > ECHO_MOST:
            raise ValueError("no size")
        line.socket.sendall(line.exactly(size))

    def bye(self, _line: probe.Line, peer: str, _order: dict[str, object]) -> None:
        """End when no further node is expected."""
        self.expected.discard(peer)
        if not self.expected:
            self.leave()

    def stop(self, line: probe.Line, _peer: str, _order: dict[str, object]) -> None:
        """End now."""
        line.send(stopped=True)
        self.leave()

    def sink(self, line: probe.Line, _peer: str, _order: dict[str, object]) -> None:
        """Read data until the peer closes."""
        probe.discard(line.socket)
        raise EOFError

    def source(self, line: probe.Line, peer: str, order: dict[str, object]) -> None:
        """Send data and store the rate."""
        self.rates[peer] = probe.flood(line.socket, float(str(order["seconds"])))
        raise EOFError

    def rate(self, line: probe.Line, peer: str, _order: dict[str, object]) -> None:
        """Return the stored rate."""
        line.send(mbit=self.rates.pop(peer, 0.0))

    def take_turn(self, line: probe.Line, peer: str, order: dict[str, object]) -> None:
        """Let a peer measure when this node is in the same round, and keep the round open until the peer closes."""
        wanted = (int(str(order["round"])), peer)
        seconds = min(float(str(order.get("seconds", TURN_SECONDS))), rail_probe.TURN_SECONDS)
        with self.changed:
            ready = self.changed.wait_for(lambda: self.turn == wanted, seconds)
        line.send(go=ready)
        try:
            self.converse(line, peer)
        finally:
            with self.changed:
                self.turn_over = self.turn_over or self.turn == wanted
                self.changed.notify_all()

    def serve_rdma(self, line: probe.Line, _peer: str, order: dict[str, object]) -> None:
        """Run a server of perftest until the peer says that it is over, or closes."""
        own, size = perftest.port_of(order), order["size"]
        if not isinstance(size, list) or len(size) != 2:  # of a message, and how many
            raise ValueError("no size")
        with bind(self.ports[::-1]) as listener:
            port = listener.getsockname()[1]
        try:
            with perftest.served(own, port, (str(int(size[0])), str(int(size[1])))):
                line.send(port=port)
                line.receive()
        except OSError as error:
            line.send(error=f"{perftest.TOOL}: {error.strerror or error}")

    def schedule(self, line: probe.Line, _peer: str, order: dict[str, object]) -> None:
        """Start the rounds of this node."""
        self.worker = threading.Thread(target=self.work, args=(order["steps"],), daemon=True)
        self.worker.start()
        line.send(started=True)

    def collect(self, line: probe.Line, _peer: str, _order: dict[str, object]) -> None:
        """Return the measurements when all rounds are over."""
        if self.worker:
            self.worker.join()
        line.send(rows=self.rows)

    def work(self, steps: Sequence[Step]) -> None:
        """Do the rounds in order: measure, or serve the node that measures."""
        gone: set[str] = set()
        for step in sorted(steps, key=lambda row: row["round"]):
            patience = rail_probe.TURN_SECONDS if "rails" in step else TURN_SECONDS
            if step["role"] == "client":
                self.rows += self.measured(step)
            elif not self.wait_for(step, 0.2 if step["node"] in gone else patience):
                gone.add(step["node"])
        probe.settle(self.rows)

    def measured(self, step: Step) -> list[dict[str, object]]:
        """Return the rows of a step: of the link between two nodes, or of each rail."""
        return rail_probe.measure(self.name, step) if "rails" in step else [probe.measure(self.name, step)]

    def wait_for(self, step: Step, seconds: float) -> bool:
        """Keep a round open until its client has finished; return false if it never came."""
        with self.changed:
            self.turn, self.turn_over = (int(step["round"]), step["node"]), False
            self.changed.notify_all()
            over = self.changed.wait_for(lambda: self.turn_over, seconds)
            self.turn = (-1, "")
        return over
