# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A supervisor that outlives its connection.

It goes on in a child with a session of its own. The process that sshd started waits until the job runs, for when that
is gone sshd brings nothing to its children any more. Then nothing is left that holds the connection open.
"""

from __future__ import annotations

import os

from .wire.channel import SupervisorChannel


class Detachment:
    """What still ties this process to the connection on which it was started."""

    def __init__(self) -> None:
        self.waiter = -1  # a pipe: the process at its other end exits when it is closed

    def begin(self) -> None:
        """Return in a child with a session of its own; this process waits for it. OSError."""
        waits, self.waiter = os.pipe()
        if os.fork():
            os.close(self.waiter)
            os.read(waits, 1)
            os._exit(0)
        os.close(waits)
        os.setsid()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 2)  # sshd waits for all that hold it
        os.close(nothing)

    def complete(self, channel: SupervisorChannel) -> None:
        """Let the connection end. What was sent on the channel arrives; nothing more is sent or taken."""
        if self.waiter < 0:  # it has ended: the job had waited in the queue
            return
        channel.lost = True
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (channel.incoming, channel.outgoing):
            os.dup2(nothing, descriptor)
        os.close(nothing)
        os.close(self.waiter)
        self.waiter = -1
