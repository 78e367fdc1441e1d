# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The jobs that a head knows, as people read them: a table, and what to type for one of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import open_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import printable
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.job_rows import Ahead, JobRow
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.queue_messages import Queued, Restarted
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

from .view import ETA_MOST, describe, fraction, rendered

if TYPE_CHECKING:
    from rich.table import Table

RUNNING, WAITING = "running", "waiting"
LINES, END_BYTES = 10, 1 << 14  # of each stream that are shown
COLUMNS = ("job", "state", "owner", "ranks", "on", "time", "progress")
WHOLE = ("job", "state", "ranks")  # never folded: people copy them and look for them


def detached_line(job_id: str, head: str, waits: bool = False) -> str:
    """Return what to type to follow a detached job, or to end it."""
    play = f"ansible-playbook playbooks/jobs.yml -e job_id={job_id}"
    does = f"waits in the queue of {head}" if waits else f"runs on {head}"
    return f"job {job_id} {does} without this terminal; follow it: {play} -e do=attach; end it: -e do=cancel"


def waits_line(job_id: str, ahead: int, first: Ahead | None) -> str:
    """Return what a job in the queue waits for."""
    if first is None:
        return f"job {job_id} waits: none is ahead, its nodes are looked at"
    does, did = ("runs", "has run") if first["state"] == RUNNING else ("waits", "has waited")
    how = f"{did} for {duration(first['seconds'])}" if first["seconds"] else does
    return f"job {job_id} waits: {ahead} ahead, the first is {first['job_id']} of {first['owner']}, which {how}"


def restart_line(job_id: str, state: str, restarts: int, most: int) -> str:
    """Return that a job is started again."""
    return f"job {job_id} {state}: restart {restarts} of at most {most}"


def news_of(job_id: str) -> Callable[[Queued | Restarted], str]:
    """Return a function from the frame that tells of a job in the queue, or of a restart, to its line."""

    def line(frame: Queued | Restarted) -> str:
        if frame["kind"] == "restarted":
            return restart_line(job_id, frame["state"], frame["restarts"], frame["most"])
        return waits_line(job_id, frame["ahead"], frame["first"])

    return line


def job_table(rows: Sequence[JobRow], head: str, width: int) -> str:
    """Return the table of jobs, or a line if there are none."""
    if not rows:
        return f"{head} knows no job: none runs, and clean.yml has removed those that were fetched"
    from rich.text import Text

    table = empty_table()
    for row in rows:
        table.add_row(*(Text(cell) for cell in cells(row)))
    return rendered(table, width)


def empty_table() -> Table:
    """Return the table without rows."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, no_wrap=name in WHOLE, overflow="fold", min_width=len(name) if name == "owner" else None)
    return table


def cells(row: JobRow) -> tuple[str, ...]:
    """Return one row of the table."""
    return (
        row["job_id"],
        row["state"] + (f", restart {row['restarts']}" if row["restarts"] else ""),
        row["owner"] + (", you" if row["own"] else ""),
        str(row["ranks"]),
        fold_names(row["hosts"]),
        times(row),
        progress(row),
    )


def told_row(row: JobRow) -> dict[str, object]:
    """Return a row as the task returns it: with the share that is done, and the seconds that are left."""
    kept = {name: value for name, value in row.items() if name not in ("before", "paced_seconds")}
    return {**kept, "progress": fraction(row["values"]), "seconds_left": seconds_left(row)}


def progress(row: JobRow) -> str:
    """Return how far a job has come by what its ranks reported last: "25%  step 1/4  loss 0.5"."""
    done = fraction(row["values"])
    return "  ".join([*([] if done is None else [f"{done:.0%}"]), describe(row["values"])])


def place_of(rows: Sequence[JobRow], job_id: str) -> int:
    """Return the place of a job in the queue, 0 if it does not wait."""
    return next((row["position"] for row in rows if row["job_id"] == job_id and row["state"] == WAITING), 0)


def times(row: JobRow) -> str:
    """Return how long a job runs, and will; its place in the queue; or when it ended, and whether files are there."""
    took = duration(row["seconds"])
    if row["state"] == WAITING:
        return f"{took}, place {row['position']}"
    if row["state"] != RUNNING:
        return f"{took} ago" + ("" if row["fetched"] else ", not fetched")
    left = seconds_left(row)
    return took + ("" if left is None else f", {duration(left)} left")


def seconds_left(row: JobRow) -> float | None:
    """Return how long a job that runs will still do so, at its pace since the first report. None if it is not known.

    What was done before that report does not count: a job that resumes half way has not done that half in a second.
    """
    done, before = fraction(row["values"]), fraction(row["before"])
    if row["state"] != RUNNING or done is None or before is None or done <= before:
        return 0.0 if row["state"] == RUNNING and done == 1.0 else None
    left = row["paced_seconds"] / (done - before) * (1 - done)
    return left if left < ETA_MOST else None


def duration(seconds: float) -> str:
    """Return a time in the two largest units that it has: "3 d 4 h", "2 h 5 min", "12 s"."""
    whole = max(0, round(seconds))
    for size, name, next_size, next_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // next_size} {next_name}"
    return f"{whole} s"


def last_lines(run_dir: Path, placement: Sequence[tuple[int, str]], shown: Collection[int] | None) -> list[str]:
    """Return the end of what ranks wrote, each line with its rank and host. `shown`: None for all ranks."""
    lines = []
    for rank, host in placement:
        for stream in ("stdout", "stderr") if shown is None or rank in shown else ():
            found = end_of(run_dir / "ranks" / str(rank) / stream)
            lines += [f"[{rank}@{host}] {printable(line)}" for line in found]
    return lines


def end_of(path: Path) -> list[str]:
    """Return the last lines of a file, of a few KiB at most; nothing if it is not there."""
    try:
        with open(open_file(str(path)), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - END_BYTES))
            return file.read(END_BYTES).decode(errors="replace").splitlines()[-LINES:]
    except OSError:
        return []
