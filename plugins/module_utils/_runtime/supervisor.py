# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The supervisor of a node: serves the requests of the other end of its channel, and ends the job if that is lost.

On the head the other end is the controller: the supervisor surveys, runs a job and sends its files, and reaches the
other nodes over the cluster's own SSH. On these the other end is the head's supervisor. A job whose other end is lost
is ended, and its files wait in the job directories for the next clean.yml.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from typing import Iterator

from .basics.home import home_path
from .basics.job_directory import JobDir, jobs
from .basics.open_files import raise_files
from .detached import Detachment
from .finished_jobs import FinishedJobs
from .following import follow, row_of
from .head.audience import Audience
from .head.head_follower import HeadFollower
from .head.look_job import look_on_all
from .head.planned_nodes import OWN
from .head.restarting import run_attempts
from .node_job.node_job import NodeJob
from .nodes.alone import NotAlone
from .nodes.remote_node import ANSWER_SECONDS, RemoteNode, in_parallel
from .nodes.survey import ssh_config, survey
from .queue.job_queue import Queue
from .queue.queue_desk import QueueDesk
from .queue.waiting_job import WaitingJob, remove_dead, wait_again, waiting_rows
from .transfer.data_relay import SILENT_SECONDS, Relay
from .transfer.file_desk import FileDesk
from .transfer.shipment import Shipment, relay
from .types import job_rows, orders, records
from .types.file_messages import DataOffer, FolderOffer, Request
from .types.queue_messages import JobsRequest
from .wire import protocol
from .wire.channel import BEAT_SECONDS, Channel, SupervisorChannel
from .wire.link import WORK_SECONDS, ConnectionLost, wrong_answer

SIGNAL_SECONDS = 1.0  # between two checks for a signal while the other nodes stage
SURVEY_BYTES = 1 << 20  # of one node's facts: an honest one sends some KiB


class Supervisor:
    """Serves the other end of one channel until it closes that."""

    def __init__(self, channel: SupervisorChannel) -> None:
        self.channel = channel
        self.signalled = ""
        self.peers: dict[str, RemoteNode] = {}
        self.given_up: dict[str, str] = {}  # by node that is not asked again: why
        self.has_job = False
        self.shipment: Shipment | None = None
        self.detachment = Detachment()
        self.desk, self.files, self.finished = QueueDesk(channel), FileDesk(self), FinishedJobs(self)
        self.asked: protocol.Survey | None = None  # of a head: the last survey, its facts by host, and the last folder
        self.facts: dict[str, records.AnyFacts] = {}
        self.offered: FolderOffer | None = None

    def serve(self) -> None:
        """Answer frames until the channel ends."""
        self.take_signals()
        while True:
            try:
                frame = self.channel.receive(self.desk.lease)
            except EOFError:
                break
            if frame is None:  # it is the job's turn, and its controller says nothing: others wait
                self.desk.leave()
            else:
                self.handle(frame)
        self.desk.leave()
        in_parallel(lambda peer: peer.remote.close(), self.peers.values())

    def handle(self, frame: protocol.ToSupervisor) -> None:
        """Answer one frame: here those that lead to a job."""
        if frame["kind"] == "clock":
            self.on_clock()
        elif frame["kind"] == "survey":
            self.on_survey(frame)
        elif frame["kind"] == "folder":
            self.on_folder(frame)
        elif frame["kind"] == "data_set":
            self.on_data_set(frame)
        elif frame["kind"] == "queue":
            self.desk.on_queue(frame)
        elif frame["kind"] == "unqueue":
            self.desk.on_unqueue(frame)
        elif frame["kind"] == "detach":
            self.detachment.begin()
        elif frame["kind"] == "run":
            self.on_run(frame)
        elif frame["kind"] == "stage":
            self.on_stage(frame)
        else:
            self.handle_of_known(frame)

    def handle_of_known(self, frame: protocol.OfKnownJobs | protocol.Late) -> None:
        """Answer a frame that asks for jobs which are there. What came too late has no answer."""
        if frame["kind"] == "fetch":
            self.files.on_fetch(frame)
        elif frame["kind"] == "received":
            self.files.on_received()
        elif frame["kind"] == "collect":
            self.finished.on_collect(frame)
        elif frame["kind"] == "forget":
            self.finished.on_forget(frame)
        elif frame["kind"] == "node_report":
            self.finished.on_node_report(frame)
        elif frame["kind"] == "attach":
            self.on_attach(frame)
        elif frame["kind"] == "jobs":
            self.on_jobs(frame)
        elif frame["kind"] == "look":
            self.on_look(frame)
        else:
            leave_out(frame)

    def take_signals(self) -> None:
        """Let only SIGTERM end this process."""
        signal.signal(signal.SIGTERM, self.on_signal)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)

    def on_signal(self, number: int, _frame: object) -> None:
        """End the running job; without one, exit at once."""
        self.signalled = signal.Signals(number).name
        if not self.has_job:
            os._exit(128 + number)

    @contextlib.contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        """While it is entered, a signal ends the job and not this process."""
        self.has_job = True
        try:
            yield
        finally:
            self.has_job = False

    @contextlib.contextmanager
    def sending_beats(self, frame: Request) -> Iterator[None]:
        """While it is entered, send beats if the frame asks for them: a slow disk is not a lost node."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(BEAT_SECONDS):
                self.channel.send({"kind": "beat"})

        thread = threading.Thread(target=beat, daemon=True)
        if frame.get("beats"):
            thread.start()
        try:
            yield
        finally:
            done.set()
            if frame.get("beats"):
                thread.join()

    def on_clock(self) -> None:
        self.channel.send({"kind": "clock", "time": time.time()})

    def on_survey(self, frame: protocol.Survey | protocol.NodeSurvey) -> None:
        """Send the facts of this node, and those of the other nodes by host."""
        home = home_path(frame["request"]["home"])
        routes: list[protocol.SurveyRoute] = []
        if "nodes" in frame:  # this node is the head
            self.asked, routes = frame, frame["nodes"]
        with self.sending_beats(frame):
            found = in_parallel(lambda route: self.survey_node(route, home), routes)
            own = survey(frame["request"])
            if self.asked:  # jobs that wait have their names as well
                own["jobs"] += self.desk.others(home)
        facts = {route["host"]: answer for route, answer in zip(routes, found)}
        self.facts = {OWN: own, **facts}
        self.channel.send({"kind": "survey", "facts": own, "nodes": facts})

    def survey_node(self, route: protocol.SurveyRoute, home: str) -> records.AnyFacts:
        """Return the facts of another node, or `unreachable` with the reason. `home` is that of this node."""
        try:
            peer = self.reach(route, home)
            asked = protocol.NodeSurvey(kind="survey", beats=True, request=route["request"])
            answer = peer.remote.ask(asked, ANSWER_SECONDS)
            if answer["kind"] != "survey":
                raise wrong_answer(asked, answer)
            facts = answer["facts"]
            if len(json.dumps(facts)) > SURVEY_BYTES:  # all answers go to the controller in one frame
                raise ConnectionLost(f"its facts are larger than {SURVEY_BYTES >> 20} MiB")
        except ConnectionLost as lost:
            return {"unreachable": str(lost)}
        if "unreachable" in facts:  # it says so of itself
            return facts
        return {**facts, "clock_offset": round(peer.offset, 4)}

    def reach(self, route: orders.Route, home: str) -> RemoteNode:
        """Return the connected node, connecting to it unless that is done. ConnectionLost.

        A node that was lost is tried once more, with little time: its disk may hang as well.
        """
        name = route["host"]
        if name in self.given_up:
            raise ConnectionLost(self.given_up[name])
        lost = name in self.peers and bool(self.peers[name].lost)
        if lost:
            self.peers.pop(name).remote.close(0)
        if name not in self.peers:
            try:
                self.peers[name] = RemoteNode(route, ssh_config(home), lost)
            except ConnectionLost as error:
                self.given_up[name] = str(error)
                raise
        return self.peers[name]

    @property
    def silence(self) -> float | None:
        """Return after how many seconds without a frame the other end sends no more files: the controller of a head.

        What is sent keeps others waiting, and a controller that sleeps or changes its network does not close anything.
        A head has nothing to send to a node that has all, while others still take theirs.
        """
        return SILENT_SECONDS if self.asked else None

    def on_folder(self, frame: FolderOffer) -> None:
        """Receive a folder: for this node if `here` names it, and for the other nodes in `nodes`."""
        self.offered = frame
        with self.sending_beats(frame):
            self.shipment = Shipment(home_path(frame["home"]), frame["files"]) if frame["here"] else None
            peers = [self.peers[name] for name in frame["nodes"] if name in self.peers]
            relay(self.channel, self.shipment, frame["here"], peers, frame["files"], self.silence)

    def on_data_set(self, frame: DataOffer) -> None:
        """Take a data set for this node if `here` names it, and send it on. An interrupted one is resumed later."""
        home, known = home_path(frame["home"]), set(self.peers)
        with self.sending_beats(frame):
            try:
                Relay(self.channel, frame, home, lambda route: self.reach(route, home), self.silence).run()
            except EOFError:  # the other nodes are in the middle of it, and keep its lock
                known = set()
        in_parallel(lambda name: self.peers.pop(name).remote.close(), self.peers.keys() - known)

    def on_run(self, frame: protocol.Run) -> None:
        """Run a job as its head and send the result. One that waits does so first."""
        with self.ended_by_signals():
            detached, waits = frame.get("detached", False), frame.get("waits", False)
            if waits and detached:
                WaitingJob(self, frame).run()
                return
            refused = self.desk.refusal() if waits else None
            audience, rule = Audience(self.channel, detached), frame.get("restart") if detached else None
            refused = refused or run_attempts(self, frame["order"], audience, self.desk.leave, rule)
            if refused:
                self.desk.leave()
                self.channel.send(refused)

    def release(self) -> None:
        """Let the connection end, as the job runs: from now on it is followed over a socket of its own."""
        self.detachment.complete(self.channel)

    def on_attach(self, frame: protocol.Attach) -> None:
        """Let the controller follow a job that runs, and send its result when it is over."""
        job = JobDir(os.path.join(home_path(frame["home"]), "jobs", frame["job_id"]))
        with contextlib.suppress(OSError):
            remove_dead(Queue(home_path(frame["home"])))
        refused = follow(job, self.channel)
        if refused:
            self.channel.send({"kind": "refused", "reason": refused})

    def on_jobs(self, frame: JobsRequest) -> None:
        """Send the jobs of which this node is the head, those that are over too, until clean.yml removes them."""
        with self.sending_beats(frame):
            home = home_path(frame["home"])
            waiting: list[job_rows.JobRow] = []
            with contextlib.suppress(OSError):  # somebody keeps the queue: the other jobs are told
                waiting = waiting_rows(Queue(home), frame["controller"])
            rows = [row_of(job, frame["controller"]) for job in jobs(home)]
        self.channel.send({"kind": "jobs", "jobs": [*(row for row in rows if row), *waiting]})

    def on_look(self, frame: protocol.Look) -> None:
        """Look at the ranks of a job that another supervisor runs: here, and on its other nodes if this is its head.

        A job that does not run here has no placement.
        """
        home = home_path(frame["home"])
        job = JobDir(os.path.join(home, "jobs", frame["job_id"]))
        with self.sending_beats(frame):
            order = job.order() if job.running() else None
            evidence, missing = (
                look_on_all(job, order, frame["asks"], lambda route: self.reach(route, home)) if order else ([], [])
            )
        placement = order["placement"] if order else []
        self.channel.send({"kind": "looked", "placement": placement, "evidence": evidence, "missing": missing})

    def on_stage(self, frame: protocol.Stage) -> None:
        """Stage the job on this node and run it when the head sends `start`."""
        with self.ended_by_signals():
            try:
                with self.sending_beats(frame):
                    node_job = NodeJob(frame["order"], frame["secrets"], shipment=self.shipment)
            except (OSError, ValueError) as error:
                running = error.running[frame["order"]["host"]] if isinstance(error, NotAlone) else []
                self.channel.send({"kind": "staged", "reason": str(error), "running": running})
                return
            self.channel.send({"kind": "staged"})
            self.channel.send_timeout = node_job.order["lease"]
            if self.wait_for_start():
                HeadFollower(self, node_job).follow()
            else:
                node_job.unstage()
                if self.signalled:
                    os._exit(128 + signal.SIGTERM)  # the head sees it at once

    def wait_for_start(self) -> bool:
        """Wait until the head reports that the job is staged everywhere. False if it does not."""
        until = time.monotonic() + WORK_SECONDS + ANSWER_SECONDS  # what the slowest node is given
        while not self.signalled and time.monotonic() < until:
            try:
                answer = self.channel.receive(SIGNAL_SECONDS)
            except EOFError:
                return False
            if answer:
                return bool(answer["kind"] == "start")
        return False


def leave_out(_frame: protocol.Late) -> None:
    """Leave out what was meant for a job that is over, or was refused, or for files that nobody takes any more."""


def main(ticket: str = "", descriptor: str = "") -> None:
    """Serve the other end of stdin and stdout; or wait, with nobody at the other end, for the job of a ticket."""
    raise_files()
    with contextlib.suppress(OSError):
        os.utime(sys.path[0])  # this version of our code is in use (see reap)
    supervisor = Supervisor(Channel(0, 1))
    if ticket:
        supervisor.channel.lost = True
        supervisor.take_signals()
        with supervisor.ended_by_signals():
            wait_again(supervisor, ticket, int(descriptor))
    else:
        supervisor.serve()
