# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lease of a pod: a file that changes as long as the controller lives. A pod whose lease is over ends its part.

Else the ranks of a controller that was killed would go on, unseen, for as long as their program does.
"""

from __future__ import annotations

import time

NAME = "renewed"  # of the file: a key of a ConfigMap
# Seconds beyond the lease. The kubelet brings a changed ConfigMap into a pod when it looks at that pod next: every 60
# to 90 seconds (Kubernetes docs, syncFrequency; its source adds up to a half).
DELAY_SECONDS = 120.0
LOOK_SECONDS = 1.0
BYTES = 64  # of the file that count


class PodLease:
    """What is known of the lease. `seconds`: without a change of the file after which it is over."""

    def __init__(self, path: str, seconds: float) -> None:
        self.path, self.seconds = path, seconds
        self.changed = self.looked = time.monotonic()
        self.content = self.read()

    def read(self) -> bytes | None:
        """Return what is in the file, None if it cannot be read: that renews nothing."""
        try:
            with open(self.path, "rb") as file:
                return file.read(BYTES)
        except OSError:
            return None

    def is_over(self) -> bool:
        """Whether the file has not changed for so long."""
        now = time.monotonic()
        if now - self.looked > LOOK_SECONDS:
            self.looked, found = now, self.read()
            if found is not None and found != self.content:
                self.content, self.changed = found, now
        return now - self.changed > self.seconds
