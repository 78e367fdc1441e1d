# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All that watches a job while it is followed: looks at its ranks, and collects from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import Shown
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.keyboard import Keyboard

from .collect_watch import CollectWatch
from .hang_watch import HangWatch
from .key_look import KeyLook
from .plan import LaunchPlan
from .request import Request
from .session import Session
from .view import View


class Watch(Protocol):
    """What watches one job. Its methods are for one thread."""

    def seeing(self, show: Callable[[Shown], None]) -> Callable[[Shown], None]:
        """Return what shows frames, and sees them."""

    def tick(self) -> None:
        """Do what it is time for. Returns at once."""

    def close(self) -> None:
        """Leave off: the job is over."""


class Watches:
    """Several of them as one."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self.watches = watches

    def seeing(self, show: Callable[[Shown], None]) -> Callable[[Shown], None]:
        """Return what shows frames, and lets all see them."""
        for watch in self.watches:
            show = watch.seeing(show)
        return show

    def tick(self) -> None:
        """Let all do what it is time for. Returns at once."""
        for watch in self.watches:
            watch.tick()

    def close(self) -> None:
        """Leave off: the job is over."""
        for watch in self.watches:
            watch.close()


def watches_of(
    plan: LaunchPlan, request: Request, connect: Callable[[], Session], view: View, playbook: int
) -> Watches:
    """Return what watches a job. `connect` returns a new session; `playbook`: the pid of ansible-playbook."""
    job_id, run_dir = plan.job_id, Path(plan.run_dir)
    placement = [(place.rank, place.host) for place in plan.placement]
    limits = (request.fetch_limit, request.collect_limits)
    every = None if request.detach else plan.collect_every
    watches: list[Watch] = [
        HangWatch(job_id, run_dir, request.hang_look, connect, view.say),
        CollectWatch(job_id, run_dir, placement, limits, every, connect, view.say),
    ]
    if not request.detach:
        hints = view.terminal and not plan.restarts
        watches.append(KeyLook(job_id, run_dir, Keyboard(playbook), connect, view.say, hints))
    return Watches(watches)
