# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Detects that the user wants to stop: signals to the task, or the death of ansible-playbook above it.

ansible-playbook passes SIGINT and SIGTERM on to its worker, whose own handler ends it without any `finally`; SIGKILL
and a closed terminal leave the worker behind. Before a job is started, a signal ends everything at once. Afterwards the
job must be ended and its files fetched in any case, so the worker notes the signal and continues.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType, TracebackType

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import (
    PLAYBOOK_KILLED,
    TERMINAL_CLOSED,
    Reason,
    signalled,
)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INSIST = "interrupt again to leave that to: ansible-playbook clean.yml"
NOTHING_LEFT = "stopped before the job was started: nothing of it is left"


class Stopped(Exception):
    """The user wants to stop, and no job was started."""


class StopWatch:
    """Within this context, signals raise Stopped; after hold() they are noted instead."""

    def __init__(self) -> None:
        self.parent = os.getppid()
        self.terminal = terminal_of(self.parent)
        self.doing = ""  # the work that continues after a signal; empty if none does
        self.advice = ""
        self.noted: list[str] = []
        self.unanswered = ["the first signal"]
        self.handlers: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> StopWatch:
        self.handlers = {number: signal.signal(number, self.note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.orphaned():
            os._exit(1)  # the result has no reader: writing it would block for ever
        if error and not isinstance(error, Stopped):
            self.tell(str(error))
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        if self.terminal >= 0:
            os.close(self.terminal)

    def hold(self, doing: str, advice: str = INSIST) -> None:
        """Note signals from now on. `doing`: the work that still has to be done, `advice`: what else there is to do."""
        self.doing, self.advice = doing, advice

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Note a signal, and say what the first one causes. Raise Stopped if no work remains."""
        self.noted.append(signal.Signals(number).name)
        try:
            self.unanswered.pop()  # atomic: the next signal may arrive at any point here
        except IndexError:
            return
        if not self.doing:
            self.say(NOTHING_LEFT)
            raise Stopped
        self.say(f"{self.doing}; {self.advice}")

    def say(self, text: str) -> None:
        """Write a line on the terminal, if there is one: after Ctrl-C ansible-playbook shows nothing any more."""
        try:
            os.write(self.terminal, f"\r\x1b[K{text}\n".encode())
        except OSError:  # there is no terminal, it was closed, or it is blocked
            pass

    def tell(self, reason: str) -> str:
        """Return why something failed. After a signal, print it first, because the result is not shown then."""
        if self.noted:
            self.say(reason)
        return reason

    def orphaned(self) -> bool:
        """Whether ansible-playbook is gone, so that nothing can be shown any more."""
        return os.getppid() != self.parent

    def hung_up(self) -> bool:
        """Whether there was a terminal and it was closed."""
        if self.terminal < 0:
            return False
        poll = select.poll()
        poll.register(self.terminal, 0)
        return any(event & select.POLLHUP for _descriptor, event in poll.poll(0))

    def check(self) -> None:
        """Raise Stopped if the user wants to stop."""
        if self.reason():
            self.say(NOTHING_LEFT)
            raise Stopped

    def reason(self) -> Reason | None:
        """Return why the job is to end, or None."""
        if self.first == "SIGHUP" or (not self.noted and self.orphaned() and self.hung_up()):
            return TERMINAL_CLOSED
        if self.noted:
            return signalled(self.first, "ansible-playbook")
        return PLAYBOOK_KILLED if self.orphaned() else None

    @property
    def first(self) -> str:
        """The signal that the user sent, or an empty text.

        ansible-playbook passes Ctrl-C on and sends SIGTERM right after it, which may be noted first. Any other signal
        kills it.
        """
        return "SIGINT" if "SIGINT" in self.noted else next(iter(self.noted), "")

    def insisted(self) -> bool:
        """Whether the user asked to stop a second time.

        ansible-playbook passes on only the first Ctrl-C, sends SIGTERM after it (again after 5 s), waits, and is killed
        by the second. SIGTERM kills it at once.
        """
        return self.noted.count(self.first) > 1 or (self.first == "SIGINT" and self.orphaned())


@contextlib.contextmanager
def signals_later() -> Iterator[None]:
    """Within this context a signal waits for the end of it: a program whose start is cut off would have no owner."""
    if threading.current_thread() is not threading.main_thread():  # no handler runs in another one
        yield
        return
    came: list[int] = []
    handlers = {number: signal.signal(number, lambda which, _frame: came.append(which)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for each in came:
            signal.raise_signal(each)


def terminal_of(pid: int, numbers: Collection[int] = (2, 1, 0)) -> int:
    """Return a descriptor of our own to the terminal that a process has open as one of these, or -1.

    It does not block, and does not become the controlling terminal.
    """
    for number in numbers:
        path = f"/proc/{pid}/fd/{number}"
        try:
            if not stat.S_ISCHR(os.stat(path).st_mode):
                continue
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            continue
        if os.isatty(descriptor):
            return descriptor
        os.close(descriptor)
    return -1
