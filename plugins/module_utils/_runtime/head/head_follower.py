# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The supervisor of a node that is not the head: runs the node's part of a job, and ends it if the head is lost."""

from __future__ import annotations

import time

from ..node_job.node_job import NodeJob
from ..types import reasons
from ..types.reasons import HEAD_GONE, THE_GUARD_DIED, Reason, reason_in
from ..wire.channel import BEAT_SECONDS, ready
from ..wire.protocol import ending
from .head_job import LOOK_SECONDS, Controller


class HeadFollower:
    """Runs this node's job for the head, as long as the lease holds."""

    def __init__(self, supervisor: Controller, node_job: NodeJob) -> None:
        self.supervisor, self.channel, self.node_job = supervisor, supervisor.channel, node_job
        self.lease = node_job.order["lease"]
        self.last_received = self.last_beat = time.monotonic()
        self.ended_alone = False

    def follow(self) -> None:
        """Run the node's job to its end and report it. Nothing here waits for a disk: slow work has its own threads."""
        self.node_job.start()
        while not self.node_job.over:
            inputs = [] if self.node_job.guard_gone else [self.node_job.from_guard]
            inputs += [] if self.channel.lost else [self.channel.incoming]
            if self.node_job.from_guard in ready(inputs, LOOK_SECONDS):
                for message in self.node_job.messages():
                    self.channel.send(message)
                if self.node_job.guard_status and not self.node_job.end_reason:
                    self.channel.send(ending(THE_GUARD_DIED))
            for report in self.node_job.rounds.reports():
                self.channel.send(report)
            self.handle_frames()
            self.beat()
            self.node_job.beat()
            self.node_job.check_guard()
            self.show()
        self.show()
        self.channel.send({"kind": "over", "report": self.node_job.report()})

    def show(self) -> None:
        """Offer the output of this node's ranks to the head."""
        for frame in self.node_job.output.shown():
            self.channel.offer(frame)

    def handle_frames(self) -> None:
        """Handle the frames of the head. End the node's job if the head is lost, or at a signal."""
        try:
            frame = None if self.channel.lost else self.channel.receive(0)
            while frame:
                self.last_received = time.monotonic()
                if frame["kind"] == "end":
                    self.node_job.end(reason_in(frame), frame.get("looks", False))
                elif frame["kind"] == "next_round":
                    self.node_job.rounds.begin(frame)
                elif (
                    frame["kind"] == "all_done"
                    or frame["kind"] == "start_daemon"
                    or frame["kind"] == "all_placed"
                    or frame["kind"] == "end_round"
                ):
                    self.node_job.send(frame)
                frame = self.channel.receive(0)
        except EOFError:
            pass
        if self.channel.lost:
            self.end_alone(HEAD_GONE)
        elif time.monotonic() - self.last_received > self.lease:
            self.end_alone(reasons.silent("head", self.lease))
        if self.supervisor.signalled:
            whom = f"the supervisor on {self.node_job.order['host']}"
            self.node_job.end(reasons.signalled(self.supervisor.signalled, whom))

    def end_alone(self, reason: Reason) -> None:
        """End the job without the head: nobody reports the other nodes' ranks, so the guard waits for its own only."""
        self.node_job.end(reason)
        if not self.ended_alone:
            self.ended_alone = True
            self.node_job.send({"kind": "all_done"})

    def beat(self) -> None:
        """Send the head a sign of life."""
        if time.monotonic() - self.last_beat > BEAT_SECONDS:
            self.last_beat = time.monotonic()
            self.channel.send({"kind": "beat"})
