# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of a job that is started again in its own directory: `<job>/attempts/<n>` has those of each attempt before.

The job's own tree (src/) stays where it is, with what its program wrote there. So does the lock: whoever looks finds a
job that runs.
"""

from __future__ import annotations

import os
from typing import Iterator

from .frames import RANK_FILE
from .job_directory import JobDir, fits, remove
from .job_files import LISTING, TREE
from .orders import Order, Staging

ATTEMPTS, LIST = "attempts", "attempts.json"
RESULT, EARLIER_RESULT = "result.json", "attempt.json"  # of an attempt that is not the last: the job is not over
STAYS = frozenset((ATTEMPTS, LIST, TREE, LISTING, "lock"))
RANK_FILES = ("stdout", "stderr", "record.json")


def continues(job: JobDir, order: Order) -> bool:
    """Whether an order is that of the next attempt of the job in this directory."""
    found = job.read_order()
    return (
        fits(found, {"job_id": str, "controller": str, "restarts": int})
        and (found["job_id"], found["controller"]) == (order["job_id"], order["controller"])
        and found["restarts"] + 1 == order["restarts"]
    )


def set_aside(job: JobDir, number: int) -> None:
    """Move the files of an attempt that is over out of the way of the next one. OSError."""
    if os.path.islink(job.at(ATTEMPTS)):
        raise OSError(f"{job.at(ATTEMPTS)} is a link")
    place = job.at(ATTEMPTS, str(number))
    os.makedirs(place, 0o700)
    for name in os.listdir(job.path):
        if name not in STAYS:
            os.rename(job.at(name), os.path.join(place, RESULT if name == EARLIER_RESULT else name))
    JobDir(place).drop_ballast()


def take_back(job: JobDir, number: int) -> None:
    """Undo set_aside(), and drop what the next attempt has made since. OSError."""
    for name in os.listdir(job.path):
        if name not in STAYS:
            drop(job.at(name))
    place = job.at(ATTEMPTS, str(number))
    for name in os.listdir(place):
        os.rename(os.path.join(place, name), job.at(EARLIER_RESULT if name == RESULT else name))
    os.rmdir(place)


def drop(path: str) -> None:
    """Take away whatever a path is. OSError."""
    if os.path.isdir(path) and not os.path.islink(path):
        remove(path)
    else:
        os.unlink(path)


def first_staging(job: JobDir) -> Staging | None:
    """Return what this node added to the order of the first attempt: since then the job has written files."""
    return JobDir(job.at(ATTEMPTS, "0")).staging() or job.staging()


def files_of_attempts(job: JobDir) -> Iterator[str]:
    """Yield the names of what the controller fetches of a job's earlier attempts."""
    if os.path.exists(job.at(LIST)):
        yield LIST
    for attempt in numbers_in(job.at(ATTEMPTS)):
        if os.path.exists(job.at(ATTEMPTS, attempt, RESULT)):
            yield f"{ATTEMPTS}/{attempt}/{RESULT}"
        for rank in numbers_in(job.at(ATTEMPTS, attempt, "ranks")):
            for name in RANK_FILES:
                found = f"{ATTEMPTS}/{attempt}/ranks/{rank}/{name}"
                if RANK_FILE.search(found) and os.path.exists(job.at(found)):
                    yield found


def numbers_in(directory: str) -> list[str]:
    """Return the names in a directory that are numbers, smallest first."""
    if os.path.islink(directory) or not os.path.isdir(directory):
        return []
    return sorted((name for name in os.listdir(directory) if name.isdigit()), key=int)
