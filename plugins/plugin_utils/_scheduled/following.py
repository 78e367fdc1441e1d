# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Follows a job on nodes that a scheduler brings, by what our entry on each of them says: pods, or nodes of Slurm.

What is the scheduler's own is in pod_following.py and slurm_following.py. What ended a job is decided by codes, never
by a text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.remote_node import own_ranks_report
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import reasons
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import BadFrame
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import JobOrder, ranks_by_host
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import EndReason, Reason
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import End, NodeReport
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import protocol
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.frames import RANK_FILE
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.entry import launcher_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.framed_log import FromNode, LogReader

from .output_files import OutputFiles

SUSPECT_SECONDS = 3.0  # that a node may be on its way out before that counts: the log of the one to blame comes first
GRACE_SECONDS = 30  # beyond the time of programs, for the guard, the records and the output


class Doubt(NamedTuple):
    """Since when a node may be lost, and how many seconds of that are too many."""

    since: float
    patience: float = SUSPECT_SECONDS


@dataclass
class Seat:
    """One node of the plan while the job runs."""

    host: str
    reader: LogReader = field(default_factory=LogReader)
    placed: bool = False
    report: NodeReport | None = None
    suspected: dict[Reason, Doubt] = field(default_factory=dict)  # why it may be lost
    gone: bool = False  # nothing more comes


SeatType = TypeVar("SeatType", bound=Seat)


class Following(Generic[SeatType]):
    """One job, from its start to the end of its last node. `seats` by host, in the order of the plan."""

    unit = "node"  # what people call a node of the plan there
    output_option = ""  # the user's, for what comes home
    ended_there = "was ended"  # how an entry that got a signal of others ended

    def __init__(
        self,
        order: JobOrder,
        seats: Mapping[str, SeatType],
        run_dir: Path,
        start_timeout: float,
        show: Callable[[protocol.Line | protocol.Report], None],
        say: Callable[[str], None],
    ) -> None:
        self.order, self.seats, self.show, self.say = order, seats, show, say
        self.ranks = ranks_by_host(order["placement"])
        self.start_timeout = start_timeout
        self.output = OutputFiles(run_dir, self.output_option)
        self.started = time.time()
        self.began = time.monotonic()
        self.end: End | None = None
        self.deadline = 0.0  # for nodes to go, when the job is ended

    def read(self) -> None:
        """Read what all nodes sent, and wait a moment for it."""
        raise NotImplementedError

    def look(self) -> None:
        """Look at what the scheduler says, if it is time."""
        raise NotImplementedError

    def end_there(self) -> None:
        """Ask all nodes to end the job."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop reading."""
        raise NotImplementedError

    def finish(self) -> None:
        """Ask what is to be known of a job that is over."""

    def never_starts(self) -> tuple[Reason, str] | None:
        """Return why the job will never run, and the node that says so."""
        raise NotImplementedError

    def not_started(self, missing: list[str]) -> Reason:
        """Return that nodes did not start in time, and why."""
        raise NotImplementedError

    def run(self, reason_to_stop: Callable[[], Reason | None], insisted: Callable[[], bool]) -> None:
        """Follow the job until every node has reported its end or is gone."""
        try:
            while not self.over():
                self.read()
                self.look()
                asked = reason_to_stop()
                found = (asked, "") if asked else self.reason_to_end()
                if found:
                    self.end_job(*found)
                if insisted():
                    break
            else:
                self.finish()
        finally:
            self.close()
        if self.end is None and self.doubts():
            why, _doubt, host = self.doubts()[0]
            self.note_end(why, host)

    def over(self) -> bool:
        """Whether no node will send anything more."""
        if self.end and self.deadline and time.monotonic() > self.deadline:
            return True
        return all(seat.report or seat.gone for seat in self.seats.values())

    def take(self, seat: SeatType, data: bytes) -> bool:
        """Handle what a node sent; return whether it can be trusted. If not, nothing that it sends later counts."""
        try:
            missing = seat.reader.missing
            for frame in seat.reader.take(data):
                self.on_frame(seat, frame)
            if seat.reader.missing and not missing:
                seat.placed = True  # that may have been there: only a log of megabytes is rotated
                self.say(f"{seat.host}: its machine rotated a part of its log away: some of its output may be missing")
        except BadFrame as error:
            seat.gone = True
            self.end_job(reasons.node_lost(seat.host, f"its log cannot be trusted: {error}"), seat.host)
            return False
        return True

    def on_frame(self, seat: SeatType, frame: FromNode) -> None:
        """Handle one frame of a node, which speaks for its own ranks only. BadFrame, OSError."""
        own = self.ranks[seat.host]
        if frame["kind"] == "line" or frame["kind"] == "report":
            if frame["rank"] in own:
                self.show(frame)
            if frame["kind"] == "report" and frame["rank"] in own:
                self.output.note_metrics(frame)
        elif frame["kind"] == "here":
            if frame["number"] != list(self.seats).index(seat.host):
                raise BadFrame(f"it takes itself for {self.unit} {frame['number']}")
            self.say(f"{seat.host}: on {frame['node'] or 'an unknown machine'}, {frame['python']}, NIC {frame['nic']}")
        elif frame["kind"] == "placed":
            seat.placed = True
        elif frame["kind"] == "ending":
            self.on_ending(seat, Reason(frame["reason"], frame["detail"]))
        elif frame["kind"] == "output":
            found = RANK_FILE.match(frame["name"])
            is_own = bool(found and int(found.group(1)) in own)
            if is_own or frame["name"] == launcher_file(seat.host, self.order["head"]):
                self.output.take(frame)
        elif frame["kind"] == "over":
            seat.report = own_ranks_report(seat.host, frame["report"])

    def on_ending(self, seat: SeatType, reason: Reason) -> None:
        """Note why a node ends its part. A signal that nobody here sent came with the end of the node."""
        if reason.code == EndReason.CANCELLED:
            seat.suspected.setdefault(self.lost(seat.host, self.ended_there), Doubt(time.monotonic()))
        else:
            self.end_job(reason, seat.host)

    def lost(self, host: str, how: str) -> Reason:
        """Return that a node is gone."""
        return reasons.node_lost(host, f"its {self.unit} {how}")

    def reason_to_end(self) -> tuple[Reason, str] | None:
        """Return why the job must end now, and which node that is about (empty: several)."""
        if self.end:
            return None
        now = time.monotonic()
        found = self.never_starts()
        if found:
            return found
        for why, doubt, host in self.doubts():
            if now - doubt.since > doubt.patience:
                return why, host
        missing = self.missing()
        if missing and now - self.began > self.start_timeout:
            return self.not_started(missing), ""
        return None

    def missing(self) -> list[str]:
        """Return the nodes whose ranks have not all started."""
        return [host for host, seat in self.seats.items() if not (seat.placed or seat.report)]

    def doubts(self) -> list[tuple[Reason, Doubt, str]]:
        """Return why nodes may be lost, since when and which, the oldest first."""
        rows = [(why, doubt, host) for host, seat in self.seats.items() for why, doubt in seat.suspected.items()]
        return sorted(rows, key=lambda row: row[1].since)

    def end_job(self, reason: Reason, host: str = "") -> None:
        """End the job. The first reason stands."""
        if self.end is None:
            self.note_end(reason, host)
            self.deadline = time.monotonic() + (self.order["grace"] or 0) + 2 * GRACE_SECONDS
            self.end_there()

    def note_end(self, reason: Reason, host: str = "") -> None:
        """Note why the job ended."""
        self.end = {"reason": reason.code, "detail": reason.detail, "at": time.time(), "host": host}

    @property
    def out_of_memory(self) -> list[str]:
        """Return the nodes in which something was killed for want of memory, by what the scheduler said."""
        return []

    @property
    def reports(self) -> Mapping[str, NodeReport]:
        """Return the final reports of the nodes, by host."""
        return {host: seat.report for host, seat in self.seats.items() if seat.report}
