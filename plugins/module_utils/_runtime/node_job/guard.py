# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The node guard: owns every process the launcher starts on this node, and ends them all.

It is a subreaper, so children that called setsid or forked twice stay below it; it needs no privilege. It ends the job
when a rank fails, the launcher dies, the deadline passes, the supervisor requests it, or the supervisor is dead or
silent. The supervisor does the same with the same code if the guard is dead: each can finish the other's work.

It starts the launcher on the head, a launcher's daemon on other nodes, torchrun's agent on each. It exchanges JSON
lines with its supervisor: ToGuard and FromGuard in protocol.py have them.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from typing import Collection

from ..basics.bounded_write import write_in_thread
from ..basics.job_directory import JobDir
from ..containers.inside import end_container, monitor_is_gone
from ..looks.last_look import note_evidence
from ..processes import processes as processes_module
from ..processes.ending import Ending, signal_programs
from ..processes.job_processes import Snapshot, snapshot_of
from ..processes.processes import Process
from ..ranks.rank_output import Stream, copy_all, streams_of
from ..ranks.rank_record import has_saved, record_of_orphan
from ..software import batch_system
from ..software.launchers import STARTED_BY_SLURMD
from ..types import reasons
from ..types.orders import Order
from ..types.reasons import BY_ITSELF, SUPERVISOR_DIED, SUPERVISOR_STOPPED, EndReason, Reason
from ..types.records import LauncherExit, RankRecord
from ..usage.sampler import Sampling
from ..wire.channel import ready, serialized
from ..wire.protocol import FromGuard, ToGuard, ending
from .guard_rounds import LEFTOVER_GRACE, GuardRounds
from .launcher_process import become_launcher, launcher_pids
from .supervisor_watch import SupervisorWatch

LOOK_SECONDS = 0.25  # between two checks, unless an event comes
NEWS_SECONDS = 10.0  # for other nodes to tell of their ranks when the launcher has ended on a node without any
EXIT_SECONDS = 2.0  # for a launcher to exit after its last rank (Open MPI 5.0.11 sometimes never does)
EXITING_SECONDS = 1.0  # for a launcher that has closed its connections to be gone
RECORD_SECONDS = 1.0  # for wrappers to write how their programs ended
OTHER_NODES_SECONDS = 3.0  # beyond the time of the ranks, for other nodes to report that theirs are done
MONITOR_SECONDS = 3.0  # for an engine to exit after the monitor of its container


class Guard:
    """Runs the launcher (or its daemon) on this node and owns every process below it."""

    def __init__(
        self,
        job: JobDir,
        order: Order,
        private_tmp: str,
        from_supervisor: int,
        to_supervisor: int,
        excluded_pids: Collection[int] = (),
    ) -> None:
        """`private_tmp`: the launcher's own directory (see Staging)."""
        self.job, self.order, self.private_tmp = job, order, private_tmp
        self.container = order.get("container")  # that an earlier version did not know
        self.from_supervisor, self.to_supervisor = from_supervisor, to_supervisor  # pipes, -1: none
        self.excluded_pids = excluded_pids
        self.buffer = b""
        self.watch = SupervisorWatch()
        self.launcher = 0
        self.launchers: set[int] = set()  # pids: the launcher and what it started, at the end
        self.started = False
        self.launcher_ended: float | None = None  # by time.monotonic()
        self.launcher_killed = False  # by SIGKILL, which no launcher gives itself
        self.exit_by: float | None = None  # for the launcher, when all ranks of the job are done
        self.detached = to_supervisor < 0  # no supervisor reports when the ranks of other nodes are done
        self.end_requested: Reason | None = None  # by the supervisor
        self.looks = False  # before the ranks are ended
        self.placed = False
        self.done: dict[int, int] = {}  # the pid of the wrapper of each rank that is done
        self.streams: dict[int, list[Stream]] = {}  # by rank; its wrapper reads them while it lives
        self.ending = False
        self.deadline: float | None = None
        self.notice_at = math.inf
        self.noticed: set[int] = set()  # pids of the wrappers of the ranks that were told that the end is near
        self.sampling = Sampling(job, order)
        self.unmonitored_since: float | None = None  # of a container whose monitor is gone
        self.saved: tuple[int, float] | None = None  # the first rank here that has saved and exited, and when
        self.rounds = GuardRounds(self)
        if order["launcher"]["name"] not in STARTED_BY_SLURMD:  # else the job may wait in a queue
            self.start_clock()

    def run(self) -> None:
        """Start the launcher, wait until the job is over, leave no process. Returns when that is done."""
        events = os.open(self.job.at("events"), os.O_RDWR | os.O_NONBLOCK)
        self.streams = streams_of(self.job, self.order["ranks"])  # before a program puts something in their place
        wakeup = processes_module.listen_for_children()
        if self.order["command"]:
            self.start_launcher(self.order["command"])
        reason = None
        while not reason and not self.over():
            timeout = min(LOOK_SECONDS, max(0.0, (self.deadline or 1e18) - time.monotonic()))
            found = ready([events, wakeup, self.from_supervisor], timeout)
            for descriptor in found - {self.from_supervisor}:
                os.read(descriptor, 65536)
            if self.from_supervisor in found:
                self.read_supervisor()
            reason = self.end_requested or self.check_lease(self.from_supervisor in found) or self.reason_to_end()
            reason = self.rounds.hold(reason)
            self.excluded_pids = self.sampling.look(self.placed)
        if reason:
            self.send(ending(reason))
        self.finish(reason)

    def start_clock(self) -> None:
        """Start the clock of job_timeout, unless it runs already."""
        if self.order["job_timeout"] and not self.deadline:
            self.deadline = time.monotonic() + self.order["job_timeout"]
            if self.order["notice"]:
                self.notice_at = self.deadline - self.order["notice"]

    def check_lease(self, received: bool) -> Reason | None:
        """Return why the job must end if the supervisor was silent for the lease, and kill the supervisor."""
        if not self.watch.is_silent(received, self.order["lease"]):
            return None
        self.lose_supervisor()
        return reasons.silent("supervisor", self.order["lease"])

    def lose_supervisor(self) -> None:
        """Go on without a supervisor that hangs."""
        self.detached = True
        self.watch.kill()

    def over(self) -> bool:
        """Whether the job is over on this node: its ranks are done, and the launcher exited or had its time to."""
        if self.rounds.told or len(self.done) < len(self.order["ranks"]):
            return False
        exited = self.launcher_ended is not None and not self.waits_for_news()
        late = self.exit_by is not None and (
            bool(self.saved) or time.monotonic() > self.exit_by or not self.launcher_runs()
        )
        return exited or late

    def launcher_runs(self) -> bool:
        """Whether the launcher runs here, or the batch file that it gave to Slurm, which may start on any node."""
        by_slurm = self.order["launcher"]["name"] in STARTED_BY_SLURMD
        return bool(self.launcher or (by_slurm and self.launcher_tree()))

    def waits_for_news(self) -> bool:
        """Whether the launcher has ended on a head that runs no ranks, and it is not known how those of others are."""
        has_ended = self.launcher_ended is not None
        return has_ended and not self.order["ranks"] and self.exit_by is None and not self.detached

    def lost_launcher(self) -> bool:
        """Whether the launcher has ended before all ranks were done."""
        if self.launcher_ended is None:
            return False
        failed = self.job.launcher().get("rc", 0) != 0
        patience = NEWS_SECONDS if failed else max(NEWS_SECONDS, self.order["lease"])  # the link may be lost that long
        late = self.launcher_killed or time.monotonic() > self.launcher_ended + patience
        return len(self.done) < len(self.order["ranks"]) or (late and self.waits_for_news())

    def send(self, message: FromGuard) -> None:
        """Send the supervisor a message, if there is one. A dead one is noticed elsewhere."""
        if self.to_supervisor < 0:
            return
        try:
            os.write(self.to_supervisor, serialized(message))
        except BrokenPipeError:
            pass

    def read_supervisor(self) -> None:
        """Handle the supervisor's messages. End of file means that it died, and ends the job."""
        chunk = os.read(self.from_supervisor, 65536)
        if not chunk:
            self.end_requested, self.detached = SUPERVISOR_DIED, True
        *lines, self.buffer = (self.buffer + chunk).split(b"\n")
        for line in lines:
            message: ToGuard = json.loads(line)
            if message["kind"] == "end" and not self.end_requested:
                self.end_requested, self.looks = reasons.reason_in(message), message.get("looks", False)
            elif message["kind"] == "all_placed":
                self.job.write("begin.json", {"at": time.time()})
                self.job.open_gate()
            elif message["kind"] == "all_done":
                self.exit_by = self.exit_by or time.monotonic() + EXIT_SECONDS
                self.rounds.finish()
            elif message["kind"] == "end_round":
                self.rounds.close(reasons.reason_in(message))
            elif message["kind"] == "next_round":
                self.rounds.begin(message)
            elif message["kind"] == "start_daemon" and not self.started:
                self.start_launcher(["/bin/sh", "-c", message["command"]])

    def start_launcher(self, command: list[str]) -> None:
        self.started = True
        self.launcher = os.fork()
        if self.launcher == 0:
            try:
                become_launcher(command, self.job, self.order, self.private_tmp)
            except BaseException as error:
                os.write(2, f"torchfleet: cannot start {command[0]}: {error}\n".encode())
            os._exit(127)
        self.job.write("launcher.json", {"pid": self.launcher})

    def reason_to_end(self) -> Reason | None:
        """Return why the job must end now, or None: check the launcher, the records and the clock."""
        self.collect_children()
        if self.rounds.closed:
            return self.check_clock_and_launcher()
        end = self.job.end()  # a misplaced rank writes it
        if end:
            return reasons.reason_in(end)
        self.copy_orphaned_output()
        if self.container:
            self.check_monitor()
        return self.check_ranks() or self.check_clock_and_launcher()

    def check_monitor(self) -> None:
        """End an engine that waits for a container whose monitor is gone: Podman's notices late or never."""
        gone = self.launcher and monitor_is_gone(self.job)
        self.unmonitored_since = (self.unmonitored_since or time.monotonic()) if gone else None
        if self.unmonitored_since and time.monotonic() > self.unmonitored_since + MONITOR_SECONDS:
            os.kill(self.launcher, signal.SIGKILL)

    def copy_orphaned_output(self) -> None:
        """Copy the output of daemons that outlived their rank and its wrapper. A stream never has two readers."""
        for rank, wrapper in self.done.items():
            if not processes_module.is_running(wrapper):
                copy_all(self.streams.get(rank, ()))

    def check_ranks(self) -> Reason | None:
        """Note which ranks are done. Return why the job must end if one failed: rather one that no agent stopped."""
        stopped = None
        if not self.placed and all(self.job.record(rank) for rank in self.order["ranks"]):
            self.placed = True
            self.send({"kind": "placed"})
        for rank in self.order["ranks"]:
            record = None if rank in self.done else self.job.record(rank)
            if record is None:
                continue
            self.start_clock()
            if "rc" in record:
                self.done[rank] = record["wrapper_pid"]
                if has_saved(record):
                    self.saved = self.saved or (rank, time.monotonic())
                elif record.get("stopped"):  # it was not done, whatever its status: it may have saved its state
                    stopped = reasons.stopped_by_agent(rank)
                elif record["rc"] != 0 and not record["finished"]:
                    return reasons.rank_failed(rank)
                if len(self.done) == len(self.order["ranks"]) and not stopped:
                    self.send({"kind": "done", "saved": bool(self.saved)})
            elif not processes_module.is_running(record["wrapper_pid"]) and self.job.record(rank) == record:
                self.record_wrapper_death(rank, record)
                return reasons.wrapper_died(rank)
        return stopped

    def check_clock_and_launcher(self) -> Reason | None:
        """Return why the job must end by the clock, the launcher or a stopped supervisor, or None."""
        timeout = self.order["job_timeout"]
        if timeout and self.deadline and time.monotonic() >= self.deadline:
            return reasons.timed_out(timeout)
        if time.monotonic() >= self.notice_at:
            self.give_notice()
        if self.saved and time.monotonic() > self.saved[1] + processes_module.longest(self.order["grace"]):
            return reasons.others_run_on(self.saved[0], processes_module.longest(self.order["grace"]))
        if self.lost_launcher():
            status = self.job.launcher().get("rc", 0)
            return reasons.launcher_ended(self.order["launcher"]["name"], self.order["host"], status)
        if self.watch.is_stopped():
            self.lose_supervisor()
            return SUPERVISOR_STOPPED
        return None

    def give_notice(self) -> None:
        """Tell every rank once that the end is near; one that has no handler yet may have one at the next look."""
        trees = self.snapshot().trees
        waiting = {wrapper: tree for wrapper, tree in trees.items() if wrapper not in self.noticed}
        self.noticed |= signal_programs(waiting, signal.SIGUSR1)

    def record_wrapper_death(self, rank: int, record: RankRecord) -> None:
        """Write the record of a rank whose wrapper died before it could."""
        ended = record_of_orphan(record, time.time(), time.monotonic())
        write_in_thread(lambda: self.job.write(os.path.join("ranks", str(rank), "record.json"), ended))

    def collect_children(self) -> None:
        """Collect ended children; record the launcher's exit."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.launcher:
                self.launcher, self.launcher_ended = 0, time.monotonic()
                self.launcher_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
                rc = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                self.record_launcher_exit({"pid": pid, "rc": rc, "at": time.time(), "unasked": not self.ending})
                self.send({"kind": "launcher_exited", "rc": rc, "text": self.job.launcher_text()})

    def record_launcher_exit(self, end: LauncherExit) -> None:
        write_in_thread(lambda: self.job.write("launcher.json", end))

    def finish(self, reason: Reason | None) -> None:
        """End all that is left, and copy its unread output into the files."""
        if not self.streams:
            self.streams = streams_of(self.job, self.order["ranks"])
        self.sampling.stop()
        self.end_all(reason)
        if self.container:
            end_container(self.container)
        self.sampling.wait()
        for streams in self.streams.values():
            copy_all(streams)

    def end_all(self, reason: Reason | None) -> None:
        """End ranks first so that they can write their records, then the rest; record what had outlived them."""
        if self.launcher:
            processes_module.wait_if_exiting(self.launcher, EXITING_SECONDS)
        self.collect_children()  # these were not ended by us
        self.ending = True
        self.launchers = self.launcher_tree()
        cut_off = bool(reason or self.launcher)  # srun that is ended before it has left frees no nodes
        by_itself = bool(reason and reason.code in BY_ITSELF)
        asks = by_itself and bool(self.order["command"]) and not self.launcher_killed  # by whom, Slurm does not know
        queued = batch_system.state_of(self.job) if asks else ""
        if reason:
            # Before the programs: by end.json a wrapper knows that its program did not leave by itself.
            write_in_thread(lambda: self.job.claim_end(*reason))
            self.job.open_gate()
            self.end_ranks(stacks=self.looks or reason.code == EndReason.TIMED_OUT)
        elif not self.snapshot().processes:
            return
        self.end_own()
        if cut_off:
            batch_system.cancel(self.job)
        leftovers = processes_module.end_all(self.foreign, LEFTOVER_GRACE)
        processes_module.kill_all(lambda: self.snapshot().processes)
        self.collect_children()
        batch_system.note_end(self.job, queued)
        if leftovers:
            write_in_thread(lambda: self.job.write("leftovers.json", leftovers))

    def end_ranks(self, stacks: bool) -> None:
        """End all processes below the ranks' wrappers; the wrappers stay and write the records.

        With `stacks` each rank prints first where it hangs. The launcher is not ended until the ranks of every node are
        done: it would kill those that still save.
        """
        deadline = time.monotonic() + 2 * processes_module.longest(self.order["grace"]) + OTHER_NODES_SECONDS
        ending = Ending(lambda: self.snapshot().trees, self.order["grace"])
        if stacks:
            note_evidence(self.job, self.order)
            ending.ask_for_stacks()
        ending.run()
        self.wait_for_records()
        self.send({"kind": "done", "saved": False})
        while self.other_nodes_may_save() and time.monotonic() < deadline:
            if ready([self.from_supervisor], LOOK_SECONDS):
                self.read_supervisor()

    def other_nodes_may_save(self) -> bool:
        """Whether ranks of other nodes may still save: the head has not reported yet that all are done."""
        if self.detached or self.exit_by is not None:
            return False
        return len(self.order["ranks"]) < self.order["world_size"]

    def wait_for_records(self) -> None:
        """Wait until the wrappers have recorded how their programs ended."""
        deadline = time.monotonic() + RECORD_SECONDS
        while self.snapshot().unwritten and time.monotonic() < deadline:
            time.sleep(0.01)

    def end_own(self) -> None:
        """End wrappers and launcher: SIGTERM first, then SIGKILL."""
        self.wait_for_records()
        processes_module.terminate(self.own())
        processes_module.wait_gone(self.own, 0.5)
        processes_module.kill_all(self.own)

    def snapshot(self) -> Snapshot:
        """Return the living processes of the job."""
        return snapshot_of(self.job, self.order, self.excluded_pids, self.launchers)

    def own(self) -> list[Process]:
        return self.snapshot().own

    def foreign(self) -> list[Process]:
        return self.snapshot().foreign

    def launcher_tree(self) -> set[int]:
        """Return the pids of the launcher and of what it started."""
        return launcher_pids(self.snapshot(), self.job, self.order, self.private_tmp)
