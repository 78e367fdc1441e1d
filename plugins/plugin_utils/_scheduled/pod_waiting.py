# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What pods that have not started wait for, in the words of the cluster: for people, and nothing is decided by it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping

from .kubectl import Kubectl, KubeError, Pod, text_in

TELL_SECONDS = 30.0  # of waiting before people are told why, and between two looks after that
TIMES = ("lastTimestamp", "eventTime", "firstTimestamp")  # of an event: older and newer clients fill in others
NOBODY = "nothing makes them: no operator for this kind runs, or a queue holds the job"


class Waiting:
    """Tells why pods do not start. `name` of the job's objects; `say` takes a line."""

    def __init__(self, kubectl: Kubectl, name: str, say: Callable[[str], None]) -> None:
        self.kubectl, self.name, self.say = kubectl, name, say
        self.due = time.monotonic() + TELL_SECONDS
        self.told = ""

    def tell(self, pods: Mapping[str, Pod | None], of: int) -> None:
        """Say now and then why pods have not started, unless that has been said. `of`: so many pods of the job."""
        if pods and time.monotonic() > self.due:
            why = self.why(pods)
            if why not in ("", self.told):
                self.say(f"{len(pods)} of {of} pods have not started yet: {why}")
                self.told = why
            self.due = time.monotonic() + TELL_SECONDS

    def why(self, pods: Mapping[str, Pod | None]) -> str:
        """Return what the scheduler, else the newest warning says of pods by host; empty if nothing does."""
        unschedulable = next((pod.unschedulable for pod in pods.values() if pod and pod.unschedulable), "")
        if unschedulable:
            return unschedulable
        named = {self.name, *pods, *(host.rpartition("-")[0] for host in pods)}  # Jobs, and jobs of operators
        named |= {pod.name for pod in pods.values() if pod}
        return self.newest_warning(named) or ("" if any(pods.values()) else NOBODY)

    def newest_warning(self, names: set[str]) -> str:
        """Return the newest warning of the cluster about objects with these names. Who may not read events gets none.

        A quota, a policy, or a volume that cannot be mounted stands there alone (Kubernetes API, Event).
        """
        rows: list[dict[str, object]] = []
        with contextlib.suppress(KubeError):
            rows = self.kubectl.warnings()
        own = [row for row in rows if text_in(row, "involvedObject", "name") in names]
        newest = max(own, key=time_of, default={})
        return ": ".join(filter(None, [text_in(newest, "reason"), text_in(newest, "message")]))


def time_of(event: Mapping[str, object]) -> str:
    """Return when an event was seen last: texts of ISO 8601 in UTC, which sort by time."""
    return next((text for name in TIMES if (text := text_in(event, name))), "")
