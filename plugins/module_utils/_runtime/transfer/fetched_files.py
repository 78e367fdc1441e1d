# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of a finished job that the controller fetches: which they are, who may send them, what is left of them."""

from __future__ import annotations

import os
import time
from typing import Collection, Iterator

from ..basics.job_directory import FETCHED_MARK, JobDir, fits, remove
from ..stores.earlier_attempts import ATTEMPTS, METRICS, files_of_attempts, files_of_ranks
from ..types.reasons import FINAL_STATES, FinalState
from ..wire.frames import ATTEMPT, RANK_FILE
from ..wire.link import ConnectionLost
from ..wire.protocol import FromNode

USAGE = "usage.json"  # on the head: what its samplers read of all nodes
LAST_LOOK = "last_look.json"  # on the head: what the look before the end of a job found of all ranks


def mark_fetched(job: JobDir) -> None:
    """Mark a job as fetched and drop its files: the next clean.yml removes the rest."""
    for name in ("ranks", ATTEMPTS):
        remove(job.at(name))
    job.drop_ballast()
    open(job.at(FETCHED_MARK), "w").close()


def state_in(result: object) -> FinalState | None:
    """Return the state in a result.json, None if it has none: a program of the job may have written it."""
    said = result["state"] if fits(result, {"state": str}) else ""
    return next((state for state in FINAL_STATES if state == said), None)


def age(job: JobDir) -> float:
    """Return how many seconds ago a job ended, as far as its files tell."""
    for name in ("result.json", "order.json"):
        try:
            return max(0.0, time.time() - os.path.getmtime(job.at(name)))
        except OSError:
            continue
    return 0.0


def own_block(frame: FromNode, ranks: Collection[int], seen: set[str], restarts: int = 0) -> tuple[str, bool, bytes]:
    """Return name, whether it is the first, and bytes of a block of one of the node's own files; else ConnectionLost.

    `seen`: names that have come. Each file begins once, and each block after the first brings something. `restarts`:
    of the job.
    """
    if frame["kind"] != "file":
        raise ConnectionLost(f"it answered fetch with {frame['kind']}")
    name, first, data = frame["name"], frame["first"], frame["data"]
    if not may_be_fetched(name, ranks, restarts):
        raise ConnectionLost(f"it sent a file {name[:100]!r}, which does not belong to its ranks")
    if first == (name in seen) or not (first or data):
        raise ConnectionLost(f"it sent the file {name!r} more than once")
    seen.add(name)
    return name, first, data


def may_be_fetched(name: str, ranks: Collection[int], restarts: int = 0) -> bool:
    """Whether the controller may be sent a file of this name by a node with these ranks.

    A node that made up attempts would fill the controller's disk with files of no bytes. It may have as many as there
    were `restarts`, and one more: the head may have died while the next was prepared.
    """
    earlier = ATTEMPT.match(name)
    name = name[earlier.end() :] if earlier else name
    found = RANK_FILE.match(name)
    if earlier and int(earlier.group(1)) > restarts:
        return False
    return int(found.group(1)) in ranks if found else name == METRICS or (name == "launcher.out" and not earlier)


def files_of(job: JobDir) -> Iterator[str]:
    """Yield the names of a job's files on this node that the controller fetches. Only the head has some of all."""
    for name in ("launcher.out", METRICS):
        if os.path.exists(job.at(name)):
            yield name
    if os.path.exists(job.at("result.json")):
        yield from (name for name in (USAGE, LAST_LOOK) if os.path.exists(job.at(name)))
    yield from files_of_ranks(job)
    yield from files_of_attempts(job)
