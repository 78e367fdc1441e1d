# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ends what jobs left on this node and takes away their directories. A job that still runs is not touched.

At the end of a job, its guard ends its processes: guard.py, ending.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from typing import TypedDict

from ..basics.job_directory import JobDir, jobs, remove
from ..containers import containers
from ..processes import noted_processes, processes
from ..software import batch_system
from ..stores.file_store import KEPT_DAYS, Store
from ..stores.job_files import TREE, outputs, remove_tree
from ..types.records import Leftover

PRIVATE = re.compile(r"/torchfleet-[0-9a-f]{16}\Z")  # a directory that a launcher had for itself (see node_job)
CANCEL_SECONDS = 12.0  # how long a running job may take to end when it is named


class Ended(Leftover):
    job_id: str


class Outputs(TypedDict):
    """What a program left in the tree of its job."""

    job_id: str
    path: str
    files: int
    bytes: int


class StoreCleared(TypedDict):
    files: int
    bytes: int


class Reaped(TypedDict):
    """What was ended and removed. Lists of texts are job ids, unless said."""

    ended: list[Ended]
    containers: list[str]  # names of those whose jobs are over
    unseen: list[containers.UnseenEngine]  # which may have more of these
    cancelled: list[str]  # the job that was named, if it ran
    removed: list[str]
    outputs: list[Outputs]  # of jobs that are kept because of them
    store: StoreCleared
    runtimes: list[str]  # removed versions of our own code
    running: list[str]
    waiting: list[str]  # to be fetched
    known: bool  # whether this node has, or had until now, the job that was named


def reap(home: str, job_id: str = "", dry_run: bool = False, drop_outputs: bool = False) -> Reaped:
    """End this user's leftovers under a torchfleet home; a job named by `job_id` is ended even if it runs.

    A job whose program left files in its tree is kept unless `drop_outputs`. With `dry_run` nothing is changed, and the
    report says what would be ended and removed.
    """
    named = JobDir(os.path.join(home, "jobs", job_id))
    found = os.path.isdir(named.path)
    cancelled = [job_id] if job_id and found and named.running() else []
    if cancelled and not dry_run:
        cancel(named)
    known = jobs(home)
    running = [job.job_id for job in known if job.running()]
    over = [job for job in known if job.job_id not in running]
    done = [job for job in over if job.is_fetched()]
    rows = look(home) if dry_run else end_leftovers(home)
    boxes, unseen = containers.end_left(home, dry_run)
    kept = [] if drop_outputs else [row for job in done for row in [outputs_of(job)] if row["files"]]
    gone = [job for job in done if job.job_id not in [row["job_id"] for row in kept]]
    for job in over:
        clear(job, whole=job in gone, waits=job not in done, dry_run=dry_run)
    files, size = Store(home).clear(dry_run=dry_run)
    runtimes = unused_runtimes(home)
    for name in [] if dry_run else runtimes:
        remove(os.path.join(home, "lib", name))
    return {
        "ended": rows,
        "containers": boxes,
        "unseen": unseen,
        "cancelled": cancelled,
        "removed": [job.job_id for job in gone],
        "outputs": kept,
        "store": {"files": files, "bytes": size},
        "runtimes": runtimes,
        "running": running,
        "waiting": [job.job_id for job in over if job not in done],
        "known": found,
    }


def unused_runtimes(home: str) -> list[str]:
    """Return the versions of our code that no job here uses, and that were not started for KEPT_DAYS.

    What a start that was cut off left is among them.
    """
    library, since = os.path.join(home, "lib"), time.time() - KEPT_DAYS * 86400
    named = json.dumps([job.read("order.json") for job in jobs(home)])
    try:
        with os.scandir(library) as entries:
            old = [entry.name for entry in entries if entry.stat(follow_symlinks=False).st_mtime < since]
    except OSError:
        return []
    return sorted(name for name in old if name not in named)


def outputs_of(job: JobDir) -> Outputs:
    files, size = outputs(job)
    return {"job_id": job.job_id, "path": job.at(TREE), "files": files, "bytes": size}


def cancel(job: JobDir) -> None:
    """Ask the supervisor of a running job to end it, and wait until it has; one that does not is killed.

    Its guard then does the rest.
    """
    noted = job.read("supervisor.json")
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = processes.identified(noted) if job.running() else None
        if process is None:
            return
        processes.send(process, number)
        deadline = time.monotonic() + CANCEL_SECONDS
        while job.running() and time.monotonic() < deadline:
            time.sleep(0.05)


def leftovers(home: str) -> list[tuple[processes.Process, str]]:
    """Return this user's processes of jobs that nobody looks after, whatever their home, each with its job id.

    Also what has no mark, and is below one that has, or was noted: a program may start it with its own environment.
    """
    children = processes.by_parent()
    marked = processes.marked(children)
    found = [
        (process, mark.job_id)
        for process, mark in marked
        if not JobDir(mark.job_dir or os.path.join(home, "jobs", mark.job_id)).running()
    ]
    found += containers.monitors(home)
    apart = {process.pid for process, _mark in marked} | processes.ancestors(children) | {os.getpid()}
    over = [job for job in jobs(home) if not job.running()]
    known = [(process, job.job_id) for job in over for process in noted_processes.noted(job)]
    found += [(process, job_id) for process, job_id in known if process.pid not in apart]
    here = processes.namespace("self")
    unmarked = {pid: [child for child in below if child.pid not in apart] for pid, below in children.items()}
    for process, job_id in list(found):
        below = processes.descendants(process.pid, unmarked)  # never through a process of another job
        found += [(child, job_id) for child in below if processes.namespace(child.pid) == here]
    return found


def look(home: str) -> list[Ended]:
    """Return the rows that end_leftovers would, with nothing ended."""
    rows = leftovers(home)
    return [{"pid": p.pid, "job_id": job, "command": processes.command_of(p.pid), "ended": None} for p, job in rows]


def end_leftovers(home: str) -> list[Ended]:
    """End the processes of jobs that nobody looks after."""
    found: dict[tuple[int, int], tuple[processes.Process, str]] = {}

    def left() -> list[processes.Process]:
        """Return what lives of all that was ever found: what has no mark is not below its parent for long."""
        found.update((process.identity, (process, job_id)) for process, job_id in leftovers(home))
        return [process for process, _job_id in found.values() if lives(process)]

    rows = processes.end_all(left, grace=2.0)
    owner = {process.pid: job_id for process, job_id in found.values()}
    return [
        {"pid": row["pid"], "command": row["command"], "ended": row["ended"], "job_id": owner.get(row["pid"], "?")}
        for row in rows
    ]


def lives(process: processes.Process) -> bool:
    """Whether a process is still there, and no zombie."""
    now = processes.read(process.pid)
    return bool(now and now.identity == process.identity and now.state not in "ZX")


def clear(job: JobDir, whole: bool, waits: bool, dry_run: bool) -> None:
    """Take away the private temporary directory of a job that is over, and all of it if it is `whole`.

    One that `waits` to be brought home may still be in a batch system's queue: it is taken from there.
    """
    if dry_run:
        return
    staging = job.staging()
    if staging and PRIVATE.search(staging["private_tmp"]):  # a program of the job may name another directory
        remove(staging["private_tmp"])
    if waits:
        batch_system.cancel(job)
    if whole:
        remove_tree(job)
        remove(job.path)
