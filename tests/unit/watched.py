"""Time for what works now and then while a job is followed, such as collections and looks."""

from __future__ import annotations

import threading
from typing import Protocol


class Watch(Protocol):
    """What of such a watch its tests drive."""

    thread: threading.Thread | None

    def tick(self) -> None: ...


class Clock:
    """A clock of a module that goes on by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def passed(watch: Watch, clock: Clock, seconds: float) -> None:
    """Let time pass, and the work that it begins come to its end."""
    clock.now += seconds
    watch.tick()
    if watch.thread:
        watch.thread.join()
        watch.tick()
