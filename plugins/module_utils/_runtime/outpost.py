# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node's part of a job, seen from that node's supervisor: run for a head elsewhere, ended without it if it must."""

from __future__ import annotations

import time

from .channel import BEAT_SECONDS, ready
from .head_job import LOOK_SECONDS, Controller
from .node_job import Part


class Outpost:
    """Runs a node's part of a job for a head elsewhere, as long as its lease holds."""

    def __init__(self, supervisor: Controller, part: Part) -> None:
        self.supervisor, self.channel, self.part = supervisor, supervisor.channel, part
        self.lease = part.order["lease"]
        self.heard = self.beaten = time.monotonic()
        self.alone = False

    def follow(self) -> None:
        """Run the part to its end and report it. Nothing here waits for a disk: what does has threads of its own."""
        self.part.start()
        while not self.part.over:
            inputs = [] if self.part.gone else [self.part.ear]
            inputs += [] if self.channel.lost else [self.channel.incoming]
            if self.part.ear in ready(inputs, LOOK_SECONDS):
                for word in self.part.words():
                    self.channel.send(**word)
                if self.part.status and not self.part.why:
                    self.channel.send("ending", reason="guard_died", detail="the guard died")
            self.listen()
            self.beat()
            self.part.beat()
            self.part.check_guard()
            self.show()
        self.show()
        self.channel.send("over", report=self.part.report())

    def show(self) -> None:
        """Offer what this node's ranks wrote to the head."""
        for frame in self.part.output.shown():
            self.channel.offer(**frame)

    def listen(self) -> None:
        """Do what the head says; without it, or a signal, end the part."""
        try:
            frame = None if self.channel.lost else self.channel.receive(0)
            while frame:
                self.heard = time.monotonic()
                if frame["kind"] == "end":
                    self.part.end(frame["reason"], frame["detail"])
                elif frame["kind"] in ("leave", "start", "begin"):
                    self.part.tell(frame["kind"], command=frame.get("command", ""))
                frame = self.channel.receive(0)
        except EOFError:
            pass
        if self.channel.lost:
            self.end_alone("the head is gone")
        elif time.monotonic() - self.heard > self.lease:
            self.end_alone(f"the head was silent for {self.lease:g} s")
        if self.supervisor.signalled:
            self.part.end("cancelled", f"{self.supervisor.signalled} to the supervisor on {self.part.order['host']}")

    def end_alone(self, detail: str) -> None:
        """End the part. Nobody will say when the ranks of other nodes are done: the guard waits for its own only."""
        self.part.end("lost", detail)
        if not self.alone:
            self.alone = True
            self.part.tell("leave")

    def beat(self) -> None:
        """Tell the head that this node is there."""
        if time.monotonic() - self.beaten > BEAT_SECONDS:
            self.beaten = time.monotonic()
            self.channel.send("beat")
