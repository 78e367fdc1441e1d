# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Looks at a job by itself while it is followed, when nothing has come from it for some time (option hang_look).

A look goes over a session of its own, so the job's is not held up. First nothing but /proc is read: a job that computes
or writes is alive, and its ranks are asked for nothing. Programs that ranks have started and that are busy are told,
such as the compiler of a framework that builds its kernels first. The first reading begins EARLY_SECONDS before it is
time, so that the two readings together are over soon after that. After each look the next one comes after twice the
time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.hang import HUNG, shows_life
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import Shown
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import Stopped
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .autopsy import Autopsy, busy_lines, judged, write_bundle
from .connection import HeadLost
from .session import Session

MOST_SECONDS = 3600.0  # between two looks
# Before its time a look begins, half of the time at most: to connect, and for the reading of /proc (two seconds). Then
# ranks are asked, which takes two seconds more.
EARLY_SECONDS = 4.0
LEAVE_SECONDS = 5.0  # for a thread whose session was killed


def begun(work: Callable[[], None]) -> threading.Thread | None:
    """Start a thread and return it, None if there can be none now: this user may have as many as allowed."""
    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def leave_off(thread: threading.Thread | None, session: Session | None) -> None:
    """End the work of a thread over a session of its own, and wait for it. The thread closes the session's channel.

    If it were closed here, the thread would close the same descriptors once more, which may be other files by then.
    """
    if thread and thread.is_alive() and session:
        session.kill()
        thread.join(LEAVE_SECONDS)


class HangWatch:
    """Watches one job. Its methods are for one thread; `connect` is called in another."""

    def __init__(
        self, job_id: str, run_dir: Path, seconds: float, connect: Callable[[], Session], say: Callable[[str], None]
    ) -> None:
        """`seconds` without a sign of life until it looks, 0 for never; `connect` returns a new session."""
        self.job_id, self.run_dir, self.seconds, self.connect, self.say = job_id, run_dir, seconds, connect, say
        self.pause = seconds
        self.since: float | None = None  # of the monotonic clock: the last sign of life, or when the last look was due
        self.heard = 0.0  # by the same clock: the last sign of life
        self.silent_since = 0.0  # what that was when the last look began
        self.busy: list[str] = []  # lines on programs that work for ranks
        self.thread: threading.Thread | None = None
        self.session: Session | None = None
        self.found: Autopsy | None = None
        self.told: tuple[str, list[int]] | None = None
        self.closed = False

    def seeing(self, show: Callable[[Shown], None]) -> Callable[[Shown], None]:
        """Return what shows frames and takes each for a sign of life."""

        def see(frame: Shown) -> None:
            self.since, self.pause, self.told = time.monotonic(), self.seconds, None
            self.heard = self.since
            show(frame)

        return see

    def tick(self) -> None:
        """Begin a look if it is time for one; tell what the last one found. Returns at once."""
        if self.thread and not self.thread.is_alive():
            self.thread = None
            self.tell()
        if not self.seconds or self.since is None or self.thread:
            return
        due = self.since + self.pause
        if time.monotonic() < due - min(EARLY_SECONDS, self.pause / 2):
            return
        self.since, self.pause = due, min(2 * self.pause, max(MOST_SECONDS, self.seconds))
        self.session, self.silent_since = None, self.heard  # of the last one: before the thread begins, which sets it
        self.thread = begun(self.look)

    @property
    def disturbed(self) -> bool:
        """Whether the job showed a sign of life since the look began."""
        return self.heard != self.silent_since

    def look(self) -> None:
        """Look at the job; `found` has what there is to tell. A look that fails tells nothing."""
        with contextlib.suppress(InputError, HeadLost, Stopped, OSError, RuntimeError), self.connect() as session:
            self.session = session
            if self.closed:
                return
            looked = session.look(self.job_id, asks=False)
            self.busy = busy_lines(looked, time.monotonic() - self.heard)
            if self.disturbed or shows_life(looked["evidence"], len(looked["placement"])):
                return
            autopsy = judged(self.job_id, session.look(self.job_id))
            self.found = autopsy if autopsy.verdict.code in HUNG else None

    def tell(self) -> None:
        """Show what was found in one line, once, and keep the evidence; before that the programs that are busy.

        Nothing of a look in whose midst the job went on.
        """
        busy, self.busy = self.busy, []
        autopsy, self.found = self.found, None
        if self.disturbed:
            return
        for line in busy:
            self.say(line)
        if autopsy is None or self.told == (autopsy.verdict.code, autopsy.verdict.ranks):
            return
        self.told = autopsy.verdict.code, autopsy.verdict.ranks
        try:
            kept = f"evidence: {write_bundle(self.run_dir, autopsy)}"
        except OSError as error:
            kept = f"the evidence could not be written: {error.strerror}"
        self.say(f"warning: {autopsy.headline}; {kept}")

    def close(self) -> None:
        """Leave off: the job is over."""
        self.closed = True
        leave_off(self.thread, self.session)
