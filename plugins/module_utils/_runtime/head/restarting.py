# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job on its head: run once, or if it is detached started again by the head, on the same nodes, as the rule says.

All attempts are one job, with one name and one directory, which looks like that of a job that runs: it keeps its nodes
until it is over, and none of its queue is asked again.
"""

from __future__ import annotations

import functools
import time
from typing import Callable, Sequence

from ..basics.job_directory import remove
from ..node_job.node_job import private_directory
from ..stores.earlier_attempts import EARLIER_RESULT, LIST
from ..types import reasons
from ..types.orders import NodeOrder, RunOrder, Staging
from ..types.reasons import Reason
from ..types.records import Result
from ..types.restarts import RETURN_SECONDS, Ended, Rule, told_of
from ..wire.channel import ready
from ..wire.protocol import Refused
from .audience import Audience
from .head_job import HeadJob, start_job
from .planned_nodes import Head, PlannedNodes
from .restart_rule import PAUSE_SECONDS, ended_of, goes_on, kept_out, not_again, not_without, pause_before_next
from .result import unfinished

LOOK_SECONDS = 0.5  # between two looks for somebody who ends the job


def run_attempts(
    head: Head, run_order: RunOrder, audience: Audience, staged: Callable[[], None], rule: Rule | None = None
) -> Refused | None:
    """Run a job to the end of its last attempt: of the only one without a rule. Return why it is refused, if it is.

    `staged`: called when all nodes have the first one.
    """
    job = start_job(head, run_order, audience)
    if not isinstance(job, HeadJob):
        return job
    staged()
    if rule:
        Restarts(head, run_order, audience, rule).run(job)
    else:
        job.follow()
    return None


class Restarts:
    """All attempts of one detached job."""

    def __init__(self, head: Head, run_order: RunOrder, audience: Audience, rule: Rule) -> None:
        self.head, self.run_order, self.audience, self.rule = head, run_order, audience, rule
        self.nodes = PlannedNodes(head, run_order)
        self.ended: list[Ended] = []
        self.again = False
        self.private = ""

    def run(self, job: HeadJob) -> None:
        """Follow the job through all its attempts."""
        while True:
            result = job.follow(functools.partial(self.decide, job))
            if not self.again:
                return
            restarts, most = len(self.ended), self.rule["most"]
            self.audience.send({"kind": "restarted", "state": result["state"], "restarts": restarts, "most": most})
            found = self.start_again(job)
            if not isinstance(found, HeadJob):
                self.nodes.let_go()  # first: some take back what they had prepared, and who hears of it fetches
                job.conclude(unfinished(result, found))
                return
            job = found

    def decide(self, last: HeadJob, result: Result) -> bool:
        """Note an attempt that is over; return whether the job is started again.

        Not where that cannot be written: the next attempt would find no room either, and this one has its outcome. Nor
        where a node is to be kept out: a plan with others is made by the controller.
        """
        self.ended.append(ended_of(result["job_id"], result))
        job = last.node_job.job
        self.again = not last.cancelled and not self.head.signalled and goes_on(self.ended, self.rule)
        kept = kept_out(self.ended) if self.again else []
        if kept:
            result["notes"].append(not_without(kept))
            self.again = False
        try:
            job.write(LIST, {"attempts": self.ended})
            if self.again:
                job.write(EARLIER_RESULT, result)
        except OSError as error:
            if self.again:
                result["notes"].append(not_again(f"{LIST} cannot be written: {error.strerror}"))
            self.again = False
        return self.again

    def start_again(self, last: HeadJob) -> HeadJob | Reason:
        """Start the next attempt; or return why there is none. What keeps it from starting may pass: it is retried."""
        order = order_of_attempt(self.run_order, self.ended)
        rest = pause_before_next(self.ended)
        deadline = time.monotonic() + rest + RETURN_SECONDS
        try:
            reason = self.pause(last, rest) if rest else None
            while True:
                reason = reason or self.reason_to_end()
                if reason:
                    return reason
                self.nodes.let_go()
                different = self.nodes.changed(self.nodes.look_anew())
                problem = different.text if different else ""
                if not different:
                    found = start_job(self.head, order, self.audience, last.node_job.lock)
                    if isinstance(found, HeadJob):
                        return found
                    problem = text_of(found)
                if time.monotonic() > deadline:
                    return reasons.never_started(problem)
                reason = self.pause(last, PAUSE_SECONDS)
        except OSError as error:
            return reasons.never_started(error)
        finally:
            self.close_private()

    def reason_to_end(self) -> Reason | None:
        """Return why the job must not be started again, or None."""
        if self.head.signalled:
            return reasons.signalled(self.head.signalled, "the supervisor")
        frame = self.audience.receive()
        return reasons.reason_in(frame) if frame and frame["kind"] == "end" else None

    def pause(self, last: HeadJob, seconds: float) -> Reason | None:
        """Let some seconds pass, in which followers may come; return why the job is to end, if somebody says so."""
        self.close_private()
        self.private = private_directory()
        self.audience.open(self.private, last.order)
        staging: Staging = {"started": last.node_job.started, "private_tmp": self.private}
        last.node_job.job.write("staging.json", staging)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            reason = self.reason_to_end()
            if reason:
                return reason
            self.audience.offer({"kind": "beat"})
            ready(self.audience.inputs(), LOOK_SECONDS)
        return None

    def close_private(self) -> None:
        """Take away the directory in which followers were let in between two attempts."""
        private, self.private = self.private, ""
        if private:
            remove(private)


def text_of(refused: Refused) -> str:
    """Return why a job was refused, with the jobs that kept it away."""
    names = {row["job_id"] for rows in refused.get("running", {}).values() for row in rows}
    return ": ".join([refused["reason"], *sorted(names)])


def order_of_attempt(run_order: RunOrder, ended: Sequence[Ended]) -> RunOrder:
    """Return the order of the attempt after these."""
    job = run_order["job"]
    nodes = {host: node_of_attempt(node, job["job_id"], ended) for host, node in run_order["nodes"].items()}
    return {**run_order, "job": {**job, "restarts": len(ended)}, "nodes": nodes}


def node_of_attempt(node: NodeOrder, job_id: str, ended: Sequence[Ended]) -> NodeOrder:
    """Return a node's part of that."""
    given = node["environment"]
    environment = told_of(given, len(ended), ended[-1]["state"]) if node["ranks"] else given
    return {**node, "environment": environment, "known_jobs": [*node["known_jobs"], job_id]}
