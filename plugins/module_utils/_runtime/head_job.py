# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A whole job, seen from the head: the node jobs of all nodes, and the result."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any, Protocol

from .alone import WHOLE_JOB, turn
from .channel import BEAT_SECONDS, Channel, ready
from .job_directory import aside
from .node_job import NodeJob
from .peer import RemoteNode, staged
from .rank import ELSEWHERE
from .remote_shell import AGENT_SOCKET, at_home
from .result import write_result
from .shipment import Shipment
from .survey import ssh_config

Json = Any
LOOK_SECONDS = 0.1  # how often is looked for what does not wake the supervisor
START_SECONDS = 300.0  # for the ranks to be started: slow disks need some of it, a launcher that hangs takes all
RANK_SECONDS = 1.0  # more of it for each rank
AGENT_SECONDS = 2.0  # for the launcher's ssh program to say what it wants
WISH_CHARACTERS = 1 << 20  # of what it wants


class Controller(Protocol):
    """What a head job needs of the supervisor: the channel to the controller, the shipped files, a signal."""

    channel: Channel
    signalled: str
    shipment: Shipment | None


class HeadJob:
    """One job from staging to result. OSError if staging failed: then nothing of it is left."""

    def __init__(self, controller: Controller, order: dict[str, Json], peers: dict[str, RemoteNode]) -> None:
        self.controller, self.channel = controller, controller.channel
        others = order.pop("others")
        order["started"], self.started = time.time(), time.monotonic()  # the second is a clock that nobody sets
        order["peers"] = [others[name]["way"] for name in others]
        self.peers = [peers[name] for name in others]
        order["ssh_config"] = ssh_config(order["home"])
        self.order = order
        with turn(order["home"], WHOLE_JOB, order["exclusive"]):
            self.stage(others)
        self.undone = {place["host"] for place in order["placement"]}
        self.unplaced = set(self.undone)
        # When job_timeout began: a job may wait in a queue until its ranks are there.
        self.clock = self.started if order["launcher"]["name"] not in ELSEWHERE else None
        self.places = {(place["rank"], place["host"]) for place in order["placement"]}
        self.ended = False
        self.beaten = time.monotonic()
        self.agents: dict[socket.socket, RemoteNode | None] = {}  # by connection of the ssh program

    def stage(self, others: dict[str, Json]) -> None:
        """Stage the job here and on the other nodes, on all or on none."""
        self.node_job = NodeJob(self.order, self.controller.shipment)
        try:
            self.socket = self.open_agent_socket()
            staged(self.peers, {name: {**self.order, **fields, "peers": None} for name, fields in others.items()})
        except BaseException:
            self.node_job.take_back()
            raise

    def open_agent_socket(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(os.path.join(self.order["private_tmp"], AGENT_SOCKET))
        listener.listen(1024)
        return listener

    def follow(self) -> dict[str, Json]:
        """Run the job on all nodes until each is over, and return the result. Nothing is left, whatever happens."""
        self.node_job.spared = [peer.pid for peer in self.peers]
        self.node_job.start()
        for peer in self.peers:
            peer.go()
        self.channel.send("started")
        while not self.node_job.over or not all(peer.over for peer in self.peers):
            self.wait()
            for peer in self.peers:
                peer.beat()
            self.end_if_needed()
            self.beat()
            self.node_job.beat()
            self.node_job.check_guard()
            self.show()
        self.socket.close()
        self.show()
        node_reports = {peer.name: peer.report for peer in self.peers if peer.report}
        return write_result(
            self.node_job.job, self.node_job.output.metrics, node_reports, time.monotonic() - self.started
        )

    def beat(self) -> None:
        """Send the controller a sign of life. A stopped controller does not block this."""
        if time.monotonic() - self.beaten > BEAT_SECONDS:
            self.beaten = time.monotonic()
            self.channel.offer("beat")

    def show(self) -> None:
        """Offer the output of this node's ranks to the controller."""
        for frame in self.node_job.output.shown():
            self.channel.offer(**frame)

    def wait(self) -> None:
        """Wait for events, LOOK_SECONDS at most, and handle all that came."""
        agents = {connection.fileno(): connection for connection in self.agents}
        inputs = [self.socket.fileno(), *agents]
        inputs += [] if self.node_job.gone else [self.node_job.ear]
        inputs += [] if self.channel.lost else [self.channel.incoming]
        inputs += [peer.channel.incoming for peer in self.peers if not peer.over]
        found = ready(inputs, LOOK_SECONDS)
        for peer in self.peers:  # first: a lost node is the cause of the launcher's death here
            for word in peer.words():
                self.on_word(word, peer)
            if peer.lost and not peer.report:
                self.end("lost", f"{peer.name} is lost: {peer.lost}", peer.name)
            if peer.over:
                self.note_done(peer.name)
        if self.node_job.ear in found:
            for word in self.node_job.words():
                self.on_word(word)
            if self.node_job.status:
                self.end("guard_died", "the guard died", self.order["host"])
            if self.node_job.gone:
                self.note_done(self.order["host"])
        if self.socket.fileno() in found:
            self.agents[self.socket.accept()[0]] = None
        for descriptor in found & agents.keys():
            self.on_agent(agents[descriptor])

    def on_word(self, word: dict[str, Json], peer: RemoteNode | None = None) -> None:
        """Deal with what a guard says, this node's or, through its supervisor, another's."""
        host = peer.name if peer else self.order["host"]
        if word["kind"] in ("line", "report"):
            if (word["rank"], host) not in self.places:
                return  # a node speaks for its own ranks only
            self.channel.offer(**{name: value for name, value in word.items() if name != "data"})
        elif word["kind"] == "ending":
            self.end(word["reason"], word["detail"], host)
        elif word["kind"] == "placed":
            self.unplaced.discard(host)
            self.clock = self.clock or time.monotonic()
            if not self.unplaced:
                self.tell_all("begin")
        elif word["kind"] == "done":
            self.note_done(host)
        elif word["kind"] == "left" and peer:
            self.answer_agents(peer, word["rc"], word["text"])

    def note_done(self, host: str) -> None:
        """Note that no rank is left on a node; with the last of them the launchers may go."""
        if host in self.undone:
            self.undone.discard(host)
            if not self.undone:
                self.tell_all("leave")

    def tell_all(self, kind: str) -> None:
        """Tell the guards of all nodes something."""
        self.node_job.tell(kind)
        for peer in self.peers:
            peer.tell(kind)

    def end_if_needed(self) -> None:
        """End the job if the controller, its loss, a signal or the clock requires it."""
        reason = None if self.ended else self.reason_to_end()
        if reason:
            self.end(*reason)

    def end(self, reason: str, detail: str, host: str = "") -> None:
        """End the job on every node, the others first: this node's disk may hang. The first reason stands."""
        if self.ended:
            return
        self.ended = True
        for peer in self.peers:
            peer.tell("end", reason=reason, detail=detail)
        aside(lambda: self.node_job.job.claim_end(reason, detail, host))
        self.node_job.end(reason, detail)

    def reason_to_end(self) -> tuple[str, str] | None:
        """Return why the job must end now, or None."""
        timeout, now = self.order["job_timeout"], time.monotonic()
        if timeout and self.clock and now > self.clock + timeout + 1.0:
            return "timed_out", f"job_timeout of {timeout:g} s"
        most = START_SECONDS + RANK_SECONDS * self.order["world_size"]
        if (
            self.unplaced and now > self.started + most and self.order["launcher"]["name"] not in ELSEWHERE
        ):  # which may queue
            return "placement", f"ranks on {', '.join(sorted(self.unplaced))} not started after {most:.0f} s"
        if self.controller.signalled:
            return "cancelled", f"{self.controller.signalled} to the supervisor"
        try:
            frame = self.channel.receive(0)
        except EOFError:
            return "lost", "the controller died"
        return (frame["reason"], frame["detail"]) if frame and frame["kind"] == "end" else None

    def on_agent(self, connection: socket.socket) -> None:
        """Take the wish of the launcher's ssh program: start this command on that node."""
        try:
            connection.settimeout(AGENT_SECONDS)
            wish = json.loads(connection.makefile().readline(WISH_CHARACTERS))
            host, command = str(wish["host"]), str(wish["command"])
        except (OSError, ValueError, LookupError, TypeError):  # it was ended, or is a program of the job
            self.agents.pop(connection)
            connection.close()
            return
        peer = next((peer for peer in self.peers if host in (peer.name, peer.address)), None)
        self.agents[connection] = peer
        if peer is None:
            answer(connection, 255, f"{host} is no other node of this job")
        else:
            peer.tell("start", command=at_home(command, self.order, peer.names))

    def answer_agents(self, peer: RemoteNode, rc: int, text: str) -> None:
        """Tell the ssh program how the command it asked for ended."""
        for connection, wanted in list(self.agents.items()):
            if wanted is peer:
                answer(connection, rc, text)


def answer(connection: socket.socket, rc: int, text: str) -> None:
    """Send one answer to the ssh program, which may be gone."""
    try:
        connection.sendall(json.dumps({"rc": rc, "text": text}).encode() + b"\n")
    except OSError:
        pass
