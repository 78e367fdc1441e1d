# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Notices that the user wants out: signals to the task, or the death of ansible-playbook above it.

ansible-playbook passes SIGINT and SIGTERM on to its worker, whose own handler ends it without any `finally`; SIGKILL
leaves the worker alone behind. A job must be ended and brought home in each case, so the worker notes and goes on.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopWatch:
    """While it is entered, signals are noted instead of ending the process."""

    def __init__(self) -> None:
        self.parent = os.getppid()
        self.noted = ""
        self.handlers: dict[int, Any] = {}

    def __enter__(self) -> StopWatch:
        self.handlers = {number: signal.signal(number, self.note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.orphaned():
            os._exit(1)  # the result has no reader: handing it over would wait for ever
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Keep the first signal."""
        self.noted = self.noted or signal.Signals(number).name

    def orphaned(self) -> bool:
        """Whether ansible-playbook is gone: nothing can be shown any more."""
        return os.getppid() != self.parent

    def reason(self) -> str:
        """Return "state<tab>detail" if the job is to end, else an empty text."""
        if self.noted:
            return f"cancelled\t{self.noted} to ansible-playbook"
        return "lost\tansible-playbook was killed" if self.orphaned() else ""
