# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ranks report: a row each in metrics.jsonl, and the last values for the result."""

from __future__ import annotations

import json
import os
import time
from typing import Collection, cast

from ..basics.job_directory import NUMBER, JobDir, fits, open_file, remove
from ..types.job_rows import FirstReport
from ..types.orders import Order
from ..wire.frames import refuse_constant
from .output_lines import Follower, Value

ROWS = 1000  # that are written at once
NAMES = 1000  # of which the result has the last value
ROW_BYTES = 1 << 18  # of one row; a report is a line of 4 KiB at most
FIRST_BYTES = 1 << 17  # of the file, in which the first report of progress is looked for
PROGRESS = ("step", "steps", "epoch", "epochs")  # names of values that say how far a job has come
TOTALS = {"steps", "epochs"}


def open_new(path: str) -> int:
    """Open a new file for writing, in place of what a rank put there. Links are removed, never followed. OSError.

    A file that is emptied in place could be a link, also a hard one, to a file of the user's; a pipe would block us.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError:  # a directory
        remove(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


class LastValues:
    """The last value of each name that ranks report."""

    def __init__(self) -> None:
        self.last: dict[str, Value] = {}
        self.rank_of: dict[str, int] = {}

    def add(self, rank: int, values: dict[str, Value]) -> None:
        """Take one report."""
        for name, value in values.items():
            self.note(name, rank, value)

    def note(self, name: str, rank: int, value: Value) -> None:
        """Take one value. Of several ranks that report the same name the lowest counts."""
        if name not in self.last and len(self.last) >= NAMES:  # its rows are in the file all the same
            return
        if rank <= self.rank_of.get(name, rank):
            self.rank_of[name], self.last[name] = rank, value


class Metrics(LastValues):
    """Collects reports: each one a row of metrics.jsonl, the last value of each name for the result."""

    def __init__(self, job: JobDir) -> None:
        super().__init__()
        self.file = open_new(job.at("metrics.jsonl"))
        self.rows: list[str] = []  # that are not in the file yet

    def add(self, rank: int, values: dict[str, Value]) -> None:
        """Take one report; flush() writes it."""
        self.rows.append(json.dumps({**values, "time": round(time.time(), 3), "rank": rank}))
        if len(self.rows) >= ROWS:
            self.flush()
        super().add(rank, values)

    def flush(self) -> None:
        """Write what was taken: many rows at once, a write for each costs as much as all the rest."""
        try:
            os.write(self.file, "".join(row + "\n" for row in self.rows).encode())
        except OSError:  # a full disk ends the job by the rank that hits it, not by its metrics
            pass
        self.rows.clear()


def last_values(job: JobDir, order: Order) -> dict[str, Value]:
    """Return what this node's ranks reported last, from the end of their output; nothing is written."""
    found = LastValues()
    for rank in order["ranks"]:
        path = job.rank(rank, "stdout")
        Follower(path, rank, "stdout", False, lambda _line: None, found.add).look(last=True, until=0.0)
    return found.last


def first_report(job: JobDir) -> FirstReport | None:
    """Return the first report that says how much there is to do, from the begin of metrics.jsonl. None without one.

    Programs of the job may have written that file, too.
    """
    try:
        with open(open_file(job.at("metrics.jsonl")), "rb") as file:
            rows = file.read(FIRST_BYTES).splitlines()
    except OSError:
        return None
    for row in rows:
        try:
            found = json.loads(row, parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            continue
        if fits(found, {"time": NUMBER}) and TOTALS & found.keys():
            numbers = cast("dict[str, float]", found)  # those that fit
            values: dict[str, Value] = {name: numbers[name] for name in PROGRESS if fits(found, {name: NUMBER})}
            return {"time": float(numbers["time"]), "values": values}
    return None


def final_metrics(job: JobDir, order: Order) -> Metrics:
    """Read the reports of this node's ranks again, for when the supervisor that had followed them is gone."""
    metrics = Metrics(job)
    for rank in order["ranks"]:
        Follower(job.rank(rank, "stdout"), rank, "stdout", False, lambda _line: None, metrics.add).look(last=True)
    metrics.flush()
    return metrics


class OwnRows:
    """Filters another node's metrics.jsonl to the rows of its own ranks. Blocks of it may end anywhere."""

    def __init__(self, ranks: Collection[int]) -> None:
        self.ranks, self.begun = ranks, b""

    def take(self, block: bytes) -> bytes:
        """Return the whole rows to forward. ValueError for a row without an end."""
        *rows, self.begun = (self.begun + block).split(b"\n")
        if len(self.begun) > ROW_BYTES:
            raise ValueError("a row without an end")
        return b"".join(row + b"\n" for row in rows if self.own(row))

    def own(self, row: bytes) -> bool:
        """Whether a row says that it is of a rank of that node."""
        try:
            rank = json.loads(row, parse_constant=refuse_constant)["rank"]
        except (ValueError, LookupError, TypeError, RecursionError):
            return False
        return type(rank) is int and rank in self.ranks
