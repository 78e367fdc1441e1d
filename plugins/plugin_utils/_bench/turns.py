# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which cells are done, which are next, and what is said about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.markup import count, span

from .cells import FAILED, IMPOSSIBLE, MEASURED, ONE_NODE, Case, Cell, size_text, time_text
from .results import Reported

WRONG_SUM, NOT_REPORTED, JOB_FAILED = "wrong_sum", "not_reported", "job_failed"


class Turns:
    """The cells of a bench in order: each case with its sizes. `before`: cells that are measured already, by key."""

    def __init__(self, cases: Sequence[Case], sizes: Sequence[int], before: Mapping[str, Cell]) -> None:
        self.places = [(case, size) for case in cases for size in sizes]
        self.found: dict[str, Cell] = {}
        for case, size in self.places:
            earlier = before.get(case.key(size))
            if case.code:
                self.found[case.key(size)] = Cell(case, size, IMPOSSIBLE, code=case.code, cause=case.reason)
            elif earlier and earlier.case.nodes == case.nodes and earlier.case.counts == case.counts:
                self.found[case.key(size)] = earlier
        self.kept = sum(cell.state == MEASURED for cell in self.found.values())
        self.total = len(self.places) - len(self.impossible)
        self.shown = self.kept
        self.jobs = 0  # that are over
        self.seconds = 0.0  # that they took

    @property
    def impossible(self) -> list[Cell]:
        """Return the cells that cannot be measured."""
        return [cell for cell in self.found.values() if cell.state == IMPOSSIBLE]

    @property
    def known(self) -> list[Cell]:
        """Return the cells of which it is known what became of them, in order."""
        keys = dict.fromkeys(case.key(size) for case, size in self.places)
        return [self.found[key] for key in keys if key in self.found]

    def todo(self) -> list[tuple[Case, list[int]]]:
        """Return the jobs to run: each case with the sizes that are not known."""
        left: dict[Case, list[int]] = {}
        for case, size in self.places:
            if case.key(size) not in self.found:
                left.setdefault(case, []).append(size)
        return list(left.items())

    def opening(self, bench_id: str, asks_for_rdma: bool = False) -> list[str]:
        """Return the lines before the first job: how much there is to do, and what cannot be measured, and why."""
        jobs = len(self.todo())
        kept = f"{self.kept} done, " if self.kept else ""
        lines = [f"bench {bench_id}: {count(self.total, 'cell')}, {kept}{count(jobs, 'job')} to run"]
        cannot = dict.fromkeys((cell.case.name, cell.cause) for cell in self.impossible)
        alone = dict.fromkeys(case.name for case, _size in self.places if case.way == ONE_NODE and case.nodes)
        once = [f"measured once, because one node uses no network: {name}" for name in alone if asks_for_rdma]
        return [*lines, *(f"not measured: {name}: {cause}" for name, cause in cannot), *once]

    def next_job(self, case: Case, sizes: Sequence[int]) -> str:
        """Return the line before a job."""
        most = self.jobs + len(self.todo())
        return f"job {self.jobs + 1}/{most}: {case.name}: {', '.join(map(size_text, sizes))}"

    def take(self, cells: Iterable[Cell], seconds: float) -> list[str]:
        """Take the cells of a job that is over, and return a line for each."""
        self.jobs, self.seconds = self.jobs + 1, self.seconds + seconds
        taken = list(cells)
        self.found.update((cell.key, cell) for cell in taken)
        lines = []
        for cell in taken:
            self.shown += 1
            lines.append(f"cell {self.shown}/{self.total}: {cell.name}: {outcome(cell)}")
        jobs = len(self.todo())
        return [*lines[:-1], *(f"{line}{self.left(jobs)}" for line in lines[-1:])]

    def left(self, jobs: int) -> str:
        """Return how long the rest will take, by what jobs took until now; nothing at the end."""
        return f"; about {span(self.seconds / self.jobs * jobs)} left" if jobs else ""


def outcome(cell: Cell) -> str:
    """Return what became of a cell in a few words."""
    if not cell.figures:
        return f"{cell.state}: {cell.cause}"
    share = f", {cell.share:.0%} of the line rate" if cell.share is not None else ""
    note = f"; {cell.note}" if cell.note else ""
    return f"{cell.busbw:.3g} GB/s bus bandwidth in {time_text(cell.figures.seconds)}{share}{note}"


def cells_of_job(case: Case, sizes: Sequence[int], told: Reported, error: str, run_dir: str, at: str) -> list[Cell]:
    """Return the cells of a job that is over. `error`: why the job failed, empty if it did not.

    Sizes that were measured before the failure stand.
    """
    cells = []
    for size in sizes:
        figures = told.figures.get(size)
        if size in told.wrong:
            code, cause = WRONG_SUM, f"the sums of some ranks are wrong: {run_dir}/ranks/0/stdout"
        elif figures:
            code, cause = "", ""
        else:
            code, cause = (JOB_FAILED, error) if error else (NOT_REPORTED, "the job succeeded and reported no figures")
        state = FAILED if code else MEASURED
        line, note = told.line_gbit(case.way), told.note(case.way)
        cells.append(Cell(case, size, state, None if code else figures, line, code, cause, note, run_dir, at))
    return cells
