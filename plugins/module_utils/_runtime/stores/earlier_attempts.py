# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of a job that is started again in its directory: `<job>/attempts/<n>` has those of each attempt before.

The job's own tree (src/) stays where it is, with what its program wrote there. So do the lock, and what says which job
it is: whoever looks finds a job that runs, and whatever dies meanwhile, one that can be fetched.
"""

from __future__ import annotations

import os
import re
from typing import Iterator

from ..basics.job_directory import JobDir, fits, remove
from ..types.orders import Order, Staging
from ..wire.frames import ATTEMPT, RANK_FILE, RANK_FILES
from .job_files import LISTING, TREE

ATTEMPTS, LIST, METRICS = "attempts", "attempts.json", "metrics.jsonl"
RESULT, EARLIER_RESULT = "result.json", "attempt.json"  # of an attempt that is not the last: the job is not over
STAYS = frozenset((ATTEMPTS, LIST, TREE, LISTING, "lock", "ballast"))
REPLACED = frozenset(("order.json", "staging.json", "routes.json", "supervisor.json"))  # by those of the next attempt
NUMBER = re.compile(r"(0|[1-9][0-9]{0,6})\Z")
MOVING = ".moving"  # behind the number of an attempt whose files are being moved


def continues(job: JobDir, order: Order) -> bool:
    """Whether an order is that of the next attempt of the job in this directory.

    Or once more the same one: this node restarted before it was told to begin.
    """
    found, before = job.read_order(), order["restarts"] - 1
    return (
        fits(found, {"job_id": str, "controller": str, "restarts": int})
        and (found["job_id"], found["controller"]) == (order["job_id"], order["controller"])
        and (found["restarts"] == before or (found["restarts"] == before + 1 and is_aside(job, before)))
    )


def is_aside(job: JobDir, number: int) -> bool:
    """Whether the files of an attempt are out of the way."""
    return number >= 0 and os.path.lexists(job.at(ATTEMPTS, str(number)))


def set_aside(job: JobDir, number: int) -> None:
    """Move the files of an attempt that is over out of the way of the next one. OSError.

    It may have been interrupted before: it goes on, or what the next attempt had made by then is dropped.
    """
    if os.path.islink(job.at(ATTEMPTS)):
        raise OSError(f"{job.at(ATTEMPTS)} is a link")
    place, moving = job.at(ATTEMPTS, str(number)), job.at(ATTEMPTS, f"{number}{MOVING}")
    if is_aside(job, number):
        take_away(job)
        return
    os.makedirs(moving, 0o700, exist_ok=True)
    for name in os.listdir(job.path):
        if name in REPLACED:
            link_anew(job.at(name), os.path.join(moving, name))
        elif name not in STAYS:
            os.rename(job.at(name), os.path.join(moving, RESULT if name == EARLIER_RESULT else name))
    os.rename(moving, place)


def link_anew(path: str, link: str) -> None:
    """Give a file another name, in place of what has that. OSError."""
    if os.path.lexists(link):
        os.unlink(link)
    os.link(path, link, follow_symlinks=False)


def take_back(job: JobDir, number: int) -> None:
    """Undo set_aside(), and drop what the next attempt has made since. OSError."""
    take_away(job)
    place = job.at(ATTEMPTS, str(number))
    for name in os.listdir(place):
        found = os.path.join(place, name)
        os.rename(found, job.at(EARLIER_RESULT if name == RESULT else name))
        if os.path.lexists(found):  # both were names of one file, which rename() leaves as they are
            os.unlink(found)
    os.rmdir(place)


def take_away(job: JobDir) -> None:
    """Drop what an attempt has made that did not begin. OSError."""
    for name in os.listdir(job.path):
        if name not in STAYS and name not in REPLACED:
            drop(job.at(name))


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
        if not ATTEMPT.match(f"{ATTEMPTS}/{attempt}/{RESULT}"):
            continue
        for name in (RESULT, METRICS):
            if os.path.exists(job.at(ATTEMPTS, attempt, name)):
                yield f"{ATTEMPTS}/{attempt}/{name}"
        for name in files_of_ranks(job, ATTEMPTS, attempt):
            yield f"{ATTEMPTS}/{attempt}/{name}"


def files_of_ranks(job: JobDir, *place: str) -> Iterator[str]:
    """Yield the names of the files of ranks, below a place in the job's directory."""
    for rank in numbers_in(job.at(*place, "ranks")):
        for name in RANK_FILES:
            found = f"ranks/{rank}/{name}"
            if RANK_FILE.match(found) and os.path.exists(job.at(*place, found)):
                yield found


def numbers_in(directory: str) -> list[str]:
    """Return the names in a directory that are numbers as we write them, smallest first: programs may add others."""
    if os.path.islink(directory) or not os.path.isdir(directory):
        return []
    return sorted(filter(NUMBER.match, os.listdir(directory)), key=int)
