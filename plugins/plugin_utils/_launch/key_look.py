# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Looks at a job that is followed as soon as Enter is pressed on the terminal. The job goes on.

What playbooks/look.yml shows is shown. It goes over a session of its own, so the job's is not held up. If several jobs
are followed from one terminal, each of them is looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import Shown
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import Stopped
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.keyboard import Keyboard
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .autopsy import Autopsy, judged, write_bundle
from .connection import HeadLost
from .hang_watch import begun, leave_off
from .session import Session

HINT = "Enter shows what the ranks do"


class KeyLook:
    """Looks at one job. Its methods are for one thread; `connect` is called in another."""

    def __init__(
        self,
        job_id: str,
        run_dir: Path,
        keyboard: Keyboard,
        connect: Callable[[], Session],
        say: Callable[[str], None],
        hints: bool = True,
    ) -> None:
        """`connect` returns a new session. `hints`: tell that Enter looks, if there is a keyboard."""
        self.job_id, self.run_dir, self.keyboard, self.connect, self.say = job_id, run_dir, keyboard, connect, say
        self.hints = hints
        self.runs = False  # its ranks were started
        self.thread: threading.Thread | None = None
        self.session: Session | None = None
        self.found: Autopsy | None = None
        self.error = ""  # why nothing was found
        self.closed = False

    def seeing(self, show: Callable[[Shown], None]) -> Callable[[Shown], None]:
        """Return what shows frames, and tells once that Enter looks when the ranks were started."""

        def see(frame: Shown) -> None:
            show(frame)
            if frame["kind"] == "queued":
                self.runs = False
            elif not self.runs:
                self.begin_at_once()

        return see

    def begin_at_once(self) -> None:
        """Take the job for one that runs: its ranks can be looked at."""
        self.runs = True
        if self.hints and self.keyboard.is_there:
            self.say(HINT)
        self.hints = False

    def tick(self) -> None:
        """Begin a look if Enter was pressed; tell what it found. Returns at once."""
        if self.thread and not self.thread.is_alive():
            self.thread = None
            self.tell()
        if not self.keyboard.pressed() or self.thread or self.closed:
            return
        if not self.runs:
            self.say(f"job {self.job_id}: its ranks are not started yet")
            return
        self.say(f"looking at job {self.job_id} ...")
        self.session, self.found, self.error = None, None, "no thread can be started"
        self.thread = begun(self.look)
        if not self.thread:
            self.tell()

    def look(self) -> None:
        """Look at the job; `found` has what there is to tell, or `error` why there is nothing."""
        try:
            with self.connect() as session:
                self.session = session
                if not self.closed:
                    self.found = judged(self.job_id, session.look(self.job_id))
        except (InputError, HeadLost, Stopped, OSError, RuntimeError) as error:  # RuntimeError: no thread for a session
            self.error = str(error)

    def tell(self) -> None:
        """Show what was found, and keep the evidence."""
        if self.found is None:
            self.say(f"job {self.job_id} was not looked at: {self.error}")
            return
        for line in self.found.lines:
            self.say(line)
        try:
            self.say(f"evidence: {write_bundle(self.run_dir, self.found)}")
        except OSError as error:
            self.say(f"the evidence could not be written: {error.strerror}")

    def close(self) -> None:
        """Leave off: the job is over."""
        self.closed = True
        self.keyboard.close()
        leave_off(self.thread, self.session)
