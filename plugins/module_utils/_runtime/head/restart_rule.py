# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a job is started again: one rule for controllers that follow a job, and for the head of a detached one."""

from __future__ import annotations

import math
import re
from typing import Mapping, Sequence

from ..types.reasons import NoteCode
from ..types.records import Metric, Note, Result
from ..types.restarts import Ended, Rule

PAUSE_SECONDS = 5.0  # between two tries
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0  # seconds before the next attempt: doubled by each failure without progress
FAILURES_MOST = 2  # of a node: then it is kept out
QUICK_SECONDS = 60.0  # of an attempt that failed before it can have done much: a large model takes longer to load
# How Python tells of an exception (traceback.format_exception_only), with the prefix that torch puts before it.
EXCEPTION = re.compile(r"(?:\[rank\d+\]: ?)?([A-Za-z_][A-Za-z0-9_.]{0,200})(?::|\Z)")

# What torch raises where a GPU failed; most exceptions are the program's own.
OF_A_NODE = ("torch.AcceleratorError",)


def goes_on(ended: Sequence[Ended], rule: Rule) -> bool:
    """Whether a job is started again after these attempts.

    Not for a third time if it failed twice in a row in the same way, and nothing shows progress in between. A program
    that saved its work, or a node that was lost, is no failure of the job.
    """
    last = ended[-1]
    if len(ended) > rule["most"] or last["state"] not in rule["states"]:
        return False
    return len(ended) < 2 or not is_repeated(ended[-2], last)


def is_repeated(before: Ended, last: Ended) -> bool:
    """Whether an attempt failed as the one before it did, and had not come further."""
    if (before["state"], last["state"]) != ("failed", "failed") or before["failure"] != last["failure"]:
        return False
    return not came_further(before, last)


def came_further(before: Ended, last: Ended) -> bool:
    """Whether an attempt shows progress after the one before it: by what was reported, else by the time it ran."""
    if before["progress"] is None:
        return last["progress"] is not None or last["seconds"] >= QUICK_SECONDS
    return last["progress"] is not None and last["progress"] > before["progress"]


def pause_before_next(ended: Sequence[Ended]) -> float:
    """Return the seconds to wait before the next attempt: none after one that had saved its work and asks for it.

    Else they double with each attempt in a row that shows no progress: what is broken outside the job (a file server,
    a switch) needs time, and a job that fails at once is no load. Kubernetes starts a pod again by the same rule, after
    10 s to 5 min (kubernetes.io, Pod Lifecycle).
    """
    failures = 0
    for number in range(len(ended) - 1, -1, -1):
        if ended[number]["state"] == "saved":
            break
        failures += 1
        if number and came_further(ended[number - 1], ended[number]):
            break
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 30)) if failures else 0.0


def kept_out(ended: Sequence[Ended]) -> list[str]:
    """Return the nodes that failed twice: no later attempt has ranks there."""
    blamed = [row["node"] for row in ended if row["node"]]
    return [node for node in dict.fromkeys(blamed) if blamed.count(node) >= FAILURES_MOST]


def kept_out_text(nodes: Sequence[str]) -> str:
    """Return why these nodes have no ranks any more."""
    return f"{', '.join(nodes)} failed {FAILURES_MOST} times (lost, or a signal or a GPU's error ended a rank there)"


def not_again(reason: str) -> Note:
    """Return the note of a job that was not started again."""
    return {"code": NoteCode.NOT_STARTED_AGAIN, "text": f"it was not started again: {reason}"}


def not_without(nodes: Sequence[str]) -> Note:
    """Return the note of a job that would need other nodes than these: a plan with those is made by the controller."""
    return not_again(f"{kept_out_text(nodes)}; look at it, and start the job again without it")


def ended_of(job_id: str, result: Result) -> Ended:
    """Return what the rule needs to know of an attempt."""
    return {
        "job_id": job_id,
        "state": result["state"],
        "failure": failure_of(result),
        "progress": progress_of(result["metrics"]),
        "seconds": result["seconds"],
        "node": node_of(result),
    }


def node_of(result: Result) -> str:
    """Return the node that is to blame for the end of a job; empty: none is, or there is no other."""
    failure = result["first_failure"]
    hosts = {place["host"] for place in result["placement"]} if failure else set()
    if failure is None or len(hosts) < 2 or failure["host"] not in hosts:
        return ""
    row = next((row for row in result["ranks"] if row["rank"] == failure["rank"]), None)
    found = EXCEPTION.match(failure["message"])
    by_itself = result["state"] == "failed" and row is not None and row["state"] == "failed"  # and not by us
    killed = by_itself and row is not None and row["signal"] is not None
    broken = result["state"] == "failed" and found is not None and found.group(1) in OF_A_NODE
    return failure["host"] if result["state"] == "lost" or killed or broken else ""


def failure_of(result: Result) -> str:
    """Return the text by which failures are compared, without times, addresses and ranks: they always differ."""
    failure = result["first_failure"]
    if failure is None:
        return ""
    row = next((row for row in result["ranks"] if row["rank"] == failure["rank"]), None)
    ended = (row["rc"], row["signal"]) if row else (result["rc"], None)
    found = EXCEPTION.match(failure["message"])
    return " ".join(str(part) for part in (*ended, found.group(1) if found else "") if part not in (None, ""))


def progress_of(metrics: Mapping[str, Metric]) -> list[float] | None:
    """Return the last epoch and step that were reported, in this order; None if neither was."""
    values = [metrics.get(name) for name in ("epoch", "step")]
    numbers = [float(value) if isinstance(value, (int, float)) and is_small(value) else None for value in values]
    return None if numbers == [None, None] else [0.0 if number is None else number for number in numbers]


def is_small(value: float) -> bool:
    """Whether a number fits into a float. A whole number may have thousands of digits."""
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)
