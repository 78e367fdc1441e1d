# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rounds of a job, seen from its head: torchrun's agents start the ranks again while it runs (restart_by=torchrun).

The agents only start ranks. Whether they do is decided here, by the rule for all jobs that are started again
(restart_rule.py): when a rank failed, or all have saved their work, the round is ended on all nodes, and its result is
kept. Then either the next round begins everywhere, or the job ends as it would have without rounds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..basics.bounded_write import write_in_thread
from ..stores.earlier_attempts import EARLIER_RESULT, LIST
from ..types import reasons
from ..types.reasons import OF_A_ROUND, Reason
from ..types.records import NodeReport, Note, Result
from ..types.restarts import Ended
from ..wire.protocol import EndRound, NextRound
from .restart_rule import FIRST_PAUSE, ended_of, goes_on, kept_out, not_without, pause_before_next
from .result import find_result, unfinished

if TYPE_CHECKING:
    from .head_job import HeadJob

ROUND_SECONDS = 120.0  # for the ranks of a round to start: the agents are there, and agree in some seconds


class Rounds:
    """The rounds of one job. Where none are wanted (`rounds` of its order), nothing ends a round, and all the job."""

    def __init__(self, job: HeadJob) -> None:
        self.job = job
        self.rule = job.order.get("rounds")
        self.ended: list[Ended] = []
        self.saved: set[str] = set()  # hosts of which ranks have saved their work, in this round
        self.closing: tuple[Reason, str] | None = None  # why the round is ending, and where that came from
        self.reports: dict[str, NodeReport] = {}  # on the round that is ending, by host
        self.found: list[Result | None] = []  # its result, when a thread has found it
        self.next_at: float | None = None  # when the next one begins, by the monotonic clock
        self.last: Result | None = None  # of the round before, until the ranks of this one have begun
        self.listed = False  # whether the round that runs, or is ending, is one of `ended`
        self.notes: list[Note] = []

    def close(self, reason: Reason, host: str) -> bool:
        """End the round; return False for what ends the job. `host`: where it happened; empty: on several nodes."""
        if self.closing and reason.code in OF_A_ROUND:
            return True  # what else fails meanwhile
        last_one = self.rule is None or len(self.ended) >= self.rule["most"]
        if last_one or self.job.ended or self.job.unplaced or reason.code not in OF_A_ROUND:
            return False
        self.closing, self.job.timeout_start = (reason, host), None
        write_in_thread(lambda: self.job.node_job.job.claim_end(*reason, host))
        self.job.send_to_all(EndRound(kind="end_round", reason=reason.code, detail=reason.detail))
        return True

    def note_done(self, host: str, saved: bool) -> bool:
        """Note that a node's ranks are done; return whether that is all that is to be done about it."""
        if self.rule is None or self.job.ended:
            return False
        if self.closing:
            return True
        self.saved |= {host} if saved else set()
        if self.saved and self.job.unfinished <= {host}:
            return self.close(reasons.all_done(self.saved), "")
        return False

    def take(self, report: NodeReport, host: str) -> None:
        """Take what a node tells of the round that is over, once; with the last one, look how it ended."""
        if not self.closing or self.job.ended or host in self.reports:
            return
        self.reports[host] = report
        if len(self.reports) > len(self.job.peers):
            self.job.node_job.rounds.do(self.find)  # a disk may hang, and the leases of the nodes go on

    def find(self) -> None:
        """In a thread: find the result of the round that is over."""
        try:
            self.found.append(self.result())
        except OSError:
            self.found.append(None)

    def decide(self, result: Result | None, reason: Reason, host: str) -> None:
        """Keep the result of the round, and have the next one begin, or end the job. No result: it cannot be read."""
        job = self.job
        if result is None:
            self.end_job(reason, host)
            return
        self.ended.append(ended_of(result["job_id"], result))
        self.listed = True
        rule = self.rule if self.rule and goes_on(self.ended, self.rule) else None
        kept = kept_out(self.ended) if rule else []
        if kept:
            self.notes.append(not_without(kept))
        if kept or not rule:
            self.end_job(reason, host)
            return
        self.keep_list()  # a head that dies leaves it
        write_in_thread(lambda: job.node_job.job.write(EARLIER_RESULT, result))
        count = len(self.ended)
        job.audience.send({"kind": "restarted", "state": result["state"], "restarts": count, "most": rule["most"]})
        self.last = result
        self.next_at = time.monotonic() + max(0.0, pause_before_next(self.ended) - FIRST_PAUSE)  # agents take as long

    def result(self) -> Result:
        """Return the result of the round that is over."""
        job = self.job
        others = {peer.name: self.reports[peer.name] for peer in job.peers}
        node = job.node_job
        seconds = time.monotonic() - job.started
        return find_result(node.job, node.order, node.staging, node.output.metrics, others, seconds)

    def end_job(self, reason: Reason, host: str) -> None:
        """End the job in place of the round."""
        self.job.unfinished = self.job.hosts()  # guards wait for each other at the end of a job
        self.job.end(reason, host)

    def keep_list(self) -> None:
        """Write the list of the rounds that are over."""
        write_in_thread(lambda: self.job.node_job.job.write(LIST, {"attempts": self.ended}))

    def tick(self) -> None:
        """Begin the next round if it is time. A node whose part of the job is over has no other one: the job ends."""
        gone = [peer.name for peer in self.job.peers if peer.over]
        gone += [self.job.order["host"]] if self.job.node_job.guard_gone else []
        if gone and self.closing and not self.job.ended:
            self.end_job(reasons.node_lost(gone[0], "its part of the job is over"), gone[0])
        if self.found and self.closing and not self.job.ended:
            self.decide(self.found.pop(), *self.closing)
        if self.next_at is None or self.job.ended or time.monotonic() < self.next_at:
            return
        job, last = self.job, self.last
        self.next_at = self.closing = None
        self.reports, self.saved = {}, set()
        if last is None:
            return
        job.unplaced, job.unfinished = job.hosts(), job.hosts()
        job.started = job.timeout_start = time.monotonic()
        job.hangs.hear()
        frame = NextRound(kind="next_round", restarts=len(self.ended), after=last["state"])
        for peer in job.peers:
            peer.send(frame)
        job.node_job.rounds.begin(frame)

    def begun(self) -> None:
        """Note that the ranks of a round have begun."""
        self.last, self.listed = None, False

    def conclude(self, result: Result, reason: Reason | None) -> Result:
        """Return the result of the job, and write the list of its rounds. `result`: of the last round.

        Where that never began it is that of the round before, with the `reason` for which the job was ended.
        """
        if not self.ended:
            return result
        if self.last and reason:  # not as its files tell: a node may be gone since, and its clock began anew
            result = unfinished(self.last, reason)
        elif not self.listed:
            self.ended.append(ended_of(result["job_id"], result))
        self.keep_list()
        return {**result, "notes": [*result["notes"], *self.notes]}
