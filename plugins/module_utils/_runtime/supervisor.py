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
from typing import Any, Callable, Iterator

from . import orders, protocol, records
from .alone import NotAlone
from .audience import Audience
from .channel import BEAT_SECONDS, Channel
from .data_relay import SILENT_SECONDS, Relay
from .detached import Detachment
from .fetched_files import age, mark_fetched, state_in
from .file_desk import FileDesk
from .following import follow, row_of
from .head_follower import HeadFollower
from .job_directory import JobDir, jobs
from .job_queue import Queue
from .link import WORK_SECONDS, ConnectionLost
from .look_job import look_on_all
from .metrics import final_metrics
from .node_job import NodeJob, node_report
from .open_files import raise_files
from .planned_nodes import OWN
from .queue_desk import QueueDesk
from .reasons import SUPERVISOR_DIED, FinalState
from .remote_node import (
    ANSWER_SECONDS,
    RemoteNode,
    in_head_time,
    in_parallel,
    own_ranks_report,
)
from .restarting import run_job
from .result import write_result
from .shipment import Shipment, relay
from .survey import home_path, ssh_config, survey
from .waiting_job import WaitingJob, remove_dead, wait_again, waiting_rows

SIGNAL_SECONDS = 1.0  # between two checks for a signal while the other nodes stage
SURVEY_BYTES = 1 << 20  # of one node's facts: an honest one sends some KiB


class Supervisor:
    """Serves the other end of one channel until it closes that."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.signalled = ""
        self.peers: dict[str, RemoteNode] = {}
        self.given_up: dict[str, str] = {}  # by node that is not asked again: why
        self.has_job = False
        self.shipment: Shipment | None = None
        self.detachment = Detachment()
        self.desk, files = QueueDesk(channel), FileDesk(self)
        self.asked: protocol.Survey | None = None  # the last survey, its facts by host, and the last folder
        self.facts: dict[str, records.AnyFacts] = {}
        self.offered: protocol.FolderOffer | None = None
        self.handlers: dict[str, Callable[[Any], None]] = {  # each takes the frames of one kind
            "clock": self.on_clock,
            "survey": self.on_survey,
            "folder": self.on_folder,
            "data_set": self.on_data_set,
            "run": self.on_run,
            "stage": self.on_stage,
            "fetch": files.on_fetch,
            "received": files.on_received,
            "collect": self.on_collect,
            "forget": self.on_forget,
            "node_report": self.on_node_report,
            "detach": self.on_detach,
            "attach": self.on_attach,
            "jobs": self.on_jobs,
            "queue": self.desk.on_queue,
            "unqueue": self.desk.on_unqueue,
            "look": self.on_look,
        }

    def serve(self) -> None:
        """Answer frames until the channel ends. Those of a job that is over, or was refused, have no handler."""
        self.take_signals()
        while True:
            try:
                frame = self.channel.receive(self.desk.lease)
            except EOFError:
                break
            if frame is None:  # it is the job's turn, and its controller says nothing: others wait
                self.desk.leave()
            handler = self.handlers.get(frame["kind"]) if frame else None
            if frame and handler:
                handler(frame)
        self.desk.leave()
        in_parallel(lambda peer: peer.remote.close(), self.peers.values())

    def take_signals(self) -> None:
        """Be ended by SIGTERM alone."""
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
    def sending_beats(self, frame: protocol.Request) -> Iterator[None]:
        """While it is entered, send beats if the frame asks for them: a slow disk is not a lost node."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(BEAT_SECONDS):
                self.channel.send("beat")

        thread = threading.Thread(target=beat, daemon=True)
        if frame.get("beats"):
            thread.start()
        try:
            yield
        finally:
            done.set()
            if frame.get("beats"):
                thread.join()

    def on_clock(self, _frame: protocol.Request) -> None:
        self.channel.send("clock", time=time.time())

    def on_survey(self, frame: protocol.Survey) -> None:
        """Send the facts of this node, and those of the other nodes by host."""
        home, routes = home_path(frame["request"]["home"]), frame.get("nodes", [])
        with self.sending_beats(frame):
            found = in_parallel(lambda route: self.survey_node(route, home), routes)
            own = survey(frame["request"])
            if "nodes" in frame:  # this node is the head: jobs that wait have their names as well
                own["jobs"] += self.desk.others(home)
        facts = {route["host"]: answer for route, answer in zip(routes, found)}
        self.asked, self.facts = frame, {OWN: own, **facts}
        self.channel.send("survey", facts=own, nodes=facts)

    def survey_node(self, route: protocol.SurveyRoute, home: str) -> records.AnyFacts:
        """Return the facts of another node, or `unreachable` with the reason. `home` is that of this node."""
        try:
            peer = self.reach(route, home)
            facts: records.NodeFacts = peer.remote.expect("survey", ANSWER_SECONDS, request=route["request"])["facts"]
            if len(json.dumps(facts)) > SURVEY_BYTES:  # all answers go to the controller in one frame
                raise ConnectionLost(f"its facts are larger than {SURVEY_BYTES >> 20} MiB")
        except ConnectionLost as lost:
            return {"unreachable": str(lost)}
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
        return SILENT_SECONDS if self.asked and "nodes" in self.asked else None

    def on_folder(self, frame: protocol.FolderOffer) -> None:
        """Receive a folder: for this node if `here` names it, and for the other nodes in `nodes`."""
        self.offered = frame
        with self.sending_beats(frame):
            self.shipment = Shipment(home_path(frame["home"]), frame["files"]) if frame["here"] else None
            peers = [self.peers[name] for name in frame["nodes"] if name in self.peers]
            relay(self.channel, self.shipment, frame["here"], peers, frame["files"], self.silence)

    def on_data_set(self, frame: protocol.DataOffer) -> None:
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
            refused = refused or run_job(self, frame["order"], audience, self.desk.leave, rule)
            if refused:
                self.desk.leave()
                self.channel.send("refused", **refused)

    def on_detach(self, _frame: protocol.Nothing) -> None:
        """Outlive the connection: the job that comes goes on without it."""
        self.detachment.begin()

    def release(self) -> None:
        """Let the connection end, as the job runs: from now on it is followed over a socket of its own."""
        self.detachment.complete(self.channel)

    def on_attach(self, frame: protocol.OfJob) -> None:
        """Let the controller follow a job that runs, and send its result when it is over."""
        job = JobDir(os.path.join(home_path(frame["home"]), "jobs", frame["job_id"]))
        with contextlib.suppress(OSError):
            remove_dead(Queue(home_path(frame["home"])))
        refused = follow(job, self.channel)
        if refused:
            self.channel.send("refused", reason=refused)

    def on_jobs(self, frame: protocol.OfController) -> None:
        """Send the jobs of which this node is the head, those that are over too, until clean.yml removes them."""
        with self.sending_beats(frame):
            home = home_path(frame["home"])
            waiting: list[records.JobRow] = []
            with contextlib.suppress(OSError):  # somebody keeps the queue: the other jobs are told
                waiting = waiting_rows(Queue(home), frame["controller"])
            rows = [row_of(job, frame["controller"]) for job in jobs(home)]
        self.channel.send("jobs", jobs=[*(row for row in rows if row), *waiting])

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
        self.channel.send("looked", placement=placement, evidence=evidence, missing=missing)

    def on_stage(self, frame: protocol.Stage) -> None:
        """Stage the job on this node and run it when the head sends `start`."""
        with self.ended_by_signals():
            try:
                with self.sending_beats(frame):
                    node_job = NodeJob(frame["order"], frame["secrets"], shipment=self.shipment)
            except (OSError, ValueError) as error:
                running = error.running[frame["order"]["host"]] if isinstance(error, NotAlone) else []
                self.channel.send("staged", reason=str(error), running=running)
                return
            self.channel.send("staged")
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

    def on_collect(self, frame: protocol.Collect) -> None:
        """Send the jobs that are over and not fetched, and which of them the asking controller had started.

        Unless it is a dry run, write the result of those whose supervisor and guard died.
        """
        waiting: list[records.WaitingRun] = []
        with self.sending_beats(frame):
            with contextlib.suppress(OSError):
                remove_dead(Queue(home_path(frame["home"])))
            for job in jobs(home_path(frame["home"])):
                order, staging = job.order(), job.staging()
                if not order or not staging or order["head"] != order["host"] or job.is_fetched() or job.running():
                    continue
                own = order["controller"] == frame["controller"]
                try:
                    state = self.state_of(job, order, staging, frame["dry_run"])
                except (OSError, ValueError, ArithmeticError):  # its program may have closed it, or written nonsense
                    state = "lost"
                waiting.append(
                    {
                        "job_id": job.job_id,
                        "run_dir": order["run_dir"],
                        "state": state,
                        "own": own,
                        "seconds": age(job),
                    }
                )
        self.channel.send("waiting", jobs=waiting)

    def on_forget(self, frame: protocol.OfJob) -> None:
        """Drop the files of a job on all its nodes. Send the nodes where that failed."""
        home = home_path(frame["home"])
        job = JobDir(os.path.join(home, "jobs", frame["job_id"]))
        with self.sending_beats(frame):
            order = job.order()
            missing = ["it still runs"] if job.running() else []
            for route in job.routes() if order else []:
                try:
                    peer = self.reach(route, home)
                    answer = peer.remote.expect(
                        "forget", ANSWER_SECONDS, "forgotten", home=peer.home, job_id=job.job_id
                    )
                    missing += [f"{peer.name}: {reason}" for reason in answer["missing"]]
                except ConnectionLost as lost:
                    missing.append(f"{route['host']}: {lost}")
            if order and not missing:
                mark_fetched(job)
        self.channel.send("forgotten", missing=missing)

    def state_of(self, job: JobDir, order: orders.Order, staging: orders.Staging, dry_run: bool) -> FinalState:
        """Return the state of a job that is over; it is lost if all died who could write a result."""
        state = state_in(job.read("result.json"))
        if not state and not dry_run:
            job.claim_end(*SUPERVISOR_DIED)
            routes = job.routes()
            reports = in_parallel(lambda route: self.report_of(route, job), routes)
            node_reports = {route["host"]: report for route, report in zip(routes, reports) if report}
            state = write_result(job, order, staging, final_metrics(job, order), node_reports)["state"]
        return state or "lost"

    def report_of(self, route: orders.Route, job: JobDir) -> records.NodeReport | None:
        """Return another node's report of a job, or None if it has none or does not answer."""
        try:
            peer = self.reach(route, os.path.dirname(os.path.dirname(job.path)))
            answer = peer.remote.expect("node_report", ANSWER_SECONDS, home=peer.home, job_id=job.job_id)
        except ConnectionLost as lost:
            self.given_up[route["host"]] = str(lost)
            return None
        return in_head_time(own_ranks_report(peer.name, answer["report"]), peer.offset) if answer["report"] else None

    def on_node_report(self, frame: protocol.OfJob) -> None:
        """Send this node's report of a job whose head died."""
        job = JobDir(os.path.join(home_path(frame["home"]), "jobs", frame["job_id"]))
        with self.sending_beats(frame):
            order = job.order()
            report = node_report(job, order, final_metrics(job, order)) if order and not job.running() else None
        self.channel.send("node_report", report=report)


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
