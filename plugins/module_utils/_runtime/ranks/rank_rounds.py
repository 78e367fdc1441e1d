# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How a rank that torchrun's agent starts again takes its place in the next round of a job (restart_by=torchrun).

An agent may be early: it starts its ranks again when a wrapper is killed, or when it hears of another agent. So a
wrapper waits until its rank's place is free, which the guard makes when the round before is over on all nodes.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, cast

from ..basics.job_directory import field

if TYPE_CHECKING:  # a rank must not pay for the types
    from ..basics.job_directory import JobDir
    from ..types.orders import Order

PAUSE_SECONDS = 0.02  # between two looks
RUNNING_SECONDS = 1.0  # between two looks whether the job still runs
EXIT_AGAIN = 76  # to the agent, of a rank whose round is over and another follows: to it a failure, so it starts all


def wait_for_place(job: JobDir, rank: int) -> Order | None:
    """Take the place of a rank, when it is free, and return the order of its round; None: the job is over."""
    look_at = 0.0
    while True:
        try:
            os.close(os.open(job.rank(rank, "taken"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except (FileExistsError, FileNotFoundError):  # of the round before; or that is moved just now
            if time.monotonic() >= look_at:
                if not job.running():
                    return None
                look_at = time.monotonic() + RUNNING_SECONDS
            time.sleep(PAUSE_SECONDS)
            continue
        except OSError:  # the disk is full: the record, which is written next, makes room
            pass
        return cast("Order", job.read("order.json"))


def is_followed(job: JobDir, order: Order) -> bool:
    """Whether another round follows that of this order."""
    now = field(job.read("order.json"), "restarts", int)  # a program may have written there
    return now is not None and now != order["restarts"]
