# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Follows a job on nodes of Slurm: what srun brings of our entries on all of them, each line with its node's number.

What ended a job is decided by codes of the entries, the exit of srun and states of squeue, never by a text.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import reasons
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import printable
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import JobOrder
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import Reason
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import protocol
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import BEAT_SECONDS, ready
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.entry import launcher_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.framed_log import LINE_BYTES
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.slurm_entry import BEAT, END

from .following import Doubt, Following, Seat
from .slurm import NO_PROGRAM, NOT_REACHED, TEXT, Row, Slurm, SlurmError, error_line

READ_SECONDS = 0.2
FIRST_SECONDS, LOOK_SECONDS = 2.0, 5.0  # until the first look into the queue, and between it and the second one
LOOK_MOST = 60.0  # between two, which double: each is a login to the head, and sites ask not to ask squeue often
STARTED_SECONDS = 600.0  # for the ranks of all nodes to start, from the first word of an entry on
TELL_SECONDS = 30.0  # between two lines on that
SILENT_BEATS = 10 * BEAT_SECONDS  # beyond the lease: an entry says every fifth beat that it lives
BLOCK = 1 << 20
LABELLED = re.compile(rb" *([0-9]{1,6}): (.*)\Z", re.DOTALL)  # srun --label
SAID_BYTES = 1 << 16  # of what srun itself says
SAID_FILE = "srun.out"
# Why a job waits that will never run as it was asked for (slurm.h, job_state_reason).
NODES, RIGHTS = "sinfo shows the nodes that there are", "sacctmgr show associations user=$USER shows yours"
HOPELESS = {
    **dict.fromkeys(
        ("PartitionNodeLimit", "PartitionConfig"),
        f"the partition does not have so many nodes, or they are smaller: {NODES}",
    ),
    "PartitionTimeLimit": "the partition gives less time: sinfo --format='%P %l'",
    "BadConstraints": f"no node has what the job asks for: {NODES}",
    **dict.fromkeys(("AssocMaxNodesPerJobLimit", "QOSMaxNodePerJobLimit"), f"you may not use so many nodes: {RIGHTS}"),
    **dict.fromkeys(("AccountNotAllowed", "InvalidAccount"), f"the account may not be used there: {RIGHTS}"),
    **dict.fromkeys(("QOSNotAllowed", "InvalidQOS"), f"the QOS may not be used there: {RIGHTS}"),
    "DependencyNeverSatisfied": "the job that it is to wait for has failed",
}


class SlurmFollowing(Following[Seat]):
    """One job on nodes of Slurm, from its submission to the end of its last node."""

    output_option = "slurm_output"
    has_choice = False  # of partitions: what is hopeless in one may run in another
    ended_there = "was taken back: Slurm cancelled or ended its job"

    def __init__(
        self,
        slurm: Slurm,
        name: str,
        argv: Sequence[str],
        parcel: bytes,
        order: JobOrder,
        run_dir: Path,
        start_timeout: float,
        show: Callable[[protocol.Line | protocol.Report], None],
        say: Callable[[str], None],
    ) -> None:
        """`argv` starts srun on the head; `parcel` is what each entry reads first. OSError if it cannot be started."""
        hosts = dict.fromkeys(place["host"] for place in order["placement"])
        super().__init__(order, {host: Seat(host) for host in hosts}, run_dir, start_timeout, show, say)
        self.slurm, self.name = slurm, name
        self.heard = dict.fromkeys(hosts, 0.0)  # when a node said something last, by the monotonic clock
        self.waiting, self.last_beat = bytearray(parcel), time.monotonic()
        self.line, self.said = bytearray(), bytearray()
        self.row: Row | None = None  # as it was in the queue last
        self.next_look, self.next_tell = time.monotonic() + FIRST_SECONDS, time.monotonic() + TELL_SECONDS
        self.pause = LOOK_SECONDS
        self.told = ""  # why the job waits, as people were told
        pipe = subprocess.PIPE
        # A session of its own: Ctrl-C is for us, who end the job with its records.
        self.srun = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        self.input, self.output_of, self.errors = (
            stream.fileno() if stream else -1 for stream in (self.srun.stdin, self.srun.stdout, self.srun.stderr)
        )
        os.set_blocking(self.input, False)
        self.open = {self.output_of, self.errors}

    @property
    def started_anywhere(self) -> bool:
        """Whether an entry has said something."""
        return any(self.heard.values())

    def read(self) -> None:
        """Read what srun brings, and send what is to be sent."""
        busy = bool(self.waiting) and bool(ready([self.input], READ_SECONDS, select.POLLOUT))
        self.send()
        found = ready(self.open, 0.0 if busy else READ_SECONDS)
        if not self.open:
            time.sleep(READ_SECONDS)
        for descriptor in found:
            data = os.read(descriptor, BLOCK)
            if not data:
                self.open.discard(descriptor)
            elif descriptor == self.errors:
                self.said = (self.said + data)[-SAID_BYTES:]
            else:
                self.take_lines(data)
        if not self.open and self.srun.poll() is not None:
            self.note_srun_ended()

    def send(self) -> None:
        """Write what srun takes at once. A sign of life waits for nothing: it would be as good later."""
        now = time.monotonic()
        if now - self.last_beat > BEAT_SECONDS and not self.waiting:
            self.waiting += BEAT
            self.last_beat = now
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self.waiting:
                del self.waiting[: os.write(self.input, self.waiting)]

    def take_lines(self, data: bytes) -> None:
        """Give each line to the node whose label it has."""
        self.line += data
        *lines, rest = self.line.split(b"\n")
        self.line = bytearray(rest[: 2 * LINE_BYTES])
        hosts = list(self.seats)
        for line in lines:
            found = LABELLED.match(line)
            if found and int(found.group(1)) < len(hosts):
                host = hosts[int(found.group(1))]
                seat = self.seats[host]
                known = seat.reader.number
                if not seat.gone:
                    self.take(seat, found.group(2) + b"\n")
                if seat.reader.number != known:  # what a site's prolog prints there is none of ours
                    self.note_life(host)

    def note_life(self, host: str) -> None:
        """Note that a node's entry said something. With the first of all the time in the queue is over."""
        if not self.started_anywhere:
            self.began, self.start_timeout = time.monotonic(), STARTED_SECONDS
        self.heard[host] = time.monotonic()

    def note_srun_ended(self) -> None:
        """Note that nothing more comes."""
        for host, seat in self.seats.items():
            if not seat.report and not seat.gone:
                seat.gone = True
                if self.started_anywhere:
                    how = f"srun ended with status {self.srun.returncode}{after(self.last_error())}"
                    seat.suspected.setdefault(reasons.node_lost(host, how), Doubt(time.monotonic()))
        if not self.started_anywhere and self.end is None:
            self.end_job(reasons.never_started(self.refusal()))

    def refusal(self) -> str:
        """Return why srun started nothing, as srun says, or as the program that starts srun says."""
        of_nodes = self.errors_of(list(self.seats))
        said, status = error_line(of_nodes or bytes(self.said)), self.srun.returncode
        if status == NO_PROGRAM and not of_nodes:
            return self.slurm.missing("srun", said).told
        if status == NOT_REACHED and self.slurm.ssh:
            return self.slurm.not_reached(said).told
        return said

    def errors_of(self, hosts: Sequence[str]) -> bytes:
        """Return the lines that some nodes wrote to their standard error."""
        names, found = list(self.seats), []
        for line in bytes(self.said).split(b"\n"):
            own = LABELLED.match(line)
            if own and own.group(2).strip() and int(own.group(1)) < len(names) and names[int(own.group(1))] in hosts:
                found.append(own.group(2))
        return b"\n".join(found)

    def last_error(self) -> str:
        """Return the last line that srun said."""
        lines = [printable(line).strip()[:TEXT] for line in self.said.decode("utf-8", "replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")

    def look(self) -> None:
        """Look into the queue while nothing has started, and tell people now and then why."""
        now = time.monotonic()
        if self.started_anywhere or self.end or now < self.next_look:
            return
        self.next_look, self.pause = now + self.pause, min(2 * self.pause, LOOK_MOST)
        with contextlib.suppress(SlurmError):  # srun is still there, or has ended: that counts
            rows = self.slurm.jobs(f"--name={self.name}")
            self.row = rows[0] if rows else None
        why = self.why()
        if why and why != self.told and now > self.next_tell:
            self.say(f"job {self.order['job_id']} waits in Slurm's queue: {why}")
            self.told, self.next_tell = why, now + TELL_SECONDS

    def why(self) -> str:
        """Return why the job waits, in squeue's words for it."""
        return f"{self.row.state}, {self.row.told}" if self.row and self.row.told else ""

    def never_starts(self) -> tuple[Reason, str] | None:
        """Return why the job will never run; note nodes that are silent."""
        now = time.monotonic()
        silence = self.order["lease"] + SILENT_BEATS
        for host, seat in self.seats.items():
            if self.heard[host] and not (seat.report or seat.gone) and now - self.heard[host] > silence:
                seat.gone = True  # its end is not waited for
                return reasons.silent(f"node {host}", silence), host
        hopeless = self.row and self.row.reason in HOPELESS and not self.has_choice
        if self.row and hopeless and not self.started_anywhere:
            return reasons.never_started(f"Slurm will not start it: {self.row.reason}: {HOPELESS[self.row.reason]}"), ""
        return None

    def not_started(self, missing: list[str]) -> Reason:
        """Return that nodes did not start in time, and why: as squeue says, or what they said while others started."""
        said = self.errors_of(missing)
        why = "" if self.started_anywhere else self.why()
        why = why or (error_line(said) if said else "")
        return reasons.nodes_not_started(len(missing), len(self.seats), self.start_timeout, why or self.last_error())

    def end_there(self) -> None:
        """Ask the entries to end the job: ranks have their time, and what they wrote comes home."""
        if self.started_anywhere:
            self.waiting += END
            self.send()
        else:
            self.cancel()
            self.deadline = time.monotonic()  # nothing will come

    def cancel(self) -> None:
        """Cancel the job in Slurm. take_away() tries again, and says what is left."""
        with contextlib.suppress(SlurmError):
            self.slurm.cancel([row.number for row in self.slurm.jobs(f"--name={self.name}")])

    def close(self) -> None:
        """Close the pipe to srun, and drop what still waits to be sent. What srun says last is kept."""
        streams = [stream for stream in (self.srun.stdin, self.srun.stdout, self.srun.stderr) if stream]
        until = time.monotonic() + 2 * BEAT_SECONDS
        with contextlib.suppress(OSError):
            streams[0].close()
        while self.open and time.monotonic() < until:
            self.read_errors(ready(self.open, READ_SECONDS))
        for stream in streams:
            with contextlib.suppress(OSError):
                stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.srun.wait(max(0.0, until - time.monotonic()))

    def read_errors(self, found: Iterable[int]) -> None:
        """Read what has come; only what srun says counts."""
        for descriptor in found:
            data = os.read(descriptor, BLOCK)
            if not data:
                self.open.discard(descriptor)
            elif descriptor == self.errors:
                self.said = (self.said + data)[-SAID_BYTES:]

    def keep_said(self, run_dir: Path) -> None:
        """Write what srun said where people look for what a launcher said, or beside the first node's own.

        Without what a terminal would obey.
        """
        lines = [printable(line) for line in self.said.decode("utf-8", "replace").splitlines()]
        own = launcher_file(self.order["head"], self.order["head"])
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with contextlib.suppress(FileExistsError):
            if lines:
                name = SAID_FILE if os.path.lexists(run_dir / own) else own
                with open(os.open(run_dir / name, flags, 0o600), "w") as file:
                    file.write("\n".join(lines) + "\n")


def after(text: str) -> str:
    """Return a text that follows another one."""
    return f": {text}" if text else ""
