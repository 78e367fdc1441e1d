# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A line now and then on work that takes long, so that nobody takes it for a hang."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_SECONDS, MOST_SECONDS = 5.0, 600.0  # until the first line; between two at most, for work of days
Say = Callable[[str], None]


class Progress:
    """How many of some bytes are done. Work of a few seconds says nothing."""

    def __init__(self, what: str, done: str, total: int, say: Say) -> None:
        """`what`: begins each line; `done`: what happens to the bytes, as "read"; `say` shows a line."""
        self.what, self.verb, self.total, self.say = what, done, total, say
        self.bytes = 0
        self.pause = FIRST_SECONDS
        self.next = time.monotonic() + self.pause

    def add(self, count: int) -> None:
        """Note that so many bytes more are done."""
        self.bytes += count
        now = time.monotonic()
        if now < self.next:
            return
        self.pause = min(2 * self.pause, MOST_SECONDS)
        self.next = now + self.pause
        share = 100 * self.bytes // max(1, self.total)
        self.say(f"{self.what}: {self.bytes:,} of {self.total:,} bytes are {self.verb} ({share}%)")


def silent(_line: str) -> None:
    """Show nothing."""
