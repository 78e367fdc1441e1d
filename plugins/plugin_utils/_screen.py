# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ansible's display behind a queue: a reader that is slow, stopped or gone must never hold up a job.

An action reaches the user through a pipe to ansible-playbook, which writes to its stdout. If nobody reads there (a
stopped pager, a stuck CI log), that pipe fills up and a call to the display never returns.
"""

from __future__ import annotations

import os
import queue
import select
import stat
import threading
import time
from collections.abc import Callable

from ansible.utils.display import Display

LAST_SECONDS = 1.0  # for the last lines of a job that was told to end
ROOM = 1000  # lines that may wait; more are dropped, as the rank files have them
display = Display()


class Screen:
    """What the user sees."""

    def __init__(self) -> None:
        self.stdout = f"/proc/{os.getppid()}/fd/1"
        self.waiting: queue.Queue[tuple[str, bool]] = queue.Queue(ROOM)
        threading.Thread(target=self.work, daemon=True).start()

    @property
    def width(self) -> int:
        """Return the columns of the terminal."""
        return int(display.columns)

    def is_terminal(self) -> bool:
        """Whether ansible-playbook writes to a terminal that somebody looks at (ansible-runner makes its own)."""
        try:
            descriptor = os.open(self.stdout, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return False
        try:
            return os.isatty(descriptor) and "AWX_ISOLATED_DATA_DIR" not in os.environ
        finally:
            os.close(descriptor)

    def is_read(self) -> bool:
        """Whether a pipe that ansible-playbook writes to has a reader: without one a write ends Ansible's thread."""
        try:
            if not stat.S_ISFIFO(os.stat(self.stdout).st_mode):
                return True
            descriptor = os.open(self.stdout, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        poll = select.poll()
        poll.register(descriptor, 0)
        unread = any(event & select.POLLERR for _descriptor, event in poll.poll(0))
        os.close(descriptor)
        return not unread

    def write(self, text: str, newline: bool) -> None:
        """Show a text some time soon, or never if too many wait."""
        try:
            self.waiting.put_nowait((text, newline))
        except queue.Full:
            pass

    def work(self) -> None:
        """Show what waits, for ever: the thread ends with the process."""
        while True:
            text, newline = self.waiting.get()
            if self.is_read():
                display.display(text, newline=newline, screen_only=not newline)
            self.waiting.task_done()

    def flush(self, give_up: Callable[[], object]) -> bool:
        """Wait until all is shown, however slow the reader, or for a second after `give_up`; return whether it was."""
        given_up = 0.0
        while self.waiting.unfinished_tasks:
            if give_up():
                given_up = given_up or time.monotonic()
                if time.monotonic() - given_up > LAST_SECONDS:
                    return False
            time.sleep(0.002)
        return True
