# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who follows a job: the controller that started it, and those that come later, over a socket in the job's directory.

The job ends with the controller that started it, unless it is detached. Those that come later may leave as they like.
"""

from __future__ import annotations

import os
import socket

from ..types.orders import Order
from ..wire import frames
from ..wire.channel import Channel
from ..wire.protocol import FromFollower, FromHead, ToSupervisor

SOCKET = "followers"  # in the private directory of the launcher, which only the user may enter
MOST = 16  # followers at a time
QUEUED, RESTARTED = -1, -2  # among the ranks whose last report is kept: what the job waits for; its last restart
SEND_SECONDS = 5.0  # after which one that reads nothing is lost
Owner = Channel[FromHead, ToSupervisor]
Follower = Channel[FromHead, FromFollower]


class Audience:
    """The channels to all that follow one job. `owner`: the controller that started it."""

    def __init__(self, owner: Owner, detached: bool) -> None:
        self.owner, self.detached = owner, detached
        self.order: Order | None = None
        self.listener: socket.socket | None = None
        self.others: list[Follower] = []
        self.last: dict[int, FromHead] = {}  # the last report of each rank, for those that come later

    def open(self, directory: str, order: Order) -> None:
        """Take followers from now on, in this directory and no other. Those that are there stay. OSError."""
        self.order = order
        if self.listener:
            self.listener.close()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(os.path.join(directory, SOCKET))
        self.listener.listen(MOST)

    def close(self) -> None:
        """Take no more followers, and leave those that are there."""
        if self.listener:
            self.listener.close()
        for channel in self.others:
            channel.close()
        self.listener, self.others = None, []

    def inputs(self) -> list[int]:
        """Return the descriptors on which something may come."""
        listener = [self.listener.fileno()] if self.listener and len(self.others) < MOST else []
        return listener + [channel.incoming for channel in self.channels]

    @property
    def channels(self) -> list[Owner | Follower]:
        """Return the channels that are not lost."""
        self.drop_lost()
        return [channel for channel in (self.owner, *self.others) if not channel.lost]

    def drop_lost(self) -> None:
        """Close the channels of followers that left."""
        for channel in [channel for channel in self.others if channel.lost]:
            self.others.remove(channel)
            channel.close()

    def send(self, frame: FromHead) -> None:
        """Send a frame to all."""
        if frame["kind"] == "queued":
            self.last[QUEUED] = frame
        elif frame["kind"] == "started":
            self.last.pop(QUEUED, None)
        elif frame["kind"] == "restarted":
            self.last = {RESTARTED: frame}
        for channel in self.channels:
            channel.send(frame)

    def offer(self, frame: FromHead) -> None:
        """Send a frame to all followers. It is dropped for one whose buffer is full."""
        if frame["kind"] == "report":
            self.last[frame["rank"]] = frame
        for channel in self.channels:
            channel.offer(frame)

    def receive(self) -> ToSupervisor | None:
        """Return the next frame of a follower, or None. EOFError if the controller that owns the job is gone."""
        self.admit()
        channels: list[Owner | Follower] = [self.owner, *self.others]
        for channel in channels:
            try:
                frame = None if channel.lost else channel.receive(0)
            except EOFError:
                frame = None
            if frame:
                return frame
        if self.owner.lost and not self.detached:
            raise EOFError
        return None

    def admit(self) -> None:
        """Accept a new follower, and tell it what the job is and how far it is."""
        if not self.listener or not self.order or len(self.others) >= MOST:
            return
        self.listener.setblocking(False)
        try:
            connection, _address = self.listener.accept()
        except OSError:  # nobody came
            return
        connection.setblocking(True)
        descriptor = connection.detach()
        channel: Follower = Channel(descriptor, os.dup(descriptor), SEND_SECONDS, frames.FROM_FOLLOWER)
        self.others.append(channel)
        channel.send({"kind": "attached", "placement": self.order["placement"]})
        for frame in self.last.values():
            channel.offer(frame)
