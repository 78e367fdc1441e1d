# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The node guard: owns every process the launcher starts on this node, and ends them all.

It is a subreaper, so children that called setsid or forked twice stay below it; it needs no privilege. It ends the job
when a rank fails, the launcher dies, the deadline passes, it is told to, or the supervisor above it is gone or silent.
The supervisor does the same with the same code if the guard is gone: they are twins, and each outlives the other.

What it starts is the launcher on the head, a launcher's daemon on other nodes, torchrun's agent on each. With its
supervisor it exchanges JSON lines: it hears `beat`, `start` (a daemon's command), `leave` (every rank of the job is
done) and `end` (reason, detail), `begin` (every rank of the job is where the plan has it), and says `placed` (this
node's ranks are), `done` (they are), `left` (what it had started: rc, its last words) and `ending`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, Collection, Mapping, NamedTuple

from . import processes as processes_module
from .channel import BEAT_SECONDS, ready
from .ending import Ending, Trees, trees_below
from .job_directory import JobDir, aside
from .open_files import restore_files
from .processes import Process
from .rank import ELSEWHERE, IDENTITIES
from .rank_output import Stream, open_streams
from .remote_shell import agents
from .result import TORN, signal_name

LOOK_SECONDS = 0.25  # how often the guard looks around without being woken
LEAVE_SECONDS = 2.0  # how long a launcher may take to leave after its last rank (Open MPI 5.0.11 sometimes never does)
STOPPED_SECONDS = 4.0  # how long supervisor or guard may be stopped before its twin takes it for dead
RECORD_SECONDS = 1.0  # for wrappers to write how their programs ended
OTHERS_SECONDS = 3.0  # beyond what ranks may take, for other nodes to say that theirs are done
LEFTOVER_GRACE = 1.0  # seconds between SIGTERM and SIGKILL for what outlived its rank
# What a launcher of an outer job, of a batch system or of a careless profile would pass on to ours.
INHERITED = ("OMPI_", "PRTE_", "PMIX_", "PMI_", "HYDRA_", "I_MPI_", "MPIEXEC_", "SLURM_", "TORCHELASTIC_", "PET_")


class Snapshot(NamedTuple):
    """One look at the processes of a job on this node: /proc and the records are read once for it."""

    processes: list[Process]  # parents before children
    records: list[dict[str, Any]]  # of this node's ranks
    trees: Trees
    ours: Collection[int]  # pids of wrappers, the launcher and its daemons

    @property
    def own(self) -> list[Process]:
        """Return the processes that are ours or the launcher's, not the user's."""
        return [process for process in self.processes if process.pid in self.ours]

    @property
    def foreign(self) -> list[Process]:
        return [process for process in self.processes if process.pid not in self.ours]

    @property
    def unwritten(self) -> bool:
        """Whether a wrapper is there that has not written how its program ended."""
        return any("rc" not in record and record["wrapper_pid"] in self.trees for record in self.records)


class Guard:
    """Runs what the launcher needs on this node and everything below it."""

    def __init__(
        self, job: JobDir, order: Mapping[str, Any], supervisor: int, says: int, spared: Collection[int] = ()
    ) -> None:
        self.job, self.order = job, order
        self.supervisor, self.says = supervisor, says  # pipes; the first ends with the supervisor
        self.spared = spared
        self.heard = b""
        self.above = os.getppid()
        self.stopped: float | None = None
        self.silent = 0.0  # seconds since the supervisor said something, those when this process stood still left out
        self.looked = time.monotonic()
        self.ranks = [place["rank"] for place in order["placement"] if place["host"] == order["host"]]
        self.launcher = 0
        self.launchers: set[int] = set()  # pids: the launcher and what it started, at the end
        self.started = False
        self.leave_by: float | None = None
        self.alone = says < 0  # nobody will say when the ranks of other nodes are done
        self.told: tuple[str, str] | None = None  # why the supervisor wants the end
        self.placed = False
        self.done: dict[int, int] = {}  # the pid of the wrapper of each rank that is done
        self.streams: dict[int, list[Stream]] = {}  # of each rank; its wrapper reads them as long as it is there
        self.ending = False
        self.deadline: float | None = None
        if order["launcher"]["name"] not in ELSEWHERE:  # else the job may wait in a queue
            self.start_clock()

    def run(self) -> None:
        """Start the launcher, stay until the job is over, leave nothing. Returns when that is done."""
        events = os.open(self.job.at("events"), os.O_RDWR | os.O_NONBLOCK)
        self.open_streams()  # before any program could put something in their place
        wakeup = processes_module.listen_for_children()
        if self.order["command"]:
            self.start_launcher(self.order["command"])
        reason = None
        while not reason and not self.over():
            timeout = min(LOOK_SECONDS, max(0.0, (self.deadline or 1e18) - time.monotonic()))
            found = ready([events, wakeup, self.supervisor], timeout)
            for descriptor in found - {self.supervisor}:
                os.read(descriptor, 65536)
            if self.supervisor in found:
                self.listen()
            reason = self.told or self.silence(self.supervisor in found) or self.look()
        if reason:
            self.say("ending", reason=reason[0], detail=reason[1])
        self.finish(reason)

    def start_clock(self) -> None:
        """Let job_timeout run, if it does not already."""
        if self.order["job_timeout"] and not self.deadline:
            self.deadline = time.monotonic() + self.order["job_timeout"]

    def silence(self, heard: bool) -> tuple[str, str] | None:
        """Return why the job must end if the supervisor was silent for the lease, and kill it: it cannot end it.

        What this process did not live through is no silence of the other: a node that was frozen, a disk that hung.
        """
        now = time.monotonic()
        self.silent = 0.0 if heard else self.silent + min(now - self.looked, BEAT_SECONDS)
        self.looked = now
        if self.silent <= self.order["lease"]:
            return None
        self.kill_supervisor()
        return "lost", f"the supervisor was silent for {self.order['lease']:g} s"

    def kill_supervisor(self) -> None:
        """Kill a supervisor that does nothing any more: whoever waits for it sees its end."""
        self.alone = True
        if os.getppid() == self.above:
            os.kill(self.above, signal.SIGKILL)

    def over(self) -> bool:
        """Whether this node's part is done: its ranks are, and what was started has left or had its time to."""
        if len(self.done) < len(self.ranks):
            return False
        left = self.started and not self.launcher
        late = self.leave_by is not None and (not self.launcher or time.monotonic() > self.leave_by)
        return left or late

    def say(self, kind: str, **fields: Any) -> None:
        """Tell the supervisor, if there is one above; a dead one is noticed elsewhere."""
        if self.says < 0:
            return
        try:
            os.write(self.says, json.dumps({"kind": kind, **fields}).encode() + b"\n")
        except BrokenPipeError:
            pass

    def listen(self) -> None:
        """Do what the supervisor says; its silence at end of file is a reason to end."""
        chunk = os.read(self.supervisor, 65536)
        if not chunk:
            self.told, self.alone = ("lost", "the supervisor died"), True
        *lines, self.heard = (self.heard + chunk).split(b"\n")
        for word in map(json.loads, lines):
            if word["kind"] == "end" and not self.told:
                self.told = (word["reason"], word["detail"])
            elif word["kind"] == "begin":
                self.job.write("begin.json", {"at": time.time()})
                self.job.open_gate()
            elif word["kind"] == "leave":
                self.leave_by = self.leave_by or time.monotonic() + LEAVE_SECONDS
            elif word["kind"] == "start" and not self.started:
                self.start_launcher(["/bin/sh", "-c", word["command"]])

    def start_launcher(self, command: list[str]) -> None:
        self.started = True
        self.launcher = os.fork()
        if self.launcher == 0:
            try:
                self.become_launcher(command)
            except BaseException as error:
                os.write(2, f"torchfleet: cannot start {command[0]}: {error}\n".encode())
            os._exit(127)
        self.job.write("launcher.json", {"pid": self.launcher})

    def become_launcher(self, command: list[str]) -> None:
        """In the child: a session of its own, output to a file (Open MPI 5 loses it in pipes), a clean environment."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        output = os.open(self.job.at("launcher.out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(descriptor, stream)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(INHERITED)}
        for name in (name for names in IDENTITIES.values() for name in names):
            kept.pop(name, None)
        kept.update(self.order["launcher_environment"])
        kept.update(
            {processes_module.JOB_VARIABLE: self.order["job_id"], processes_module.JOB_DIR_VARIABLE: self.job.path}
        )
        kept["TMPDIR"] = self.order["private_tmp"]
        kept["PATH"] = os.pathsep.join([*self.order["launcher_search"], kept.get("PATH", os.defpath)])
        os.chdir(self.order["cwd"])
        restore_files()
        os.execve(command[0], command, kept)

    def look(self) -> tuple[str, str] | None:
        """Return why the job must end now, or None: look at the launcher, the records and the clock."""
        self.reap()
        end = self.job.end()  # a misplaced rank writes it
        if end:
            return end["reason"], end["detail"]
        self.read_for_daemons()
        return self.look_at_ranks() or self.look_around()

    def open_streams(self) -> None:
        """Open the pipes of all ranks, as far as that is possible."""
        for rank in self.ranks:
            try:
                self.streams[rank] = open_streams(self.job, rank)
            except OSError:  # no descriptor is left: the rank's wrapper reads them all the same
                pass

    def read_for_daemons(self) -> None:
        """Read what daemons write that outlived their rank and its wrapper. Never two read: that would mix it up."""
        for rank, wrapper in self.done.items():
            if processes_module.read(wrapper) is None:
                copy_all(self.streams.get(rank, ()))

    def look_at_ranks(self) -> tuple[str, str] | None:
        """Note which ranks are done; return which one failed."""
        if not self.placed and all(self.job.record(rank) for rank in self.ranks):
            self.placed = True
            self.say("placed")
        for rank in self.ranks:
            record = None if rank in self.done else self.job.record(rank)
            if record is None:
                continue
            self.start_clock()
            if "rc" in record:
                self.done[rank] = record["wrapper_pid"]
                if record["rc"] != 0 and not record["finished"]:
                    return "rank_failed", f"rank {rank} failed"
                if len(self.done) == len(self.ranks):
                    self.say("done")
            elif processes_module.read(record["wrapper_pid"]) is None and self.job.record(rank) == record:
                self.bury_rank(rank, record)
                return "rank_failed", f"the wrapper of rank {rank} died"
        return None

    def look_around(self) -> tuple[str, str] | None:
        """Look at the clock, the launcher and the twin."""
        if self.deadline and time.monotonic() >= self.deadline:
            return "timed_out", f"job_timeout of {self.order['job_timeout']:g} s"
        if self.started and not self.launcher and len(self.done) < len(self.ranks):
            return "launcher_died", self.launcher_epitaph()
        self.stopped = processes_module.stopped_for(self.above, self.stopped)
        if self.stopped is not None and time.monotonic() - self.stopped > STOPPED_SECONDS:
            self.kill_supervisor()
            return "lost", "the supervisor was stopped"
        return None

    def bury_rank(self, rank: int, record: dict[str, Any]) -> None:
        """Write the end of a rank whose wrapper could not."""
        now = {"ended": time.time(), "ended_tick": time.monotonic()}
        end = {"rc": 1, "signal": None, "finished": False, "error": TORN, **now}
        aside(lambda: self.job.write(os.path.join("ranks", str(rank), "record.json"), {**record, **end}))

    def reap(self) -> None:
        """Collect ended children; note the launcher's end."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.launcher:
                self.launcher = 0
                rc = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                self.note_launcher({"pid": pid, "rc": rc, "at": time.time(), "unasked": not self.ending})
                self.say("left", rc=rc, text=self.job.launcher_text())

    def note_launcher(self, end: dict[str, Any]) -> None:
        aside(lambda: self.job.write("launcher.json", end))

    def launcher_epitaph(self) -> str:
        rc = self.job.launcher().get("rc", 0)
        how = f"was killed by {signal_name(rc - 128)}" if rc > 128 else f"ended with status {rc}"
        return f"{self.order['launcher']['name']} on {self.order['host']} {how}"

    def finish(self, reason: tuple[str, str] | None) -> None:
        """End all that is left, and put what nobody has read of its output into the files."""
        if not self.streams:
            self.open_streams()
        self.end_all(reason)
        for streams in self.streams.values():
            copy_all(streams)

    def end_all(self, reason: tuple[str, str] | None) -> None:
        """End ranks first so that they can write their records, then the rest; note what had outlived them."""
        self.reap()  # what is dead by now was ended by somebody else
        self.ending = True
        self.launchers = self.launcher_tree()
        if reason:
            # Before the programs: by end.json a wrapper knows that its program did not leave by itself.
            aside(lambda: self.job.claim_end(*reason))
            self.job.open_gate()
            self.end_ranks(stacks=reason[0] == "timed_out")
        elif not self.look_at_processes().processes:
            return
        self.end_own()
        if reason:
            self.job.cancel()
        leftovers = processes_module.end_all(self.foreign, LEFTOVER_GRACE)
        processes_module.kill_all(lambda: self.look_at_processes().processes)
        self.reap()
        if leftovers:
            aside(lambda: self.job.write("leftovers.json", leftovers))

    def end_ranks(self, stacks: bool) -> None:
        """End all that is below the ranks' wrappers, which stay and write the records.

        With `stacks` each rank says first where it hangs. The launcher is left alone until the ranks of every node are
        done: it would kill those that still save.
        """
        deadline = time.monotonic() + 2 * processes_module.longest(self.order["grace"]) + OTHERS_SECONDS
        ending = Ending(lambda: self.look_at_processes().trees, self.order["grace"])
        if stacks:
            ending.ask_for_stacks()
        ending.run()
        self.wait_for_records()
        self.say("done")
        while self.has_others() and time.monotonic() < deadline:
            if ready([self.supervisor], LOOK_SECONDS):
                self.listen()

    def has_others(self) -> bool:
        """Whether the ranks of other nodes may still save: nobody has said yet that all are done."""
        if self.alone or self.leave_by is not None:
            return False
        return any(place["host"] != self.order["host"] for place in self.order["placement"])

    def wait_for_records(self) -> None:
        """Let wrappers write how their programs ended."""
        deadline = time.monotonic() + RECORD_SECONDS
        while self.look_at_processes().unwritten and time.monotonic() < deadline:
            time.sleep(0.01)

    def end_own(self) -> None:
        """Let wrappers and launcher leave; what stays is killed like the rest."""
        self.wait_for_records()
        processes_module.terminate(self.own())
        processes_module.wait_gone(self.own, 0.5)
        processes_module.kill_all(self.own)

    def look_at_processes(self) -> Snapshot:
        """Return the living processes of the job: those below this one, and ranks that Slurm's daemon started."""
        records = [record for rank in self.ranks for record in [self.job.record(rank)] if record]
        children = processes_module.by_parent()
        found = {process.pid: process for process in processes_module.descendants(os.getpid(), children)}
        if self.order["launcher"]["name"] in ELSEWHERE:
            marked = processes_module.marked(children)
            for top in [process for process, mark in marked if mark.job_dir == self.job.path]:
                for process in (top, *processes_module.descendants(top.pid, children)):
                    found.setdefault(process.pid, process)
        for pid in self.spared:
            found.pop(pid, None)
        programs = {record["wrapper_pid"]: record.get("pid") for record in records}
        trees = trees_below({pid: programs[pid] for pid in programs if pid in found}, children)
        return Snapshot(list(found.values()), records, trees, self.launchers | programs.keys())

    def own(self) -> list[Process]:
        return self.look_at_processes().own

    def foreign(self) -> list[Process]:
        return self.look_at_processes().foreign

    def launcher_tree(self) -> set[int]:
        """Return the pids of the launcher and of what it started (a shell before a daemon), ranks aside.

        An agent is known by name: it may be about to die after a launcher that is gone.
        """
        seen = self.look_at_processes()
        wrappers = {record["wrapper_pid"] for record in seen.records}
        if self.order["launcher"]["name"] in ELSEWHERE:
            below = {process.pid for tree in seen.trees.values() for process in tree.all}
            return {process.pid for process in seen.processes} - wrappers - below
        found = {self.job.launcher().get("pid", 0), *agents(self.order["private_tmp"])}
        for process in seen.processes:  # parents before children
            if process.parent in found and process.pid not in wrappers:
                found.add(process.pid)
        return found


def copy_all(streams: Collection[Stream]) -> None:
    """Copy what is in the pipes of a rank whose wrapper is gone."""
    for stream in streams:
        stream.copy_all()
