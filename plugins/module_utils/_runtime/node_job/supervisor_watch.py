# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether the supervisor above a guard still works: it may be silent, or stopped, and is killed then."""

from __future__ import annotations

import os
import signal
import time

from ..processes import processes
from ..wire.channel import BEAT_SECONDS

STOPPED_SECONDS = 4.0  # that supervisor or guard may be stopped before the other one takes it for dead


class SupervisorWatch:
    """What the guard knows of its supervisor, which is its parent."""

    def __init__(self) -> None:
        self.pid = os.getppid()
        self.stopped_since: float | None = None
        self.silent_seconds = 0.0  # since the last message; those when this process was stopped not counted
        self.last_look = time.monotonic()

    def is_silent(self, received: bool, lease: float) -> bool:
        """Whether nothing came for the lease; `received`: something has come since the last look.

        Time in which this process was stopped does not count: the node was frozen, or its disk hung.
        """
        now = time.monotonic()
        self.silent_seconds = 0.0 if received else self.silent_seconds + min(now - self.last_look, BEAT_SECONDS)
        self.last_look = now
        return self.silent_seconds > lease

    def is_stopped(self) -> bool:
        """Whether it has been stopped for so long that it counts as dead."""
        self.stopped_since = processes.stopped_for(self.pid, self.stopped_since)
        return self.stopped_since is not None and time.monotonic() - self.stopped_since > STOPPED_SECONDS

    def kill(self) -> None:
        """Kill it: whoever waits for it sees its end."""
        if os.getppid() == self.pid:
            os.kill(self.pid, signal.SIGKILL)
