# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rank wrapper: what makes a program see the same world under every launcher.

It runs once per rank, started by the launcher. It gives the program the variables of torchrun and of Open MPI, this
node's environment and its own output files, proves that the placement is the planned one, and leaves the rank record.
It copies what the program writes from pipes to the rank's files, byte for byte (see rank_output).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Mapping, cast

from ..basics.job_directory import JobDir, open_file
from ..processes.processes import (
    GRACE_SECONDS,
    become_subreaper,
    collect_children,
    descendants,
    end_all,
    grace_of,
    listen_for_children,
    read,
)
from ..software.launchers import AGENTS, LAUNCHERS, STARTED_BY_SLURMD, is_started_elsewhere
from ..types.reasons import EndReason, RankError
from .rank_output import CHUNK, Stream, open_streams
from .rank_rounds import EXIT_AGAIN, is_followed, wait_for_place
from .rank_variables import ELASTIC, IDENTITY, NODE, PLACE, PORT, RENDEZVOUS, RESTARTS, named

if TYPE_CHECKING:  # a rank must not pay for the types
    from ..types.orders import Order, Staging
    from ..types.records import RankRecord

TEARDOWN_SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)  # of which a process dies by itself
MARKS = ("TORCHFLEET_JOB_ID", "TORCHFLEET_JOB_DIR")
LOOK_SECONDS = 1.0  # between two checks whether the job still runs, while nothing happens
GATHER_SECONDS = 0.002  # to wait for more output after a little: copying each line by itself would cost more
RECORDS_SECONDS = 1.0  # for the records of other ranks here, when one came up in the wrong place
RECORDS_PAUSE = 0.05  # between two looks for them
EXIT_PLACEMENT = 77
EXIT_LOST = 74  # EX_IOERR of sysexits.h: the program succeeded, but part of its output is lost
FULL_BYTES = 2 << 20  # more than the ballast: it may have been dropped just before
HOOK = os.path.join(sys.path[0], "hook")  # in the directory of the entry script: our sitecustomize (see exit_note)
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def identify(order: Order, environ: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Return (rank, world size, local rank, local size). LookupError if the launcher did not put them there."""
    launcher = order["launcher"]["name"]
    names = LAUNCHERS[launcher].identity  # others may be inherited and wrong
    values = [environ.get(name, "") for name in names]
    if not all(value.isdigit() for value in values):
        raise LookupError(f"{launcher} gave this process no {', '.join(names)}")
    rank, size, local_rank, local_size = [*map(int, values), len(order["ranks"])][:4]
    return rank, size, local_rank, local_size


def rank_environment(order: Order, identity: tuple[int, int, int, int], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a program: the same names whatever the launcher was, the user's last."""
    variables = dict(inherited)
    variables.pop("TMPDIR", None)  # the launcher's private one; the program gets the node's own back
    if order["tmpdir"]:
        variables["TMPDIR"] = order["tmpdir"]
    places = (order["path_first"], inherited.get("PATH", os.defpath))  # the first is empty where there is no Python
    variables["PATH"] = os.pathsep.join(filter(None, places))
    values = place_of(order, identity)
    variables.update(named({**PLACE, **RENDEZVOUS}, values))
    if order.get("rounds"):  # each has a store of its own, at a port that its agents agreed on
        variables[PORT] = inherited.get(PORT, variables[PORT])
    agents = LAUNCHERS[order["launcher"]["name"]].started_by == AGENTS  # which set theirs, but count from 0 each time
    variables.update(named({RESTARTS: ELASTIC[RESTARTS]} if agents else ELASTIC, values))
    variables[NODE] = variables.get("GROUP_RANK", str(values["node"]))  # agents count nodes in an order of their own
    variables.update(order["environment"])
    return variables


def place_of(order: Order, identity: tuple[int, int, int, int]) -> dict[str, object]:
    """Return what the tables of rank_variables name."""
    hosts = list(dict.fromkeys(place["host"] for place in order["placement"]))
    return {
        **dict(zip(IDENTITY, identity)),
        "master_addr": order["master_addr"],
        "master_port": order["master_port"],
        "node": hosts.index(order["host"]),
        "nodes": len(hosts),
        "role": "default",
        "job_id": order["job_id"],
        "restarts": order["restarts"],
        "max_restarts": 0,
    }


def misplaced(order: Order, identity: tuple[int, int, int, int]) -> str:
    """Return how this rank's place differs from the plan, or an empty string."""
    rank, size, local_rank, _local_size = identity
    if size != order["world_size"]:
        return f"world size is {size}, planned {order['world_size']}"
    planned = order["placement"][rank]
    if (planned["host"], planned["local_rank"]) == (order["host"], local_rank):
        return ""
    there = f"{planned['host']} as local rank {planned['local_rank']}"
    return f"the rank came up on {order['host']} as local rank {local_rank}, planned: {there}"


class RankWrapper:
    """Runs one rank's program and writes its record."""

    def __init__(self, job: JobDir, order: Order, identity: tuple[int, int, int, int]) -> None:
        self.job, self.order, self.identity = job, order, identity
        self.program = 0
        self.end_requested = False
        self.resume: dict[str, str] = {}  # the checkpoint to go on from, as a variable
        self.lost = ""  # why output of the program could not be written
        self.patience = 0.0  # until when a program may stay whose output is lost, by time.monotonic()
        self.poll = select.poll()
        self.wakeup = -1
        self.streams: dict[int, Stream] = {}  # by the descriptor of the pipe
        rank, _size, local_rank, _local_size = identity
        self.record: RankRecord = {
            "rank": rank,
            "local_rank": local_rank,
            "host": order["host"],
            "wrapper_pid": os.getpid(),
            "cpus": sorted(os.sched_getaffinity(0)),
            "started": time.time(),
            "started_tick": time.monotonic(),
        }

    def save(self) -> None:
        self.job.write(os.path.join("ranks", str(self.record["rank"]), "record.json"), self.record)
        self.job.wake()

    def run(self) -> int:
        if self.has_rounds:
            order = wait_for_place(self.job, self.identity[0])
            if order is None:
                return EXIT_AGAIN
            self.order, self.record["started"], self.record["started_tick"] = order, time.time(), time.monotonic()
        wrong = misplaced(self.order, self.identity) or ("" if self.has_rounds else self.started_before())
        if wrong:
            return self.refuse("placement: " + wrong)
        for number in FORWARDED:
            signal.signal(number, self.forward)
        self.wakeup = listen_for_children()
        self.poll.register(self.wakeup, select.POLLIN)
        become_subreaper()  # what a shell script started stays below this process when the shell is gone
        self.streams = {stream.pipe: stream for stream in open_streams(self.job, self.record["rank"])}
        self.resume = self.checkpoint()  # before the record: no program runs yet, so all ranks here find the same
        self.save()
        if not self.may_begin():
            return self.close(signal.SIGTERM)
        self.program = os.fork()
        if self.program == 0:
            self.become_program()
        self.record["pid"] = self.program
        self.save()
        return self.close(self.wait())

    @property
    def has_rounds(self) -> bool:
        """Whether torchrun's agents start ranks again while the job runs."""
        return self.order.get("rounds") is not None  # an earlier version did not know them

    def started_before(self) -> str:
        """Return what is wrong if another process is this rank already: both would write one record."""
        try:
            os.close(os.open(self.job.rank(self.record["rank"], "taken"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return f"rank {self.record['rank']} was started twice"
        except OSError:  # the disk is full: the record, which is written next, makes room
            pass
        return ""

    def may_begin(self) -> bool:
        """Wait until every rank is in its place: no user code runs before. False if the end is requested."""
        gate = os.open(self.job.at("gate"), os.O_RDONLY | os.O_NONBLOCK)
        self.poll.register(gate, 0)  # POLLHUP comes always
        try:
            while not os.path.exists(self.job.at("begin.json")):
                if self.end_requested or self.job.end() or not self.job.running():
                    return False
                self.pause(LOOK_SECONDS)
        finally:
            self.poll.unregister(gate)
            os.close(gate)
        return not self.end_requested

    def pause(self, seconds: float) -> None:
        """Copy what the program writes until there is nothing more, a signal comes, or the time is over."""
        ready = [descriptor for descriptor, _event in self.poll.poll(seconds * 1000)]
        if self.wakeup in ready:
            os.read(self.wakeup, CHUNK)
        copied = [(stream, stream.copy()) for descriptor, stream in self.streams.items() if descriptor in ready]
        for stream, count in copied:
            if count < 0:
                self.poll.unregister(stream.pipe)
        if copied and all(count < CHUNK // 4 for _stream, count in copied):
            time.sleep(GATHER_SECONDS)
        if not self.lost and self.program:
            self.lost = next((stream.error for stream in self.streams.values() if stream.error), "")
            if self.lost:  # as a full disk ends who writes to it
                self.ask_to_end()
        elif self.lost and self.program and time.monotonic() > self.patience:
            os.kill(self.program, signal.SIGKILL)

    def ask_to_end(self) -> None:
        """Ask the program to end; who ignores that is killed when its time to save is over."""
        process = read(self.program)
        grace = grace_of(process, self.order["grace"]) if process else 0.0
        self.patience = time.monotonic() + grace
        os.kill(self.program, signal.SIGTERM)

    def refuse(self, wrong: str) -> int:
        """End the job before any user code ran here: with a rank in the wrong place every result would be wrong."""
        first = self.job.record(self.record["rank"]) is None
        if first:
            self.save()
        self.wait_for_other_records()
        self.job.claim_end(EndReason.RANK_FAILED, wrong)
        if first:
            return self.close(EXIT_PLACEMENT << 8, (RankError.MISPLACED, wrong))
        self.job.wake()  # another process is this rank already, and keeps its record
        self.wait_for_end()
        return EXIT_PLACEMENT

    def wait_for_other_records(self) -> None:
        """Wait a moment for the records of the other ranks here, so that all places can be shown."""
        deadline = time.monotonic() + RECORDS_SECONDS
        ranks = [place["rank"] for place in self.order["placement"]]
        while time.monotonic() < deadline and not all(self.job.record(rank) for rank in ranks):
            time.sleep(RECORDS_PAUSE)

    def forward(self, number: int, _frame: object) -> None:
        self.end_requested = True
        if self.program:
            agents = LAUNCHERS[self.order["launcher"]["name"]].started_by == AGENTS
            if agents and number == signal.SIGTERM:  # of its agent: the guard asks programs, not wrappers
                self.record["stopped"] = True
            try:
                os.kill(self.program, number)
            except ProcessLookupError:
                pass

    def wait(self) -> int:
        """Wait for the program without reaping it, so that its pid stays its own until the record says it ended."""
        for stream in self.streams.values():
            self.poll.register(stream.pipe, select.POLLIN)
            stream.write(b"")  # the file is there also if nothing comes
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is None:
                self.pause(LOOK_SECONDS)
            elif ended.si_pid == self.program:
                self.note_end()
                program, self.program = self.program, 0
                _pid, status, used = os.wait4(program, 0)
                self.record["cpu_seconds"] = round(used.ru_utime + used.ru_stime, 3)
                self.record["peak_bytes"] = used.ru_maxrss << 10
                return status
            else:
                os.waitpid(ended.si_pid, 0)  # an orphan that the program left

    def note_end(self) -> None:
        """Note when the program ended, also by the monotonic clock: setting a clock must not change the blame."""
        self.record["ended"], self.record["ended_tick"] = time.time(), time.monotonic()

    def become_program(self) -> None:
        """In the child: put output, environment and directory in place and turn into the program. Never returns."""
        try:
            signal.set_wakeup_fd(-1)
            for number in FORWARDED:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, a shell's child would not
            rank = self.identity[0]
            for descriptor, stream in zip((1, 2), self.streams.values()):
                stream.become(descriptor)
            variables = {**self.time_left(), **self.resume, **rank_environment(self.order, self.identity, os.environ)}
            variables.update(self.secrets())
            variables["TORCHFLEET_EXIT_NOTE"] = f"{os.getpid()}:{self.job.rank(rank, 'exit')}"
            own = variables.get("PYTHONPATH")
            variables["PYTHONPATH"] = HOOK + (os.pathsep + own if own else "")
            start_program(self.order, variables)
        except BaseException as error:  # whatever happens here must not run on as a second wrapper
            os.write(2, f"torchfleet: cannot start {self.order['argv'][0]}: {error}\n".encode())
        os._exit(127)

    def time_left(self) -> dict[str, str]:
        """Return the seconds until job_timeout, as a variable, if there is one.

        Under Slurm they count from the first ranks, else from when the job was staged, as the guard counts.
        """
        timeout, staging = self.order["job_timeout"], cast("Staging", self.job.read("staging.json"))
        if not timeout or not staging:
            return {}
        queued = self.order["launcher"]["name"] in STARTED_BY_SLURMD
        gone = 0.0 if queued else max(0.0, time.time() - staging["started"])
        return {"TORCHFLEET_SECONDS_LEFT": f"{max(0.0, timeout - gone):.0f}"}

    def checkpoint(self) -> dict[str, str]:
        """Return the newest complete checkpoint as a variable, if the job has a directory for them."""
        if not self.order["checkpoint_dir"]:
            return {}
        from .checkpoints import newest  # late, as most ranks have none

        return {"TORCHFLEET_RESUME": newest(self.order["checkpoint_dir"])}

    def secrets(self) -> dict[str, str]:
        """Return the secret variables. The import is late: most ranks have none. OSError."""
        if not self.order["secret_names"]:
            return {}
        from .secrets import take

        return take(self.job.path, self.order["secret_names"])

    def close(self, status: int, error: tuple[RankError, str] = (RankError.NONE, "")) -> int:
        """Write how the rank ended and return the exit status for the launcher. `error`: its code and sentence."""
        self.copy_all()
        lost = next((stream.error for stream in self.streams.values() if stream.error), "")
        code, error_text = error if any(error) else (RankError.OUTPUT_LOST if lost else RankError.NONE, lost)
        rc = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        rc = EXIT_LOST if code and rc == 0 else rc
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        finished = number in TEARDOWN_SIGNALS and self.finished()
        well = (rc == 0 or finished) and not self.job.end()
        if "ended" not in self.record:
            self.note_end()
        if well and is_started_elsewhere(self.order):  # no guard is above the leftovers
            grace = self.order["grace"] or GRACE_SECONDS
            self.record["leftovers"] = end_all(lambda: descendants(os.getpid()), grace)
        if rc and not code and disk_is_full(self.job.path):
            code, error_text = RankError.DISK_FULL, f"exit status {rc}, no space left in {self.job.path}"
        self.record["rc"], self.record["signal"], self.record["finished"] = rc, number, finished
        self.record["error_code"], self.record["error"] = code, error_text
        self.save()
        if not well or self.has_rounds:  # an agent all of whose ranks succeeded would leave the others
            self.wait_for_end()
        self.copy_all()
        if self.has_rounds and is_followed(self.job, self.order):
            return EXIT_AGAIN
        return 0 if finished else rc

    def copy_all(self) -> None:
        """Copy what is in the pipes now."""
        for stream in self.streams.values():
            stream.copy_all()

    def finished(self) -> bool:
        """Whether the program had left with status 0 before it died of a signal (see exit_note)."""
        try:
            with open(open_file(self.job.rank(self.record["rank"], "exit"))) as note:
                return note.read().strip() == "0"
        except OSError:
            return False

    def wait_for_end(self) -> None:
        """Do not exit before the end is requested: the launcher would kill the other ranks before they could save.

        So the guard ends a job in the same way under every launcher, blames the right rank, and finds leftovers.
        """
        while not self.end_requested and self.job.running():
            self.pause(LOOK_SECONDS)
            collect_children()


def disk_is_full(path: str) -> bool:
    """Whether a program that failed just now could not have written its output, error messages included."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize < FULL_BYTES


def start_program(order: Order, variables: dict[str, str]) -> None:
    """Turn this process into the program of the order."""
    os.chdir(order["cwd"])
    os.execvpe(order["argv"][0], order["argv"], variables)


def main(job_dir: str) -> int:
    """Run the job's program as the rank the launcher made this process."""
    job = JobDir(job_dir)
    order = cast("Order", job.read("order.json"))
    if order is None:
        sys.stderr.write(f"torchfleet: {job.path} holds no job: it was cleaned, or never staged on this node\n")
        return 1
    identity = identify(order, os.environ)
    if not job.running():  # command.txt typed again after the run: just the program, no job
        variables = rank_environment(order, identity, os.environ)
        start_program(order, {name: value for name, value in variables.items() if name not in MARKS})
    return RankWrapper(job, order, identity).run()
