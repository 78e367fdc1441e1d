# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The processes of a job's ranks, noted while it runs: `clean.yml` knows them if all that looked after them are gone.

A daemon with an environment of its own carries no mark, and is below its rank's wrapper. If guard and supervisor are
killed together and the launcher kills the wrapper, nothing else tells whose it is.

A program of the job can write the note as well, perhaps from a container, in which it could end nothing else. So a note
alone ends nothing: the kernel must say that the process began after the job, and that who started it is gone.
"""

from __future__ import annotations

import os
import time
from typing import Iterable

from ..basics.job_directory import JobDir, field
from . import processes
from .processes import Process

FILE = "processes.json"  # in the job directory
MOST = 10_000
TICKS = os.sysconf("SC_CLK_TCK")
SLACK_SECONDS = 1.0  # by which a start may seem to be earlier than it was: both clocks count in steps


def here() -> list[str]:
    """Return within what a pid and a start mean one process: a boot, and a PID namespace."""
    return [processes.boot(), processes.namespace("self")]


def note(job: JobDir, found: Iterable[Process]) -> None:
    """Note processes in place of those that were noted before. OSError."""
    job.write(FILE, {"here": here(), "processes": [list(process.identity) for process in found][:MOST]})


def noted(job: JobDir) -> list[Process]:
    """Return the processes that were noted, live, and can be nobody's but this job's, as far as the kernel tells."""
    found = job.read(FILE)
    since = began(job)
    if since is None or not processes.boot() or field(found, "here", list) != here():
        return []  # after a boot another process has the number
    written = field(found, "processes", list) or []
    rows = [row for row in written[:MOST] if isinstance(row, list) and len(row) == 2]
    living = (processes.identified({"pid": pid, "started": started}) for pid, started in rows)
    return [process for process in living if process and process.state not in "ZX" and belongs(process, since)]


def belongs(process: Process, since: float) -> bool:
    """Whether a process can be one of a job that began at `since` (seconds since the epoch), and of no living parent.

    It is this user's: root's clean.yml ends nobody else's. What runs below a terminal, a service of ours or another job
    has its parent still.
    """
    try:
        own = os.stat(f"/proc/{process.pid}").st_uid == os.geteuid()
    except OSError:
        return False
    return own and start_of(process) > since - SLACK_SECONDS and is_orphan(process)


def began(job: JobDir) -> float | None:
    """Return when a job began, in seconds since the epoch; None if that is not known.

    It is when the lock of its directory was made, as the file system notes it (st_ctime, inode(7)): nobody but the
    system's administrator can make that earlier than it was.
    """
    try:
        return os.lstat(job.at("lock")).st_ctime
    except OSError:
        return None


def start_of(process: Process) -> float:
    """Return when a process began, in seconds since the epoch."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + process.started / TICKS


def is_orphan(process: Process) -> bool:
    """Whether the parent of a process is gone, so that the first process has it, or a user's own systemd.

    That one has orphans of a desktop. systemd puts itself, and nothing else, into the cgroup `init.scope`
    (systemd.special(7)).
    """
    if process.parent in (0, 1):  # 0: the parent is in another PID namespace
        return True
    try:
        with open(f"/proc/{process.parent}/cgroup") as file:
            return any(line.rstrip("\n").endswith("/init.scope") for line in file)
    except OSError:
        return False
