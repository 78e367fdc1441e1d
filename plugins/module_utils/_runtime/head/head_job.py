# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A whole job, seen from the head: the node jobs of all nodes, and the result."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Callable, ContextManager, Mapping, Protocol

from ..basics.bounded_write import write_in_thread
from ..node_job.node_job import NodeJob
from ..node_job.remote_shell import SHELL_SOCKET, localized
from ..nodes.alone import WHOLE_JOB, NotAlone, staging_lock
from ..nodes.clocks import note_clocks
from ..nodes.remote_node import NotStaged, RemoteNode, in_parallel, stage_on_all
from ..nodes.survey import ssh_config
from ..software.launchers import STARTED_BY_SLURMD
from ..transfer.shipment import Shipment
from ..types import reasons
from ..types.evidence import Evidence
from ..types.file_messages import Request
from ..types.orders import JobRoute, Order, RunOrder
from ..types.reasons import CONTROLLER_DIED, THE_GUARD_DIED, EndReason, Reason
from ..types.records import Result
from ..wire.channel import BEAT_SECONDS, SupervisorChannel, ready
from ..wire.protocol import AllDone, AllPlaced, EndRound, ForHead, FromNode, Refused, ShellAnswer, ShellRequest, end
from .audience import Audience
from .hang_end import HangEnd
from .look_job import look_on_all
from .result import find_result, keep_result
from .rounds import ROUND_SECONDS, Rounds

LOOK_SECONDS = 0.1  # between two checks for what sends no event
START_SECONDS = 300.0  # for the ranks to start; a slow disk needs some of it, a launcher that hangs all of it
RANK_SECONDS = 1.0  # more of it for each rank
SHELL_SECONDS = 2.0  # for the request of a remote shell
REQUEST_CHARACTERS = 1 << 20  # of that request


class Controller(Protocol):
    """What HeadJob needs of the supervisor: the channel to the controller, the shipped files, a signal."""

    channel: SupervisorChannel
    signalled: str
    shipment: Shipment | None
    peers: dict[str, RemoteNode]

    def release(self) -> None: ...
    def sending_beats(self, frame: Request) -> ContextManager[None]: ...


class HeadJob:
    """One job from staging to result. OSError if staging failed: then nothing of it is left."""

    def __init__(
        self,
        controller: Controller,
        run_order: RunOrder,
        peers: Mapping[str, RemoteNode],
        audience: Audience,
        lock: int = -1,
    ) -> None:
        """`peers`: the connected nodes by host. `audience`: who follows it; a detached one outlives the controller.

        `lock`: of the job's directory, held since the attempt before this one; -1: this is the first.
        """
        self.controller, self.audience = controller, audience
        self.started = time.monotonic()
        self.peers = [peers[route["host"]] for route in run_order["routes"]]
        self.order = order = order_of(run_order, run_order["job"]["head"])
        with staging_lock(order["home"], WHOLE_JOB, order["exclusive"]):
            self.stage(run_order, lock)
        self.unfinished, self.unplaced = self.hosts(), self.hosts()
        # When job_timeout began: a job may wait in a queue until its ranks are there.
        self.timeout_start = self.started if order["launcher"]["name"] not in STARTED_BY_SLURMD else None
        self.places = {(place["rank"], place["host"]) for place in order["placement"]}
        self.ended = self.cancelled = False
        self.end_reason: Reason | None = None
        self.rounds = Rounds(self)
        self.hangs = HangEnd(order, self.look)
        self.last_beat = time.monotonic()
        self.shells: dict[socket.socket, RemoteNode | None] = {}  # by connection: the node it asked for

    def stage(self, run_order: RunOrder, lock: int) -> None:
        """Stage the job on all nodes or on none."""
        secrets = run_order["secrets"]
        self.node_job = NodeJob(
            self.order,
            secrets[self.order["host"]],
            run_order["files"],
            run_order["routes"],
            self.controller.shipment,
            lock,
        )
        try:
            self.shell_socket = self.open_shell_socket()
            self.audience.open(self.node_job.staging["private_tmp"], self.order)
            orders = {peer.name: order_of(run_order, peer.name) for peer in self.peers}
            note_clocks(self.node_job.job, self.peers)
            stage_on_all(self.peers, orders, secrets)
        except BaseException:
            self.node_job.unstage()
            raise

    def open_shell_socket(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(os.path.join(self.node_job.staging["private_tmp"], SHELL_SOCKET))
        listener.listen(1024)
        return listener

    def follow(self, goes_on: Callable[[Result], bool] = lambda _result: False) -> Result:
        """Run the job on all nodes until each is over, and return the result. Nothing is left, whatever happens.

        If it `goes_on`, which is asked once, it is not concluded: the next attempt follows.
        """
        self.node_job.excluded_pids = [peer.pid for peer in self.peers]
        self.node_job.start()
        for peer in self.peers:
            peer.start()
        self.hangs.hear()
        self.audience.send({"kind": "started"})
        if self.audience.detached:
            self.controller.release()
        while not self.node_job.over or not all(peer.over for peer in self.peers):
            self.wait()
            for peer in self.peers:
                peer.beat()
            self.end_if_needed()
            self.rounds.tick()
            self.beat()
            self.node_job.beat()
            self.node_job.check_guard()
            self.show()
        self.hangs.close()
        self.shell_socket.close()
        self.show()
        node_reports = {peer.name: peer.report for peer in self.peers if peer.report}
        seconds = time.monotonic() - self.started
        job, metrics = self.node_job.job, self.node_job.output.metrics
        hang = self.hangs.verdict
        result = find_result(job, self.order, self.node_job.staging, metrics, node_reports, seconds, hang)
        result = self.rounds.conclude(result, self.end_reason)
        if goes_on(result):
            self.node_job.close()
        else:
            self.conclude(result)
        return result

    def conclude(self, result: Result) -> None:
        """Keep the result, and tell it: the job is over."""
        keep_result(self.node_job.job, result)
        # A controller that was stopped may block this: a signal ends it.
        self.audience.send({"kind": "result", "result": result})
        self.audience.close()

    def beat(self) -> None:
        """Send the controller a sign of life. A stopped controller does not block this."""
        if time.monotonic() - self.last_beat > BEAT_SECONDS:
            self.last_beat = time.monotonic()
            self.audience.offer({"kind": "beat"})

    def show(self) -> None:
        """Offer the output of this node's ranks to the controller."""
        for frame in self.node_job.output.shown():
            self.hangs.hear()
            self.audience.offer(frame)

    def wait(self) -> None:
        """Wait for events, LOOK_SECONDS at most, and handle all that came."""
        shells = {connection.fileno(): connection for connection in self.shells}
        inputs = [self.shell_socket.fileno(), *shells]
        inputs += [] if self.node_job.guard_gone else [self.node_job.from_guard]
        inputs += self.audience.inputs()
        inputs += [peer.channel.incoming for peer in self.peers if not peer.over]
        found = ready(inputs, LOOK_SECONDS)
        for peer in self.peers:  # first: a lost node is the cause of the launcher's death here
            for message in peer.messages():
                self.on_message(message, peer)
            if peer.lost and not peer.report:
                self.end(reasons.node_lost(peer.name, peer.lost), peer.name)
            if peer.over:
                self.note_done(peer.name)
        if self.node_job.from_guard in found:
            for message in self.node_job.messages():
                self.on_message(message)
            if self.node_job.guard_status:
                self.end(THE_GUARD_DIED, self.order["host"])
            if self.node_job.guard_gone:
                self.note_done(self.order["host"])
        for report in self.node_job.rounds.reports():
            self.on_message(report)
        if self.shell_socket.fileno() in found:
            self.shells[self.shell_socket.accept()[0]] = None
        for descriptor in found & shells.keys():
            self.on_shell(shells[descriptor])

    def on_message(self, message: ForHead | FromNode, peer: RemoteNode | None = None) -> None:
        """Handle a guard's message: of this node, or of another through its supervisor."""
        host = peer.name if peer else self.order["host"]
        if message["kind"] == "line" or message["kind"] == "report":
            if (message["rank"], host) in self.places:  # a node speaks for its own ranks only
                self.hangs.hear()
                self.audience.offer(message)
        elif message["kind"] == "ending":
            if not self.rounds.close(reasons.reason_in(message), host):
                self.end(reasons.reason_in(message), host)
        elif message["kind"] == "round_report":
            self.rounds.take(message["report"], host)
        elif message["kind"] == "placed":
            if host in self.unplaced:  # once in a round; a head that runs no ranks has all of none at once
                self.unplaced.discard(host)
                self.timeout_start = self.timeout_start or time.monotonic()
                if not self.unplaced:
                    self.send_to_all({"kind": "all_placed"})
                    self.rounds.begun()
        elif message["kind"] == "done":
            if not self.rounds.note_done(host, message["saved"]):
                self.note_done(host)
        elif message["kind"] == "launcher_exited" and peer:
            self.answer_shells(peer, message["rc"], message["text"])

    def note_done(self, host: str) -> None:
        """Note that a node's ranks are done. After the last node the launchers may exit."""
        if host in self.unfinished:
            self.unfinished.discard(host)
            if not self.unfinished:
                self.send_to_all({"kind": "all_done"})

    def hosts(self) -> set[str]:
        """Return the nodes that run ranks."""
        return {place["host"] for place in self.order["placement"]}

    def send_to_all(self, message: AllPlaced | AllDone | EndRound) -> None:
        """Send a message to the guards of all nodes."""
        self.node_job.send(message)
        for peer in self.peers:
            peer.send(message)

    def end_if_needed(self) -> None:
        """End the job if the controller, its loss, a signal or the clock requires it."""
        reason = None if self.ended else self.reason_to_end()
        if reason:
            self.end(reason)

    def end(self, reason: Reason, host: str = "") -> None:
        """End the job on every node, the others first: this node's disk may hang. The first reason stands."""
        if self.ended:
            return
        self.ended, self.cancelled, self.end_reason = True, reason.code == EndReason.CANCELLED, reason
        by_a_person = not host and reason.code in (EndReason.CANCELLED, EndReason.LOST)
        looks = reason.code == EndReason.HUNG or (by_a_person and self.hangs.is_quiet)
        for peer in self.peers:
            peer.send(end(reason, looks))
        write_in_thread(lambda: self.node_job.job.claim_end(*reason, host))
        self.node_job.end(reason, looks)

    def look(self) -> list[Evidence]:
        """Return what is known of all ranks. In a thread, over connections of its own: the job's are in use."""
        opened: list[RemoteNode] = []

        def reach(route: JobRoute) -> RemoteNode:
            peer = RemoteNode(route, ssh_config(self.order["home"]))
            opened.append(peer)
            self.node_job.excluded_pids = [*self.node_job.excluded_pids, peer.pid]
            return peer

        try:
            return look_on_all(self.node_job.job, self.order, True, reach)[0]
        finally:
            in_parallel(lambda peer: peer.remote.close(), opened)

    def reason_to_end(self) -> Reason | None:
        """Return why the job must end now, or None."""
        timeout, now = self.order["job_timeout"], time.monotonic()
        if timeout and self.timeout_start and now > self.timeout_start + timeout + 1.0:
            return reasons.timed_out(timeout)
        first = ROUND_SECONDS if self.rounds.last else START_SECONDS
        most = first + RANK_SECONDS * self.order["world_size"]  # from the first node on, where jobs may queue
        if self.unplaced and self.timeout_start and now > self.timeout_start + most:
            return reasons.not_started(self.unplaced, most)
        if self.controller.signalled:
            return reasons.signalled(self.controller.signalled, "the supervisor")
        try:
            frame = self.audience.receive()
        except EOFError:
            return CONTROLLER_DIED
        if frame and frame["kind"] == "end":
            return reasons.reason_in(frame)
        return reasons.hung(self.hangs.silent) if self.hangs.tick() else None

    def on_shell(self, connection: socket.socket) -> None:
        """Handle the request of a remote shell: start this command on that node."""
        try:
            connection.settimeout(SHELL_SECONDS)
            request: ShellRequest = json.loads(connection.makefile().readline(REQUEST_CHARACTERS))
            host, command = str(request["host"]), str(request["command"])
        except (OSError, ValueError, LookupError, TypeError):  # it was killed, or a program of the job connected
            self.shells.pop(connection)
            connection.close()
            return
        peer = next((peer for peer in self.peers if host in (peer.name, peer.address)), None)
        self.shells[connection] = peer
        if peer is None:
            answer(connection, {"rc": 255, "text": f"{host} is no other node of this job"})
        else:
            peer.send({"kind": "start_daemon", "command": localized(command, self.order, peer.local_names)})

    def answer_shells(self, peer: RemoteNode, rc: int, text: str) -> None:
        """Send the node's remote shells the exit status of their command."""
        for connection, wanted in list(self.shells.items()):
            if wanted is peer:
                answer(connection, {"rc": rc, "text": text})


def start_job(controller: Controller, run_order: RunOrder, audience: Audience, lock: int = -1) -> HeadJob | Refused:
    """Stage a job on all its nodes and return it, or why it is refused. `lock`: as of HeadJob."""
    try:
        with controller.sending_beats({"beats": True}):
            return HeadJob(controller, run_order, controller.peers, audience, lock)
    except NotAlone as error:
        return Refused(kind="refused", reason=str(error), running=dict(error.running))
    except (OSError, ValueError) as error:
        where = "" if isinstance(error, NotStaged) else f" on {run_order['job']['head']}"
        return Refused(kind="refused", reason=f"cannot stage the job{where}: {error}")


def order_of(run_order: RunOrder, host: str) -> Order:
    """Return the order of one node."""
    return {**run_order["job"], **run_order["nodes"][host]}


def answer(connection: socket.socket, told: ShellAnswer) -> None:
    """Send one answer to a remote shell, which may be gone."""
    try:
        connection.sendall(json.dumps(told).encode() + b"\n")
    except OSError:
        pass
