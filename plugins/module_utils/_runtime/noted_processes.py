# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The processes of a job's ranks, noted while it runs: `clean.yml` knows them if all that looked after them are gone.

A daemon with an environment of its own carries no mark, and is below its rank's wrapper. If guard and supervisor are
killed together and the launcher kills the wrapper, nothing else tells whose it is.
"""

from __future__ import annotations

import os
from typing import Iterable

from . import processes
from .job_directory import JobDir, field
from .processes import Process

FILE = "processes.json"  # in the job directory
MOST = 10_000


def here() -> list[str]:
    """Return within what a pid and a start mean one process: a boot, and a PID namespace."""
    return [processes.boot(), processes.namespace("self")]


def note(job: JobDir, found: Iterable[Process]) -> None:
    """Note processes in place of those that were noted before. OSError."""
    job.write(FILE, {"here": here(), "processes": [list(process.identity) for process in found][:MOST]})


def noted(job: JobDir) -> list[Process]:
    """Return the processes that were noted and still live, of this user. A program of the job may have written them."""
    found = job.read(FILE)
    if not processes.boot() or field(found, "here", list) != here():  # after a boot another process has the number
        return []
    written = field(found, "processes", list) or []
    rows = [row for row in written[:MOST] if isinstance(row, list) and len(row) == 2]
    living = (processes.identified({"pid": pid, "started": started}) for pid, started in rows)
    return [process for process in living if process and process.state not in "ZX" and is_own(process.pid)]


def is_own(pid: int) -> bool:
    """Whether a process is this user's: root's clean.yml ends nobody else's."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False
