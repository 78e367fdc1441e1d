# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job that waits in the queue with its controller: it leaves the queue when that does, and nothing of it is left."""

from __future__ import annotations

import time
from typing import Sequence

from ..basics.home import home_path
from ..types.job_rows import Ahead
from ..types.queue_messages import EnterQueue, Unqueue
from ..types.reasons import waited_too_long
from ..wire import protocol
from ..wire.channel import BEAT_SECONDS, SupervisorChannel, ready
from .job_queue import LOOK_SECONDS, Queue, Ticket, is_over, news_of
from .waiting_job import remove_dead

LOST_PLACE = "it has lost its place in the queue: it was taken out, or its controller was silent for the lease"
TAKEN_OUT = "it was taken out of the queue, by playbooks/jobs.yml -e do=cancel"


class QueueDesk:
    """What a controller asks of the queue over its channel. `ticket`: its place, from `queue` until the job runs."""

    def __init__(self, channel: SupervisorChannel) -> None:
        self.channel = channel
        self.ticket: Ticket | None = None
        self.lease: float | None = None  # how long the controller may be silent while it has a place

    def on_queue(self, frame: EnterQueue) -> None:
        """Send `turn` when the nodes of the job are free, and `queued` before that when what it waits for changes."""
        queue = Queue(home_path(frame["home"]))
        try:
            if frame["look"]:
                self.tell(queue.ahead(frame["hosts"]))
                return
            if self.ticket is None:
                remove_dead(queue)
                self.ticket = queue.enter(
                    {
                        "job_id": frame["job_id"],
                        "controller": frame["controller"],
                        "owner": frame["owner"],
                        "hosts": frame["hosts"],
                        "ranks": frame["ranks"],
                        "launcher": frame["launcher"],
                        "backend": frame["backend"],
                        "detached": False,
                        "private_tmp": "",
                    }
                )
            self.lease = frame["lease"]
            queue.move(self.ticket, frame["hosts"])
            refused = self.wait(queue, self.ticket, frame)
        except EOFError:  # the controller is gone
            self.leave()
            return
        except (OSError, ValueError) as error:
            refused = str(error)
        if refused:
            self.leave()
            self.channel.send({"kind": "refused", "reason": refused})
        else:
            self.channel.send({"kind": "turn"})

    def tell(self, ahead: Sequence[Ahead]) -> None:
        """Tell the controller what its job waits for."""
        self.channel.send({"kind": "queued", "ahead": len(ahead), "first": ahead[0] if ahead else None})

    def wait(self, queue: Queue, ticket: Ticket, frame: EnterQueue) -> str:
        """Return when it is the job's turn, or why it has left. EOFError if the controller is gone. OSError."""
        told: object = None
        heard = beat = time.monotonic()
        ahead: Sequence[Ahead] = ()
        while True:
            ahead = queue.ahead_of(ticket, ahead)
            if not ticket.valid:
                return TAKEN_OUT
            if is_over(ticket, frame["queue_timeout"]):
                return waited_too_long(frame["queue_timeout"] or 0.0, ahead).detail
            if not ahead:
                return ""
            if news_of(ahead) != told:
                told = news_of(ahead)
                self.tell(ahead)
            if ready([self.channel.incoming], LOOK_SECONDS) and self.channel.receive(0):
                heard = time.monotonic()
            now = time.monotonic()
            if now - heard > frame["lease"]:
                return f"the controller was silent for {frame['lease']:g} s"
            if now - beat > BEAT_SECONDS:
                beat = now
                self.channel.offer({"kind": "beat"})

    def on_unqueue(self, frame: Unqueue) -> None:
        """Take a job out of the queue that waits with its controller. One that is detached is ended as others are."""
        queue = Queue(home_path(frame["home"]))
        try:
            entry = queue.find(frame["job_id"])
            found = bool(entry and not entry["detached"] and queue.take_out(frame["job_id"]))
        except OSError:
            found = False
        self.channel.send({"kind": "unqueued", "found": found})

    def others(self, home: str) -> list[str]:
        """Return the names of the jobs that wait, without that of this controller."""
        own = self.ticket.entry["job_id"] if self.ticket else None
        try:
            return [entry["job_id"] for entry in Queue(home).entries() if entry["job_id"] != own]
        except OSError:  # the name is looked at again when the job is staged
            return []

    def refusal(self) -> protocol.Refused | None:
        """Return why the job may not start: it was its turn, and is no longer. None if it may."""
        return None if self.ticket and self.ticket.valid else protocol.Refused(kind="refused", reason=LOST_PLACE)

    def leave(self) -> None:
        """Leave the queue, if this controller is in it."""
        ticket, self.ticket, self.lease = self.ticket, None, None
        if ticket:
            ticket.leave()
