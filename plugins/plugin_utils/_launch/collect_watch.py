# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Brings what ranks have written home while a job runs: once, or again and again while it is followed (collect_every).

It goes over a session of its own, so the job's is not held up. What comes of a node takes the place of what came before
once it is all there and whole: half a checkpoint is useless.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.artifact_border import Limits
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import Shown
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import Stopped
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

from .brought_home import BroughtHome, Fault, within_room
from .connection import HeadLost
from .hang_watch import begun, leave_off
from .run_directory import is_fetched, written_alone
from .session import Session

LINES_MOST = 5  # of one collection
TOLD_MOST = 1000  # reasons of a job
MISSING, NO_THREAD = "missing", "no_thread"  # codes of what went wrong
Placement = Collection[tuple[int, str]]  # ranks and their hosts


def fetch_running(
    session: Session,
    job_id: str,
    run_dir: Path,
    placement: Placement,
    limit: int,
    most: Limits | None = None,
    give_up: Callable[[], bool] = lambda: False,
) -> tuple[BroughtHome, list[str]]:
    """Fetch what a job that runs has written until now; return what came, and what is missing, each with the reason.

    `limit`: bytes of output and metrics; `most`: what each node may send, also bounded by the free disk; `give_up`: as
    of Session.fetch(). InputError, HeadLost, OSError: what had come before is there as it was. Call it while nobody
    else writes into the run.
    """
    home = within_room(run_dir, placement, most)
    missing = session.fetch(job_id, run_dir, placement, limit, give_up, over=False, artifacts=home)
    return home, missing


def faults_of(home: BroughtHome, missing: Collection[str]) -> list[Fault]:
    """Return what was wrong with a collection. A glob that matches nothing may match later."""
    silent = fold_names(sorted(home.silent))
    others = [text for text in missing if text not in set(home.damaged)]
    return [*(Fault(silent, MISSING, text) for text in others), *home.faults]


class CollectWatch:
    """Collects from one job that is followed. Its methods are for one thread; `connect` is called in another.

    Nothing that goes wrong ends the job: a line says it, once for each node and reason, and the next time it is tried
    again.
    """

    def __init__(
        self,
        job_id: str,
        run_dir: Path,
        placement: Placement,
        limits: tuple[int, Limits | None],
        seconds: float | None,
        connect: Callable[[], Session],
        say: Callable[[str], None],
    ) -> None:
        """`seconds` from the end of one collection to the next, None for none; `limits`: those of fetch_running()."""
        self.job_id, self.run_dir, self.placement, self.limits = job_id, run_dir, placement, limits
        self.seconds, self.connect, self.say = seconds, connect, say
        self.since: float | None = None  # of the monotonic clock: the start of the job, or the end of the last one
        self.thread: threading.Thread | None = None
        self.session: Session | None = None
        self.found: list[Fault] = []
        self.told: set[tuple[str, str]] = set()  # host and code
        self.closed = False

    def seeing(self, show: Callable[[Shown], None]) -> Callable[[Shown], None]:
        """Return what shows frames and takes the first of a job that runs for its start: one may wait before that."""

        def see(frame: Shown) -> None:
            if frame["kind"] == "queued":
                self.since = None
            elif self.since is None:
                self.since = time.monotonic()
            show(frame)

        return see

    def begin_at_once(self) -> None:
        """Take a job that runs already, of which nobody may have collected anything: the first collection is due."""
        self.since = -math.inf

    def tick(self) -> None:
        """Begin a collection if it is time for one; tell what was wrong with the last one. Returns at once."""
        if self.thread and not self.thread.is_alive():
            self.thread, self.since = None, time.monotonic()
            self.tell()
        if self.closed or self.thread or self.seconds is None or self.since is None:
            return
        if time.monotonic() < self.since + self.seconds:
            return
        self.session = None  # of the last one: before the thread begins, which sets it
        self.thread = begun(self.collect)
        if not self.thread:
            self.since, self.found = time.monotonic(), [Fault("", NO_THREAD, "no thread can be started")]
            self.tell()

    def collect(self) -> None:
        """Fetch what is there now; `found` has what was wrong."""
        try:
            with self.connect() as session:
                self.session = session
                with written_alone(self.run_dir, self.is_closed):
                    if not self.closed and not is_fetched(self.run_dir):  # then another one was there to the end
                        self.found = faults_of(
                            *fetch_running(
                                session, self.job_id, self.run_dir, self.placement, *self.limits, self.is_closed
                            )
                        )
        except (InputError, HeadLost, Stopped, OSError, RuntimeError) as error:  # RuntimeError: no thread for a session
            self.found = [Fault("", type(error).__name__, str(error))]

    def is_closed(self) -> bool:
        """Whether it has left off."""
        return self.closed

    def tell(self) -> None:
        """Show what was wrong, each reason once for each host, in LINES_MOST lines and one that counts the others."""
        found, self.found = self.found, []
        new = [fault for fault in found if (fault.host, fault.code) not in self.told]
        new = new[: TOLD_MOST - len(self.told)]
        self.told |= {(fault.host, fault.code) for fault in new}
        for fault in new[:LINES_MOST]:
            self.say(f"warning: collect_every: {fault.text}; it is tried again in {self.seconds:g} s")
        if len(new) > LINES_MOST:
            self.say(f"warning: collect_every: and {len(new) - LINES_MOST:,} more")

    def close(self) -> None:
        """Leave off: the job is over, and its files are fetched as a whole."""
        self.closed = True
        leave_off(self.thread, self.session)
