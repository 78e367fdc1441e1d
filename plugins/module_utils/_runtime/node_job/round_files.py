# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of a job whose ranks torchrun's agents start again while it runs: a round has what an attempt has.

`<job>/attempts/<n>` has those of each round before, as of a job that its head starts again (earlier_attempts.py). What
belongs to the agents stays where it is. A rank of the next round takes its place in `ranks/`, which is there only when
order.json is that of this round.
"""

from __future__ import annotations

import os
from typing import Mapping, cast

from ..basics.job_directory import PIPES, JobDir, remove
from ..stores.earlier_attempts import ATTEMPTS, EARLIER_RESULT, METRICS, RESULT, drop, link_anew
from ..transfer.fetched_files import USAGE
from ..types.orders import Order
from ..types.reasons import FinalState
from ..types.restarts import told_of
from ..usage.sampler import USAGE_FILE

RANKS, BEGIN = "ranks", "begin.json"
# Not evidence.json: no round is looked at before it ends.
OF_ROUND = (RANKS, BEGIN, "end.json", "leftovers.json", METRICS, USAGE_FILE, USAGE, EARLIER_RESULT)
SHARED = ("order.json", "staging.json")  # those of the next round take their place: they are never missing


def order_of_round(first: Order, number: int, after: FinalState) -> Order:
    """Return the order of a round. `first`: that of round 0; `after`: the state of the round before."""
    given = first["environment"]
    environment = told_of(given, number, after) if first["ranks"] else given
    return cast(Order, {**first, "restarts": number, "environment": environment})


def turn(job: JobDir, order: Order, staging: Mapping[str, object]) -> None:
    """Move the files of the round that is over, and make the places of the next one. OSError.

    `order`, `staging`: of the next round.
    """
    if os.path.islink(job.at(ATTEMPTS)):
        raise OSError(f"{job.at(ATTEMPTS)} is a link")
    place = aside(job, order)
    os.makedirs(place, 0o700)
    for name in SHARED:
        link_anew(job.at(name), os.path.join(place, name))
    for name in OF_ROUND:
        if os.path.lexists(job.at(name)):
            os.rename(job.at(name), os.path.join(place, RESULT if name == EARLIER_RESULT else name))
    job.write("staging.json", staging)
    job.write("order.json", order)
    make_ranks(job, order)


def make_ranks(job: JobDir, order: Order) -> None:
    """Make a place for each rank, all at once: a rank that waits for its own finds a whole one. OSError."""
    new = job.at(RANKS + ".next")
    os.mkdir(new, 0o700)
    for rank in order["ranks"]:
        os.mkdir(os.path.join(new, str(rank)), 0o700)
        for name in PIPES.values():
            os.mkfifo(os.path.join(new, str(rank), name), 0o600)
    os.rename(new, job.at(RANKS))


def take_back(job: JobDir, order: Order) -> bool:
    """Undo turn() for a round that never began: the job is over with the round before. False: it had begun. OSError.

    The head tells all nodes or none that a round begins.
    """
    place = aside(job, order)
    if os.path.lexists(job.at(BEGIN)) or not os.path.isdir(place):
        return False
    for name in (*OF_ROUND, RANKS + ".next"):
        if os.path.lexists(job.at(name)):
            drop(job.at(name))
    for name in os.listdir(place):
        target = job.at(EARLIER_RESULT if name == RESULT else name)
        os.replace(os.path.join(place, name), target)
    remove(place)  # what is left are second names of what is in its place
    return True


def aside(job: JobDir, order: Order) -> str:
    """Return where the files of the round before are, if there was one."""
    return job.at(ATTEMPTS, str(order["restarts"] - 1))
