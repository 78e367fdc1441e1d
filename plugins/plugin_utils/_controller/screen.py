# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ansible's display behind a queue: a slow, stopped or missing reader must never block a job.

An action reaches the user through a pipe to ansible-playbook, which writes to its stdout. If nobody reads that (a
stopped pager, a stuck CI log), the pipe fills up and a call to the display never returns. After Ctrl-C,
ansible-playbook stops reading the pipe, and the remaining texts are written to its stdout from here.
"""

from __future__ import annotations

import contextlib
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

from .interrupt import terminal_of

LAST_SECONDS = 1.0  # for the last lines of a job that is being ended
ROOM = 1000  # live lines that may wait; more are dropped, because the rank files have them
FILE_COLUMNS = 200  # of a file or a pipe
display = Display()


class Text(NamedTuple):
    """A text to show. With `keep` it must not be dropped."""

    text: str
    newline: bool = True
    keep: bool = True


class Screen:
    """The user's screen. Live lines may be dropped, the oldest first; texts with `keep` never are."""

    def __init__(self) -> None:
        self.parent = os.getppid()
        self.stdout = f"/proc/{self.parent}/fd/1"
        self.waiting: deque[Text] = deque()
        self.live = 0  # waiting texts that may be dropped
        self.dropped = 0  # dropped lines since the last one shown
        self.unfinished = 0
        self.changed = threading.Condition()
        self.former: threading.Thread | None = None  # the thread that showed texts before take_over()
        self.current = self.start(self.hand_over)

    @property
    def width(self) -> int:
        """Return the columns of the terminal."""
        return int(display.columns)

    def is_terminal(self) -> bool:
        """Whether ansible-playbook writes to a terminal with a user (ansible-runner creates its own terminal)."""
        return is_terminal(self.parent)

    def is_read(self) -> bool:
        """Whether the output may have a reader.

        There is none if ansible-playbook is gone, or for a pipe without a reader, where a write ends Ansible's thread.
        If it is unknown (no /proc, a pipe of another user), return true.
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
        """Queue a text to show. Without `keep` it may be dropped if too many wait."""
        with self.changed:
            self.waiting.append(Text(text, newline, keep))
            self.unfinished += 1
            self.live += not keep
            if self.live > ROOM:
                self.drop_oldest()
            self.changed.notify()

    def drop_oldest(self) -> None:
        """Drop the oldest live line. Few texts have `keep`, so it is near the front."""
        oldest = next(number for number, text in enumerate(self.waiting) if not text.keep)
        self.dropped += self.waiting[oldest].newline
        del self.waiting[oldest]
        self.live -= 1
        self.unfinished -= 1

    def take(self) -> list[Text]:
        """Wait for the next text and return it, after a line that says how many were dropped before it.

        Return nothing if another thread has taken over.
        """
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or self.is_replaced())
            if self.is_replaced():
                return []
            text = self.waiting.popleft()
            self.live -= not text.keep
            gap = [] if text.keep or not self.dropped else [Text(f"... {self.dropped} lines are only in the files")]
            self.dropped = 0 if gap else self.dropped
            return [*gap, text]

    def start(self, show: Callable[[Text], object]) -> threading.Thread:
        """Return a thread that shows waiting texts. It ends with the process."""
        thread = threading.Thread(target=self.work, args=(show,), daemon=True)
        thread.start()
        return thread

    def is_replaced(self) -> bool:
        """Whether another thread has taken over from this one."""
        return threading.current_thread() is self.former

    def work(self, show: Callable[[Text], object]) -> None:
        """Show waiting texts until another thread takes over."""
        while texts := self.take():
            for text in texts:
                show(text)
            with self.changed:
                self.unfinished -= not self.is_replaced()

    def hand_over(self, text: Text) -> None:
        """Show a text with Ansible's display."""
        if self.is_read():
            display.display(text.text, newline=text.newline, screen_only=not text.newline)

    def take_over(self, terminal: int) -> None:
        """Show all further texts without Ansible, on `terminal` (or -1) if Ansible's stdout has no reader."""
        output = self.open_output(terminal)
        with self.changed:
            self.former, self.unfinished = self.current, len(self.waiting)
            self.changed.notify_all()
        self.current = self.start(lambda text: write_all(output, text.text + "\n" * text.newline))

    def open_output(self, terminal: int) -> int:
        """Return our own descriptor of an output with a reader; writes wait for a slow one."""
        for path in [self.stdout] * self.is_read() + [f"/proc/self/fd/{terminal}"] * (terminal >= 0):
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY)
            except OSError:
                continue
            os.set_blocking(descriptor, True)
            return descriptor
        return os.open(os.devnull, os.O_WRONLY)

    def flush(self, give_up: Callable[[], object]) -> bool:
        """Wait until everything is shown, or for a second after `give_up`; return whether it was shown.

        Also return false if Ansible has not taken the texts from before take_over() by then: it accepts no more.
        """
        given_up = 0.0
        while self.unfinished:
            if give_up():
                given_up = given_up or time.monotonic()
                if time.monotonic() - given_up > LAST_SECONDS:
                    return False
            time.sleep(0.002)
        if self.former:
            self.former.join(LAST_SECONDS)
        return self.former is None or not self.former.is_alive()


def write_all(descriptor: int, text: str) -> None:
    """Write a text; a missing reader is no error."""
    left = text.encode(errors="surrogateescape")
    with contextlib.suppress(OSError):
        while left:
            left = left[os.write(descriptor, left) :]


def is_terminal(process: int) -> bool:
    """Whether the stdout of an ansible-playbook is a terminal with a user."""
    descriptor = terminal_of(process, (1,))
    if descriptor < 0:
        return False
    os.close(descriptor)
    return "AWX_ISOLATED_DATA_DIR" not in os.environ


def columns() -> int:
    """Return how wide a table may be: as the terminal, or FILE_COLUMNS where nothing folds lines."""
    return max(80, int(display.columns)) if is_terminal(os.getppid()) else FILE_COLUMNS
