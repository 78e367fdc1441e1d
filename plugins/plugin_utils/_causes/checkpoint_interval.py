# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How often a job should save: from what a checkpoint took, as its program reports, and from how often jobs fail."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import open_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.earlier_attempts import (
    ATTEMPTS,
    RESULT,
    numbers_in,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Metric, Result

REPORTED = "checkpoint_seconds"  # the name by which a program tells it
ASSUMED_SECONDS = 86400.0  # between two failures, until there are enough records
FAILURES_LEAST = 3  # of the records, to believe them
RUNS_MOST, RESULT_BYTES = 200, 4 << 20  # of the records, the newest first
RUN_SECONDS_MOST = 1e9  # of a record that is believed
LONG_SECONDS = 600.0  # a run that failed before is one that was tried out


class Interval(TypedDict):
    """`checkpoint` of result.json. Times are in seconds."""

    seconds: float  # that a checkpoint took
    failure_every: float  # on as many nodes as the job had
    assumed: bool  # whether that is a guess
    save_every: float


def interval_of(result: Result, run_dir: Path) -> Interval | None:
    """Return how often the job should save; None if its program does not tell what a checkpoint takes."""
    cost = seconds_in(result["metrics"])
    if cost is None:
        return None
    measured = time_between_failures(run_dir, len({place["host"] for place in result["placement"]}))
    every = measured or ASSUMED_SECONDS
    return {
        "seconds": cost,
        "failure_every": round(every, 3),
        "assumed": measured is None,
        "save_every": round(best_interval(cost, every), 3),
    }


def best_interval(cost: float, failure_every: float) -> float:
    """Return the seconds of work between two checkpoints that lose the least time. `cost`: seconds of a checkpoint.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Comm. ACM 17(9), 1974: the square
    root of 2 C M. J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
    Generation Computer Systems 22(3), 2006, equation 37, adds what counts when a checkpoint is no longer short against
    the time M between two failures; from C = 2 M on it is M.
    """
    if cost >= 2 * failure_every:
        return failure_every
    part = cost / (2 * failure_every)
    return math.sqrt(2 * cost * failure_every) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def seconds_in(metrics: Mapping[str, Metric]) -> float | None:
    """Return what a checkpoint took by the last report; None for what is no such time."""
    value = metrics.get(REPORTED)
    if isinstance(value, (int, float)) and 0 < value < 1e9:
        return float(value)
    return None


def time_between_failures(run_dir: Path, nodes: int) -> float | None:
    """Return the seconds between two failures of a job on so many nodes, by the runs beside this one.

    None if there are too few. A failure is a lost node, or a run that failed after ten minutes.
    """
    seconds, failures = 0.0, 0
    for state, took, hosts in earlier_runs(run_dir.parent):
        seconds += took * hosts
        failures += state == "lost" or (state == "failed" and took >= LONG_SECONDS)
    return seconds / failures / nodes if failures >= FAILURES_LEAST and seconds else None


def earlier_runs(runs: Path) -> Iterator[tuple[str, float, int]]:
    """Yield state, seconds and number of nodes of the newest runs in a directory. What is no result is left out.

    A run that was started again in its own directory counts as often as it was started.
    """
    try:
        entries = [entry for entry in os.scandir(runs) if entry.is_dir(follow_symlinks=False)]
        entries.sort(key=lambda entry: -entry.stat(follow_symlinks=False).st_mtime)
    except OSError:
        return
    starts = (path for entry in entries[:RUNS_MOST] for path in starts_of(entry.path))
    for path in itertools.islice(starts, RUNS_MOST):
        try:
            with open(open_file(os.path.join(path, RESULT)), "rb") as file:
                found = json.loads(file.read(RESULT_BYTES))
            hosts = {str(place["host"]) for place in found["placement"]}
            took = float(found["seconds"])
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
            continue
        if 0 <= took <= RUN_SECONDS_MOST and hosts:
            yield str(found.get("state")), took, len(hosts)


def starts_of(run: str) -> list[str]:
    """Return where the results of a run are, the newest first: its own, and those of its earlier attempts."""
    earlier = os.path.join(run, ATTEMPTS)
    try:
        numbers = numbers_in(earlier)
    except OSError:
        numbers = []
    return [run, *(os.path.join(earlier, number) for number in reversed(numbers))]


def told(interval: Interval) -> str:
    """Return one line for people."""
    known = "assumed" if interval["assumed"] else "by the runs beside this one"
    every = f"with a failure every {short(interval['failure_every'])} ({known})"
    return f"a checkpoint took {short(interval['seconds'])}; {every} save every {short(interval['save_every'])}"


def short(seconds: float) -> str:
    """Return a time in its largest unit: "4.1 s", "14 min", "24 h"."""
    for least, unit, name in ((7200, 3600, "h"), (120, 60, "min")):
        if seconds >= least:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
