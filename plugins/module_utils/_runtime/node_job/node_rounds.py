# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A supervisor's part in rounds: torchrun's agents start the ranks again while the job runs (restart_by=torchrun).

When the guard has ended the programs of a round, all that they wrote is read and the head gets the report of the round.
When the guard has made room for the next one, its output is followed. Both take threads of their own: no slow disk may
keep the supervisor from its signs of life.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Callable

from ..types.records import NodeReport
from ..wire.protocol import ForHead, FromGuard, NextRound, RoundReport
from .output_follower import OutputFollower
from .round_files import order_of_round, take_back

if TYPE_CHECKING:
    from .node_job import NodeJob


class NodeRounds:
    """The rounds of one node's part of a job."""

    def __init__(self, node_job: NodeJob) -> None:
        self.node_job, self.first = node_job, node_job.order
        self.before: OutputFollower | None = None  # of the round that is over, until the next one begins
        self.found: NodeReport | None = None  # the report that the head is to be sent
        self.thread: threading.Thread | None = None

    def begin(self, frame: NextRound) -> None:
        """Have the guard begin the next round."""
        self.node_job.order = order_of_round(self.first, frame["restarts"], frame["after"])
        self.node_job.started = time.time()
        self.node_job.send(frame)

    def take(self, message: FromGuard) -> ForHead | None:
        """Take a message of the guard, and return it if it is for the head."""
        if message["kind"] == "round_ended":
            self.do(self.make_report)
            return None
        if message["kind"] == "round_begun":
            self.do(self.follow_output)
            return None
        return message

    def reports(self) -> list[RoundReport]:
        """Return the report of the round that is over, once."""
        found, self.found = self.found, None
        return [{"kind": "round_report", "report": found}] if found else []

    def do(self, work: Callable[[], None]) -> None:
        """Work in a thread, after what is worked on."""
        before = self.thread

        def wait_and_work() -> None:
            if before:
                before.join()
            work()

        self.thread = threading.Thread(target=wait_and_work, daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # the job has all threads that its user may have
            self.thread = None
            wait_and_work()

    def make_report(self) -> None:
        self.node_job.output.finish()
        self.found = self.node_job.report()

    def follow_output(self) -> None:
        self.before = self.node_job.output
        output = OutputFollower(self.node_job.job, self.node_job.order)
        output.frames = self.before.frames  # some may wait to be shown
        output.start()
        self.node_job.output = output
        os.close(self.before.metrics.file)  # there may be a thousand rounds

    def settle(self) -> None:
        """Leave nothing half done, when the guard is gone: of a round that never began nothing stays."""
        if self.thread:
            self.thread.join()
        self.node_job.output.finish()
        if self.node_job.order["restarts"] > self.first["restarts"]:
            with contextlib.suppress(OSError):
                back = take_back(self.node_job.job, self.node_job.order)
                self.node_job.output = self.before if back and self.before else self.node_job.output
