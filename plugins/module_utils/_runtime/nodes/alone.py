# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An exclusive job checks again while it is staged that no other job runs: one may have started since the survey.

Exclusive jobs are staged one at a time; other jobs do not wait for each other. The locks are files in the home of
torchfleet, which the kernel releases when the process that holds them is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Iterator, Mapping

from ..basics.file_locks import wait_for_lock
from ..basics.job_directory import JobDir, fits, jobs
from ..types.orders import Order
from ..types.records import RunningJob
from .survey import jobs_here

WHOLE_JOB = "head.lock"  # held on the head until all nodes have staged the job
ONE_NODE = "node.lock"  # held on a node while it stages its part; who holds it waits for no other lock
STAGING_LOCK_SECONDS = 60.0


class NotAlone(OSError):
    """Jobs that the survey had not found run here too. `running`: these jobs by host."""

    def __init__(self, running: Mapping[str, list[RunningJob]]) -> None:
        super().__init__("other jobs run here")
        self.running = running


@contextlib.contextmanager
def staging_lock(home: str, name: str, alone: bool) -> Iterator[None]:
    """Hold the staging lock, exclusively if the job is (`alone`). OSError after STAGING_LOCK_SECONDS."""
    path = os.path.join(home, name)
    descriptor = wait_for_lock(path, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, STAGING_LOCK_SECONDS)
    if descriptor is None:
        seconds = f"{STAGING_LOCK_SECONDS:.0f} s"
        raise OSError(f"another job is being staged, for more than {seconds}: it holds {path}")
    try:
        yield
    finally:
        os.close(descriptor)


def check_alone(order: Order) -> None:
    """NotAlone if this job or one that started after it was planned is exclusive, and both have ranks on this node."""
    if not order["ranks"]:
        return
    home = order["home"]
    new = {path: row for path, row in jobs_here(home, jobs(home)).items() if row["job_id"] not in order["known_jobs"]}
    rows = [row for path, row in new.items() if order["exclusive"] or is_alone(JobDir(path))]
    if rows:
        raise NotAlone({order["host"]: rows})


def is_alone(job: JobDir) -> bool:
    """Whether a job of this user is exclusive.

    Root may read the orders of all users, and anybody's process may name a directory as that of its job.
    """
    try:
        own = os.stat(job.path).st_uid == os.getuid()
    except OSError:  # it is gone by now
        return False
    order = job.read("order.json") if own else {}
    return fits(order, {"exclusive": bool}) and bool(order["exclusive"])
