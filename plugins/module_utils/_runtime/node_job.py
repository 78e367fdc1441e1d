# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One node's share of a job: staging, a guard above its processes, its ranks' output, an end without leftovers.

Every node of a job runs this under its supervisor, the head too. Supervisor and guard are twins by fork.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import threading
import time
from typing import Any, Collection, Protocol

from . import processes
from .alone import ONE_NODE, check_alone, turn
from .channel import BEAT_SECONDS, ready
from .frames import ROWS
from .guard import STOPPED_SECONDS, Guard
from .job_directory import JobDir, remove
from .metrics import Metrics
from .output_follower import Following
from .output_lines import last_line
from .result import (
    leftovers_of,
    records_of,
    telling_line,
    was_told,
)
from .secrets import Keeper

Json = Any
END_SECONDS = 10.0  # beyond the time of programs and that of what they left, for a guard that was told to end the job
RANK_PROGRAM = "torchfleet-rank"
AGENT_PROGRAM = "torchfleet-agent"
PLACE_BYTES = 40  # of $TMPDIR: Open MPI makes directories below ours before its sockets


class Shipment(Protocol):
    """What was shipped to this node for the job."""

    def make_tree(self, job: JobDir) -> None: ...


class NodeJob:
    """One node's share of one job."""

    def __init__(self, order: dict[str, Json], shipment: Shipment | None = None) -> None:
        """Stage the job on this node, with the tree of what was shipped. OSError, ValueError leave nothing behind.

        NotAlone if this job or another is to have the node alone.
        """
        self.job = JobDir(os.path.join(order["home"], "jobs", order["job_id"]))
        self.order = order
        self.secrets = order.pop("secrets", {})  # in memory only
        order["secret_names"] = sorted(self.secrets)
        self.keeper: Keeper | None = None
        with turn(order["home"], ONE_NODE, order["exclusive"]):
            check_alone(order)
            self.stage(shipment)
        self.guard, self.mouth, self.ear = 0, -1, -1
        self.heard = b""
        self.gone = False
        self.status = 0  # of the guard when it is gone
        self.burial: threading.Thread | None = None
        self.spared: Collection[int] = ()  # children of the supervisor that are no part of the job: ways to other nodes
        self.why, self.patience = "", 0.0
        self.stopped: float | None = None
        self.beaten = 0.0  # when the guard was told last that this process is there
        self.final: dict[str, Json] | None = None  # the report, when the job is over here

    def stage(self, shipment: Shipment | None) -> None:
        """Make the job directory with all that the launcher and the ranks read."""
        self.job.create([place["rank"] for place in self.order["placement"]])
        try:
            self.lock = self.job.lock()
            self.order["private_tmp"] = private_directory()
            for name, text in self.order.pop("files", {}).items():
                write_text(self.job.at(name), text, 0o666)
            self.write_programs()
            self.keeper = Keeper(self.job.path, self.secrets) if self.secrets else None
            if shipment:
                shipment.make_tree(self.job)
            self.job.write("order.json", self.order)
            self.job.write("supervisor.json", processes.identity(os.getpid()))
            self.output = Following(self.job, self.order)
        except BaseException:
            self.take_back()
            raise

    def write_programs(self) -> None:
        """Write what launchers start by name: one command line must fit nodes whose homes and Pythons differ."""
        os.mkdir(self.job.at("bin"), 0o700)
        for name, words in self.order["programs"].items():
            write_text(self.job.at("bin", name), f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', 0o700)

    def take_back(self) -> None:
        """Undo the staging."""
        if self.keeper:
            self.keeper.close()
        remove(self.order.get("private_tmp", ""))
        remove(self.job.path)

    def start(self) -> None:
        """Fork the guard."""
        processes.become_subreaper()
        heard, self.mouth = os.pipe()
        self.ear, says = os.pipe()
        self.guard = os.fork()
        if self.guard:
            os.close(heard)
            os.close(says)
            if self.keeper:
                self.keeper.start()
            self.output.start()
            return
        status = 1
        try:
            close_all_but({0, 1, 2, heard, says, self.lock})
            self.be_guard(heard, says)
            status = 0
        except BaseException:  # a fork must not run on as a second supervisor
            import traceback

            with open(self.job.at("launcher.out"), "a") as file:
                traceback.print_exc(file=file)
        os._exit(status)

    def be_guard(self, heard: int, says: int) -> None:
        """In the guard process: run the job on this node to its end.

        It lets go of 0, 1 and 2, which lead to the other side: an sshd waits for all who hold them.
        """
        with open(os.devnull, "r+b") as nothing:
            for descriptor in (0, 1, 2):
                os.dup2(nothing.fileno(), descriptor)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        above = os.getppid()
        processes.become_subreaper()
        Guard(self.job, self.order, heard, says).run()
        if os.getppid() != above:
            remove(self.order["private_tmp"])

    def tell(self, kind: str, **fields: str) -> None:
        """Tell the guard something; if it died in this very moment, that is noticed elsewhere."""
        try:
            os.write(self.mouth, json.dumps({"kind": kind, **fields}).encode() + b"\n")
        except BrokenPipeError:
            pass

    def end(self, reason: str, detail: str) -> None:
        """Have the guard end the job on this node. The first reason stands."""
        if not self.why:
            self.why = f"{reason}\t{detail}"
            self.patience = time.monotonic() + 2 * processes.longest(self.order["grace"]) + END_SECONDS
            self.tell("end", reason=reason, detail=detail)

    def beat(self) -> None:
        """Tell the guard that this process is there and can end the job. One that does not listen is not waited for."""
        now = time.monotonic()
        if not self.gone and now - self.beaten > BEAT_SECONDS and ready([self.mouth], 0, select.POLLOUT):
            self.beaten = now
            self.tell("beat")

    def words(self) -> list[dict[str, Json]]:
        """Return what the guard said since the last time; call it when `ear` is readable. Notes when it is gone."""
        chunk = os.read(self.ear, 65536)
        if not chunk:
            self.gone, self.status = True, os.waitpid(self.guard, 0)[1]
            self.burial = threading.Thread(target=self.wind_up)
            try:
                self.burial.start()
            except RuntimeError:  # the job has all processes that its user or container may have
                self.wind_up()
        *lines, self.heard = (self.heard + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def check_guard(self) -> None:
        """Kill a guard that is stopped, or stuck after it was told to end: burying it does its work."""
        if self.gone:
            return
        self.stopped = processes.stopped_for(self.guard, self.stopped)
        late = self.why and time.monotonic() > self.patience
        if late or (self.stopped is not None and time.monotonic() - self.stopped > STOPPED_SECONDS):
            os.kill(self.guard, signal.SIGKILL)

    @property
    def over(self) -> bool:
        """Whether the guard is gone, nothing of the job is left on this node, and all that it wrote was read."""
        return self.burial is not None and not self.burial.is_alive()

    def wind_up(self) -> None:
        """Do all that comes after the guard, in a thread: it may take `grace` or a slow disk, and the leases go on."""
        try:
            self.bury()
        finally:
            if self.keeper:
                self.keeper.close()
            self.output.finish()
        if self.order["peers"] is None:
            self.final = node_report(self.job, self.order, self.output.metrics)
            self.job.drop_ballast()

    def bury(self) -> None:
        """If the guard did not leave by itself, do its work; then look for what escaped both."""
        if self.status != 0:
            reason, _tab, detail = (self.why or "guard_died\tthe guard died").partition("\t")
            Guard(self.job, self.order, -1, -1, self.spared).finish((reason, detail))

        def escaped() -> list[processes.Process]:
            return [process for process, mark in processes.marked() if mark.job_dir == self.job.path]

        found = processes.end_all(escaped, self.order["grace"] or processes.GRACE_SECONDS)
        if found:
            self.job.write("leftovers.json", self.job.leftovers() + found)
        remove(self.order["private_tmp"])

    def report(self) -> dict[str, Json]:
        """Return the report of this node for the head, once the job is over here."""
        return self.final or node_report(self.job, self.order, self.output.metrics)


def node_report(job: JobDir, order: dict[str, Json], metrics: Metrics) -> dict[str, Json]:
    """Return the report of a node: records and last lines by rank, leftovers, launcher, metrics."""
    ranks = [place["rank"] for place in order["placement"] if place["host"] == order["host"]]
    records = records_of(job, order)
    end = job.end()
    for record in records.values():  # by this node's own clock
        record["told"] = was_told(record, end)
    launcher = job.launcher()
    return {
        "records": {str(rank): record for rank, record in records.items()},
        "lines": {str(rank): telling_line(job, rank, records.get(rank)) for rank in ranks},
        "leftovers": leftovers_of(job, records)[:ROWS],
        "launcher": {**launcher, "last_line": last_line(job.at("launcher.out"))},
        "metrics": [[name, metrics.rank_of[name], value] for name, value in metrics.last.items()][:ROWS],
    }


def write_text(path: str, text: str, mode: int) -> None:
    """Write a file, in UTF-8 whatever the locale of this node is. Bytes of names that are none stay as they are."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, mode)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


def close_all_but(kept: Collection[int]) -> None:
    """Close what a fork inherited: a twin that held the other's channels would hide its death from the peers."""
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
