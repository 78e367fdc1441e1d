# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ansible's display behind a queue: a reader that is slow, stopped or gone must never hold up a job.

An action reaches the user through a pipe to ansible-playbook, which writes to its stdout. If nobody reads there (a
stopped pager, a stuck CI log), that pipe fills up and a call to the display never returns.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._stop import terminal_of

LAST_SECONDS = 1.0  # for the last lines of a job that was told to end
ROOM = 1000  # live lines that may wait; more are dropped, as the rank files have them
display = Display()


class Text(NamedTuple):
    """Something to show. `keep`: it must not be dropped."""

    text: str
    newline: bool = True
    keep: bool = True


class Screen:
    """What the user sees. Live lines may be dropped, the oldest first; what is to be kept never is."""

    def __init__(self) -> None:
        self.parent = os.getppid()
        self.stdout = f"/proc/{self.parent}/fd/1"
        self.waiting: deque[Text] = deque()
        self.live = 0  # how many of them may be dropped
        self.dropped = 0  # since the last one that was shown
        self.unfinished = 0
        self.changed = threading.Condition()
        threading.Thread(target=self.work, daemon=True).start()

    @property
    def width(self) -> int:
        """Return the columns of the terminal."""
        return int(display.columns)

    def is_terminal(self) -> bool:
        """Whether ansible-playbook writes to a terminal that somebody looks at (ansible-runner makes its own)."""
        descriptor = terminal_of(self.parent, (1,))
        if descriptor < 0:
            return False
        os.close(descriptor)
        return "AWX_ISOLATED_DATA_DIR" not in os.environ

    def is_read(self) -> bool:
        """Whether what is shown may have a reader.

        Nobody reads what goes to an ansible-playbook that is gone, or into a pipe without a reader, where a write ends
        Ansible's thread. Where it cannot be found out (no /proc, a pipe of another user), it is shown.
        """
        if os.getppid() != self.parent:
            return False
        try:
            if not stat.S_ISFIFO(os.stat(self.stdout).st_mode):
                return True
            descriptor = os.open(self.stdout, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            return error.errno != errno.ENXIO
        poll = select.poll()
        poll.register(descriptor, 0)
        unread = any(event & select.POLLERR for _descriptor, event in poll.poll(0))
        os.close(descriptor)
        return not unread

    def write(self, text: str, newline: bool = True, keep: bool = True) -> None:
        """Show a text some time soon; one that is not to be kept perhaps never, if too many wait."""
        with self.changed:
            self.waiting.append(Text(text, newline, keep))
            self.unfinished += 1
            self.live += not keep
            if self.live > ROOM:
                self.drop_oldest()
            self.changed.notify()

    def drop_oldest(self) -> None:
        """Drop the live line that waits longest. What is kept is little, so it is not far."""
        oldest = next(number for number, text in enumerate(self.waiting) if not text.keep)
        self.dropped += self.waiting[oldest].newline
        del self.waiting[oldest]
        self.live -= 1
        self.unfinished -= 1

    def take(self) -> list[Text]:
        """Wait for the next text and return it, after a line that says what was dropped before it."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting)
            text = self.waiting.popleft()
            self.live -= not text.keep
            gap = [] if text.keep or not self.dropped else [Text(f"... {self.dropped} lines are only in the files")]
            self.dropped = 0 if gap else self.dropped
            return [*gap, text]

    def work(self) -> None:
        """Show what waits, for ever: the thread ends with the process."""
        while True:
            for text in self.take():
                if self.is_read():
                    display.display(text.text, newline=text.newline, screen_only=not text.newline)
            with self.changed:
                self.unfinished -= 1

    def flush(self, give_up: Callable[[], object]) -> bool:
        """Wait until all is shown, however slow the reader, or for a second after `give_up`; return whether it was."""
        given_up = 0.0
        while self.unfinished:
            if give_up():
                given_up = given_up or time.monotonic()
                if time.monotonic() - given_up > LAST_SECONDS:
                    return False
            time.sleep(0.002)
        return True
