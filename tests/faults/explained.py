"""Why a cell of the fault matrix is not as it should be, by cell or by row; and which faults are not in it, and why."""

from __future__ import annotations

from collections.abc import Mapping

# By "launcher row", or by "row" where it is the same under every launcher.
EXPLAINED: Mapping[str, str] = {}

NOT_HERE: Mapping[str, str] = {
    "F24 cleaned environment, closed descriptors": "in every cell: the daemon of each rank has neither",
    "F36 ranks that are gone at once": "in every cell: the next job's ranks leave at once",
    "F38 a neighbour, a second job": "in every cell: the bystanders",
    "F07 a time-out of the task": "the playbook's task has none; SIGKILL to its processes is there",
    "F40 clocks that differ": "lab nodes share one clock; clocks that differ are in `tests/unit/test_clock.py`",
    "a node whose own disk hangs": "lab nodes share this machine's disk; `frozen` has a process in state D",
}
