# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The look at a job that took too long or was silent, before its guard ends it: whom it waited for is in its result."""

from __future__ import annotations

import threading
from typing import Collection, Mapping, Sequence

from ..basics.bounded_write import write_in_thread
from ..basics.job_directory import JobDir
from ..transfer.fetched_files import LAST_LOOK
from ..types.evidence import ALL_EVIDENCE, Evidence
from ..types.forms import BadFrame
from ..types.orders import Order, Place
from ..types.reasons import EndReason
from ..types.records import End
from ..wire.protocol import Looked
from .hang import HUNG, Verdict, judge
from .looking import look

LOOKED_AT = (EndReason.TIMED_OUT, EndReason.HUNG, EndReason.CANCELLED, EndReason.LOST)  # by some of these, if silent
FILE = "evidence.json"  # in a job directory
BETWEEN_SECONDS = 0.4  # two looks: the job has had its time
PATIENCE_SECONDS = 0.3  # for another look to be over, which may go on for three seconds
MOST_SECONDS = 1.9  # that the end of the job waits for all of it: a disk may hang. Who holds the GIL needs 1.4 of it


def note_evidence(job: JobDir, order: Order) -> None:
    """Write what the ranks of this node do. It is done in a thread, and waited for no longer than MOST_SECONDS."""

    def note() -> None:
        try:
            job.write(FILE, look(job, order, seconds=BETWEEN_SECONDS, patience=PATIENCE_SECONDS))
        except OSError:  # the job ends all the same
            pass

    thread = threading.Thread(target=note, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the job has all threads that its user may have
        return
    thread.join(MOST_SECONDS)


def noted_evidence(job: JobDir) -> list[Evidence]:
    """Return what was written; nothing if a program of the job changed it beyond use."""
    try:
        return ALL_EVIDENCE(job.read(FILE))
    except (BadFrame, ValueError, OverflowError):
        return []


def looked_at_end(placement: Sequence[Place], evidence: Sequence[Evidence]) -> Looked:
    """Return what the look before the end of a job found of all ranks, with the nodes of which nothing is known."""
    hosts = dict.fromkeys(place["host"] for place in placement)
    told = {row["host"] for row in evidence}
    missing = [f"{host}: it told nothing when the job was ended" for host in hosts if host not in told]
    return {"kind": "looked", "placement": list(placement), "evidence": list(evidence), "missing": missing}


def keep_look(job: JobDir, order: Order, end: End | None, evidence: Sequence[Evidence]) -> None:
    """Write what the look before the end of a job found of all ranks, for the controller that fetches its files."""
    if end is None or end["reason"] not in LOOKED_AT or not evidence:
        return
    found = looked_at_end(order["placement"], evidence)
    write_in_thread(lambda: job.write(LAST_LOOK, found))


def verdict_at_end(
    end: End | None, evidence: Collection[Evidence], hosts: Mapping[int, str], before: Verdict | None = None
) -> Verdict | None:
    """Return who kept a job from going on that was looked at when it was ended, None if nobody is known to.

    `hosts` by rank; `before`: what looks had found for which it was ended.
    """
    if before and end and end["reason"] == EndReason.HUNG:
        return before
    if end is None or end["reason"] not in LOOKED_AT or not evidence:
        return None
    verdict = judge(evidence, hosts)
    return verdict if verdict.code in HUNG else None
