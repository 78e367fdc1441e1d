# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The record that a rank leaves: how it is read, and what it says of its rank."""

from __future__ import annotations

import re
from typing import Mapping

from ..basics.job_directory import JobDir, open_file, rows_of
from ..hooks.group_note import END
from ..types.orders import JobOrder
from ..types.reasons import EXIT_SAVED, ITS_WRAPPER_DIED, RankError, RankState, exit_text, signal_name
from ..types.records import End, Leftover, RankRecord
from .output_lines import last_line

NOTE_BYTES = 4096  # of what a rank notes of its process groups: a line for each that is larger than all before


def records_of(job: JobDir, order: JobOrder) -> dict[int, RankRecord]:
    """Return the records on this node by rank, also of ranks that the plan has elsewhere."""
    ranks = [place["rank"] for place in order["placement"]]
    found = {rank: record for rank in ranks for record in [job.record(rank)] if record}
    for rank, record in found.items():
        record.pop("group", None)
        group = group_of(job, rank)
        if group is not None:
            record["group"] = group
    return found


def group_of(job: JobDir, rank: int) -> int | None:
    """Return the size of the largest process group that a rank used, 0 for none; None if that is not known."""
    try:
        with open(open_file(job.rank(rank, "group")), "rb") as file:
            words = file.read(NOTE_BYTES).decode(errors="replace").split()
    except OSError:
        return None
    sizes = [int(word) for word in words if re.match(r"[0-9]{1,7}\Z", word)]
    return max(sizes, default=0) if END in words else None


def record_of_orphan(record: RankRecord, ended: float, ended_tick: float) -> RankRecord:
    """Return the record of a rank whose wrapper died before it could write how its program ended."""
    return {
        **record,
        "ended": ended,
        "ended_tick": ended_tick,
        "rc": 1,
        "signal": None,
        "finished": False,
        "error_code": RankError.WRAPPER_DIED,
        "error": ITS_WRAPPER_DIED,
    }


def misplaced_record(record: RankRecord, host: str) -> RankRecord:
    """Return the record of a rank that came up on the wrong host: it failed, whatever it says."""
    if record.get("error_code") == RankError.MISPLACED:
        return record
    return {**record, "error_code": RankError.MISPLACED, "error": f"placement: the rank came up on {host}"}


def leftovers_of(job: JobDir, records: Mapping[int, RankRecord]) -> list[Leftover]:
    """Return what outlived its rank on this node, ended by the guard or by a rank that has none above it."""
    found = job.leftovers()
    return found + [row for record in records.values() for row in rows_of(record.get("leftovers"))]


def last_line_of(job: JobDir, rank: int, record: RankRecord | None) -> tuple[str, str]:
    """Return stream and text of a rank's last line: of stderr if it did not succeed, else of stdout."""
    names = ["stdout", "stderr"] if record and record.get("rc") == 0 else ["stderr", "stdout"]
    lines = [(name, last_line(job.rank(rank, name))) for name in names]
    return next(((name, line) for name, line in lines if line), lines[0])


def rank_state(record: RankRecord | None, end: End | None) -> RankState:
    """Return what became of a rank.

    succeeded, failed, saved (it asks to be run again), ended (by us, after something else), or silent (no record).
    """
    if record is None:
        return "silent"
    if record.get("error_code") == RankError.MISPLACED:
        return "failed"
    if record.get("ended_by_us", ended_by_us(record, end)):
        return "ended"  # also with status 0: a program that saves its state on SIGTERM was not done
    if has_saved(record):
        return "saved"
    return "succeeded" if record.get("rc") == 0 or record.get("finished") else "failed"


def has_saved(record: RankRecord) -> bool:
    """Whether a rank exited with the status that means: my work is saved, run me again."""
    return record.get("rc") == EXIT_SAVED and not record.get("error_code") and not record.get("finished")


def ended_by_us(record: RankRecord, end: End | None) -> bool:
    """Whether a rank of this node ran until we ended the job; by the monotonic clock if both times have it.

    Or until torchrun's agent stopped it, which does that for another rank of the job.
    """
    if end is None:
        return False
    if record.get("stopped") is True:
        return True
    ended, ordered = record.get("ended_tick"), end.get("tick")
    if isinstance(ended, float) and isinstance(ordered, float):
        return ended > ordered
    return bool(record.get("ended", end["at"] + 1) > end["at"])


def ended_at(record: RankRecord) -> float:
    """Return when a rank ended, in seconds since the epoch; 0 if that is not recorded.

    Its start plus monotonic time: a clock that is set during the job does not change the order.
    """
    began, ended = record.get("started_tick"), record.get("ended_tick")
    if isinstance(began, float) and isinstance(ended, float):
        return record["started"] + ended - began
    return float(record.get("ended", 0.0))


def how_it_failed(record: RankRecord | None) -> str:
    """Return how a rank failed in a few words."""
    if record is None:
        return "never started"
    if record.get("error"):
        return str(record["error"])
    number = record.get("signal")
    if number:
        return f"killed by {signal_name(number)}"
    return exit_text(record["rc"]) if "rc" in record else ITS_WRAPPER_DIED
