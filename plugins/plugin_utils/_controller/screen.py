# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ansible's display behind a queue: a reader that is slow, stopped or gone must never hold up a job.

An action reaches the user through a pipe to ansible-playbook, which writes to its stdout. If nobody reads there (a
stopped pager, a stuck CI log), that pipe fills up and a call to the display never returns. After Ctrl-C
ansible-playbook does not read it any more: what is still to be shown is written to its stdout from here.
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
        self.former: threading.Thread | None = None  # showed what waited before take_over()
        self.current = self.start(self.hand_over)

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
        """Wait for the next text and return it, after a line that says what was dropped before it.

        Nothing if another thread shows what waits from now on.
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
        """Return a thread that shows what waits. It ends with the process."""
        thread = threading.Thread(target=self.work, args=(show,), daemon=True)
        thread.start()
        return thread

    def is_replaced(self) -> bool:
        """Whether another thread does from now on what this one did."""
        return threading.current_thread() is self.former

    def work(self, show: Callable[[Text], object]) -> None:
        """Show what waits, as long as this is not done by another thread."""
        while texts := self.take():
            for text in texts:
                show(text)
            with self.changed:
                self.unfinished -= not self.is_replaced()

    def hand_over(self, text: Text) -> None:
        """Have Ansible show a text."""
        if self.is_read():
            display.display(text.text, newline=text.newline, screen_only=not text.newline)

    def take_over(self, terminal: int) -> None:
        """Show what waits, and what comes, without Ansible. `terminal`: where, if its stdout has no reader; or -1."""
        output = self.open_output(terminal)
        with self.changed:
            self.former, self.unfinished = self.current, len(self.waiting)
            self.changed.notify_all()
        self.current = self.start(lambda text: write_all(output, text.text + "\n" * text.newline))

    def open_output(self, terminal: int) -> int:
        """Return a descriptor of our own to where texts have a reader; a slow one is waited for."""
        for path in [self.stdout] * self.is_read() + [f"/proc/self/fd/{terminal}"] * (terminal >= 0):
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY)
            except OSError:
                continue
            os.set_blocking(descriptor, True)
            return descriptor
        return os.open(os.devnull, os.O_WRONLY)

    def flush(self, give_up: Callable[[], object]) -> bool:
        """Wait until all is shown, however slow the reader, or for a second after `give_up`; return whether it was.

        False too if Ansible has not taken by then what it was given before take_over(): it would take nothing else.
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
    """Write a text; a reader who is gone by now is no error."""
    left = text.encode(errors="surrogateescape")
    with contextlib.suppress(OSError):
        while left:
            left = left[os.write(descriptor, left) :]
