# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One node's part of a job: staging, a guard above its processes, its ranks' output, an end without leftovers.

Every node of a job runs this under its supervisor, the head too. The supervisor forks the guard.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import threading
import time
from typing import Collection, Mapping, Protocol, Sequence

from ..basics.job_directory import JobDir, remove
from ..containers import containers
from ..looks.last_look import noted_evidence
from ..nodes.alone import ONE_NODE, check_alone, staging_lock
from ..processes import processes
from ..ranks.metrics import Metrics
from ..ranks.output_lines import last_line
from ..ranks.rank_record import ended_by_us, last_line_of, leftovers_of, records_of
from ..ranks.secrets import Keeper
from ..software import program_environment
from ..stores import data_store
from ..stores.earlier_attempts import continues, set_aside, take_back
from ..types.orders import JobRoute, Order, Staging
from ..types.reasons import THE_GUARD_DIED, Reason
from ..types.records import NodeReport
from ..usage.sampler import noted_usage
from ..wire.channel import BEAT_SECONDS, ready, serialized
from ..wire.node_form import ROWS
from ..wire.protocol import ForHead, ToGuard, end
from .guard import Guard
from .node_rounds import NodeRounds
from .output_follower import OutputFollower
from .supervisor_watch import STOPPED_SECONDS

END_SECONDS = 10.0  # beyond the time of programs and of their leftovers, for a guard that was asked to end the job
PLACE_BYTES = 40  # of $TMPDIR: Open MPI makes directories below ours before its sockets


class Shipment(Protocol):
    """The files that were shipped to this node for the job."""

    def make_tree(self, job: JobDir) -> None: ...


class NodeJob:
    """One node's part of one job."""

    def __init__(
        self,
        order: Order,
        secrets: Mapping[str, str],
        files: Mapping[str, str] | None = None,
        routes: Sequence[JobRoute] | None = None,
        shipment: Shipment | None = None,
        lock: int = -1,
    ) -> None:
        """Stage the job on this node. OSError, ValueError: nothing is left of it.

        NotAlone if this job or another asks for the node exclusively. `secrets`: variables of the ranks, kept in memory
        only; `files`: texts by name, for the job directory; `routes`: on the head, to the other nodes; `shipment`: the
        files that were shipped to this node; `lock`: of the directory, if this process holds it since the attempt
        before. Of a job that is started again in its directory (earlier_attempts.py) all is as it was if this fails.
        """
        self.job = JobDir(os.path.join(order["home"], "jobs", order["job_id"]))
        self.order = order
        self.started, self.private_tmp = time.time(), ""
        self.keeper: Keeper | None = None
        self.lock, self.again = lock, continues(self.job, order)
        with staging_lock(order["home"], ONE_NODE, order["exclusive"]):
            check_alone(order)
            self.make_room()
            try:
                self.stage(secrets, files or {}, routes)
                if shipment and not self.again:
                    shipment.make_tree(self.job)
            except BaseException:
                self.unstage()
                raise
        self.guard, self.to_guard, self.from_guard = 0, -1, -1
        self.buffer = b""
        self.guard_gone = False
        self.guard_status = 0  # its wait status when it is gone
        self.cleanup_thread: threading.Thread | None = None
        self.excluded_pids: Collection[int] = ()  # children of the supervisor outside the job: ssh to other nodes
        self.end_reason: Reason | None = None
        self.guard_deadline = 0.0
        self.guard_stopped_since: float | None = None
        self.last_beat = 0.0  # when the guard was last sent a sign of life
        self.final_report: NodeReport | None = None  # the report, when the job is over here
        self.rounds = NodeRounds(self)

    def make_room(self) -> None:
        """Make the job's directory, or have it empty for the next attempt. OSError."""
        ranks = [place["rank"] for place in self.order["placement"]]
        if not self.again:
            if self.lock >= 0:
                raise OSError(f"{self.job.path} was taken away, or is no job of ours any more")
            self.job.create(ranks)
            return
        if self.lock < 0:
            self.lock = self.job.lock()  # waits for the supervisor of the attempt before
        elif not self.job.has_lock(self.lock):
            raise OSError(f"{self.job.path} was taken away, and another job has it")
        set_aside(self.job, self.order["restarts"] - 1)
        try:
            self.job.fill(ranks)
        except OSError:
            take_back(self.job, self.order["restarts"] - 1)
            raise

    def stage(self, secrets: Mapping[str, str], files: Mapping[str, str], routes: Sequence[JobRoute] | None) -> None:
        """Make all files that the launcher and the ranks read."""
        self.lock = self.lock if self.again else self.job.lock()
        self.private_tmp = private_directory()
        for name, text in files.items():
            write_text(self.job.at(name), text, 0o666)
        self.write_programs()
        if self.order["checkpoint_dir"]:
            os.makedirs(self.order["checkpoint_dir"], 0o700, exist_ok=True)
        self.keeper = Keeper(self.job.path, secrets) if secrets else None
        self.job.write("staging.json", self.staging)
        if routes is not None:
            self.job.write("routes.json", routes)
        self.job.write("order.json", self.order)
        container = self.order.get("container")  # that an earlier version did not know
        if container:
            containers.note_use(self.order["home"], container["engine"])
        program_environment.note_use(self.order)
        data_store.note_use(self.order)
        self.job.write("supervisor.json", processes.identity(os.getpid()))
        self.output = OutputFollower(self.job, self.order)

    @property
    def staging(self) -> Staging:
        """Return what this node adds to the order."""
        return {"started": self.started, "private_tmp": self.private_tmp}

    def write_programs(self) -> None:
        """Write the programs that launchers start by name: one command line serves nodes with different homes."""
        os.mkdir(self.job.at("bin"), 0o700)
        for name, words in self.order["programs"].items():
            write_text(self.job.at("bin", name), f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', 0o700)

    def unstage(self) -> None:
        """Undo the staging."""
        if self.keeper:
            self.keeper.close()
        if self.private_tmp:
            remove(self.private_tmp)
        if self.again:
            take_back(self.job, self.order["restarts"] - 1)
        else:
            remove(self.job.path)

    def close(self) -> None:
        """Close what is open for this attempt but the lock: the job is over here, and another attempt follows."""
        for descriptor in (self.to_guard, self.from_guard, self.output.metrics.file):
            os.close(descriptor)

    def start(self) -> None:
        """Fork the guard."""
        processes.become_subreaper()
        guard_input, self.to_guard = os.pipe()
        self.from_guard, guard_output = os.pipe()
        self.guard = os.fork()
        if self.guard:
            os.close(guard_input)
            os.close(guard_output)
            if self.keeper:
                self.keeper.start()
            self.output.start()
            return
        status = 1
        try:
            close_all_but({0, 1, 2, guard_input, guard_output, self.lock})
            self.be_guard(guard_input, guard_output)
            status = 0
        except BaseException:  # a fork must not run on as a second supervisor
            import traceback

            with open(self.job.at("launcher.out"), "a") as file:
                traceback.print_exc(file=file)
        os._exit(status)

    def be_guard(self, guard_input: int, guard_output: int) -> None:
        """In the guard process: run the job on this node to its end.

        It closes 0, 1 and 2, which are the connection to the head: sshd waits for all holders of them.
        """
        with open(os.devnull, "r+b") as nothing:
            for descriptor in (0, 1, 2):
                os.dup2(nothing.fileno(), descriptor)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        above = os.getppid()
        processes.become_subreaper()
        Guard(self.job, self.order, self.private_tmp, guard_input, guard_output).run()
        if os.getppid() != above:
            remove(self.private_tmp)

    def send(self, message: ToGuard) -> None:
        """Send the guard a message. A dead guard is noticed elsewhere."""
        try:
            os.write(self.to_guard, serialized(message))
        except BrokenPipeError:
            pass

    def end(self, reason: Reason, looks: bool = False) -> None:
        """Have the guard end the job on this node; it `looks` at the ranks before. The first reason stands."""
        if not self.end_reason:
            self.end_reason = reason
            self.guard_deadline = time.monotonic() + 2 * processes.longest(self.order["grace"]) + END_SECONDS
            self.send(end(reason, looks))

    def beat(self) -> None:
        """Send the guard a sign of life, unless its pipe is full: a hanging guard must not block this."""
        now = time.monotonic()
        if not self.guard_gone and now - self.last_beat > BEAT_SECONDS and ready([self.to_guard], 0, select.POLLOUT):
            self.last_beat = now
            self.send({"kind": "beat"})

    def messages(self) -> list[ForHead]:
        """Return the guard's new messages for the head; call it when `from_guard` is readable. No more: it is gone."""
        chunk = os.read(self.from_guard, 65536)
        if not chunk:
            self.guard_gone, self.guard_status = True, os.waitpid(self.guard, 0)[1]
            self.cleanup_thread = threading.Thread(target=self.clean_up)
            try:
                self.cleanup_thread.start()
            except RuntimeError:  # the job has all processes that its user or container may have
                self.clean_up()
        *lines, self.buffer = (self.buffer + chunk).split(b"\n")
        return [message for line in lines for message in [self.rounds.take(json.loads(line))] if message]

    def check_guard(self) -> None:
        """Kill a guard that is stopped, or stuck after it was asked to end: finish_for_guard does its work."""
        if self.guard_gone:
            return
        self.guard_stopped_since = processes.stopped_for(self.guard, self.guard_stopped_since)
        late = self.end_reason and time.monotonic() > self.guard_deadline
        stopped = self.guard_stopped_since
        if late or (stopped is not None and time.monotonic() - stopped > STOPPED_SECONDS):
            os.kill(self.guard, signal.SIGKILL)

    @property
    def over(self) -> bool:
        """Whether the guard is gone, no process of the job is left here, and all output was read."""
        return self.cleanup_thread is not None and not self.cleanup_thread.is_alive()

    def clean_up(self) -> None:
        """Do all that comes after the guard. In a thread: it may take `grace` or a slow disk, and the leases go on."""
        try:
            self.finish_for_guard()
        finally:
            if self.keeper:
                self.keeper.close()
            self.output.finish()
        self.rounds.settle()
        self.job.note_over()
        if self.order["host"] != self.order["head"]:
            self.final_report = node_report(self.job, self.order, self.output.metrics)
            self.job.drop_ballast()

    def finish_for_guard(self) -> None:
        """Do the guard's work if it did not exit by itself; then end the processes that escaped it."""
        if self.guard_status != 0:
            Guard(self.job, self.order, self.private_tmp, -1, -1, self.excluded_pids).finish(
                self.end_reason or THE_GUARD_DIED
            )

        def escaped_processes() -> list[processes.Process]:
            return [process for process, mark in processes.marked() if mark.job_dir == self.job.path]

        found = processes.end_all(escaped_processes, self.order["grace"] or processes.GRACE_SECONDS)
        if found:
            self.job.write("leftovers.json", self.job.leftovers() + found)
        remove(self.private_tmp)

    def report(self) -> NodeReport:
        """Return the report of this node for the head, once the job is over here."""
        return self.final_report or node_report(self.job, self.order, self.output.metrics)


def node_report(job: JobDir, order: Order, metrics: Metrics) -> NodeReport:
    """Return the report of a node: records and last lines by rank, leftovers, launcher, metrics."""
    records = records_of(job, order)
    end = job.end()
    for record in records.values():  # by this node's own clock
        record["ended_by_us"] = ended_by_us(record, end)
    launcher = job.launcher()
    return {
        "records": {str(rank): record for rank, record in records.items()},
        "lines": {str(rank): last_line_of(job, rank, records.get(rank)) for rank in order["ranks"]},
        "leftovers": leftovers_of(job, records)[:ROWS],
        "launcher": {**launcher, "last_line": last_line(job.at("launcher.out"))},
        "metrics": [(name, metrics.rank_of[name], value) for name, value in metrics.last.items()][:ROWS],
        "evidence": noted_evidence(job),
        "usage": noted_usage(job),
    }


def write_text(path: str, text: str, mode: int) -> None:
    """Write a file in UTF-8, whatever this node's locale. Bytes of names that are not UTF-8 stay as they are."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, mode)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


def close_all_but(kept: Collection[int]) -> None:
    """Close inherited descriptors: else the guard's copies would hide the supervisor's death from the head."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the descriptor of this very listing
                pass


def private_directory() -> str:
    """Make a directory of the launcher's own: 0700, and short, because Unix sockets go in there (108 bytes at most).

    It is in $TMPDIR, unless that is long already.
    """
    place = os.environ.get("TMPDIR", "/tmp")
    path = os.path.join(place if len(place) <= PLACE_BYTES else "/tmp", f"torchfleet-{os.urandom(8).hex()}")
    os.mkdir(path, 0o700)
    return path
