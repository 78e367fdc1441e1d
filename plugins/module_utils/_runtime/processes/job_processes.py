# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The processes of a job on this node at one moment: whose they are, and what is below each rank."""

from __future__ import annotations

import os
from typing import Collection, NamedTuple

from ..basics.job_directory import JobDir
from ..software.launchers import is_started_elsewhere
from ..types.orders import Order
from ..types.records import RankRecord
from . import noted_processes
from . import processes as processes_module
from .ending import Trees, trees_below
from .processes import Children, Process


class Snapshot(NamedTuple):
    """The processes of a job on this node at one moment: /proc and the records are read once."""

    processes: list[Process]  # parents before children
    records: list[RankRecord]  # of this node's ranks
    trees: Trees
    ours: Collection[int]  # pids of wrappers, the launcher and its daemons

    @property
    def own(self) -> list[Process]:
        """Return our own processes and the launcher's, not the user's."""
        return [process for process in self.processes if process.pid in self.ours]

    @property
    def foreign(self) -> list[Process]:
        return [process for process in self.processes if process.pid not in self.ours]

    @property
    def unwritten(self) -> bool:
        """Whether a living wrapper has not yet recorded how its program ended."""
        return any("rc" not in record and record["wrapper_pid"] in self.trees for record in self.records)


def snapshot_of(job: JobDir, order: Order, excluded: Collection[int], launchers: Collection[int]) -> Snapshot:
    """Return the living processes of a job: those below this process, and ranks that a daemon of the node started.

    `excluded`: pids below this process outside the job; `launchers`: of the launcher and of what it started.
    """
    records = [record for rank in order["ranks"] for record in [job.record(rank)] if record]
    children = processes_module.by_parent()
    found = found_below(job, order, os.getpid(), children)
    if is_started_elsewhere(order) and any(row["wrapper_pid"] not in found for row in records):
        found = {**found, **orphans_of(job, children)}
    for pid in excluded:
        found.pop(pid, None)
    programs = {record["wrapper_pid"]: record.get("pid") for record in records}
    trees = trees_below({pid: programs[pid] for pid in programs if pid in found}, children)
    return Snapshot(list(found.values()), records, trees, {*launchers, *programs})


def orphans_of(job: JobDir, children: Children) -> dict[int, Process]:
    """Return by pid what has lost the wrapper that it was below, as far as it was noted: a daemon has no mark.

    Slurm kills wrappers too, also one that is about to end what its program has left.
    """
    tops = noted_processes.noted(job)
    return {process.pid: process for top in tops for process in (top, *processes_module.descendants(top.pid, children))}


def found_below(job: JobDir, order: Order, guard: int, children: Children) -> dict[int, Process]:
    """Return the living processes of a job by pid: those below its guard, and what a daemon of the node started."""
    found = {process.pid: process for process in processes_module.descendants(guard, children)}
    if is_started_elsewhere(order):
        marked = processes_module.marked(children)
        for top in [process for process, mark in marked if mark.job_dir == job.path]:
            for process in (top, *processes_module.descendants(top.pid, children)):
                found.setdefault(process.pid, process)
    return found
