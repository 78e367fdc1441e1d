# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's lease on its pods: it changes a ConfigMap that they have as a file (module_utils, pod_lease.py)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.result import timestamp
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.pod_lease import NAME

from .kubectl import Kubectl
from .manifest import lease_of

PART = 4  # of the lease: one renewal that fails, or comes late, ends nothing


class Lease:
    """The lease of a job. `seconds` that the cluster may give no answer.

    `jobs`: the names of its Jobs, of kinds that have some; `deadline`: of these, in seconds, when all ranks run.
    """

    def __init__(
        self, kubectl: Kubectl, name: str, seconds: float, jobs: Sequence[str] = (), deadline: int | None = None
    ) -> None:
        self.kubectl, self.name, self.seconds = kubectl, lease_of(name), seconds
        self.starting, self.deadline = list(jobs), deadline
        self.due = 0.0  # by the monotonic clock

    def renew(self) -> None:
        """Renew it if it is time. KubeError."""
        now = time.monotonic()
        if now >= self.due:
            self.kubectl.patch("configmap", [self.name], {"data": {NAME: timestamp(time.time())}})
            self.due = now + self.seconds / PART

    def note_running(self) -> None:
        """Take the time to start from the Jobs: from now on the guards in the pods keep the lease. KubeError.

        That time is no lease: Kubernetes 1.20 sets no new timer for a time that is moved on before it is over
        (its job_controller.go, AddAfter).
        """
        if self.starting:
            self.kubectl.patch("jobs.batch", self.starting, {"spec": {"activeDeadlineSeconds": self.deadline}})
            self.starting = []
