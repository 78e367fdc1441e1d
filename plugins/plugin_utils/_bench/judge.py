# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the figures of a bench are worth: against the smallest world, a stored baseline and a floor. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.backends import BACKENDS

from .cells import FAILED, IMPOSSIBLE, MEASURED, ONE_NODE, RDMA, TCP, Cell, Figures

NAMED_MOST = 20  # cells in a sentence
NEW, SAME, BETTER, WORSE, NONE = "new", "same", "better", "worse", ""
# Medians that differ by less than this part are the same, whatever the rounds say. Between two runs on GPUs a few
# percent are usual. Processors that others use too vary by far more (as in _health/speed.py).
NOISE = {"cuda": 0.05, "xpu": 0.05, "cpu": 0.25}


@dataclass(frozen=True)
class Verdict:
    """What a cell is worth. `code`: against the baseline. `efficiency`: of its bus bandwidth.

    `below`: whether it is below the floor.
    """

    code: str = NONE
    sentence: str = ""
    efficiency: float | None = None
    below: bool = False


@dataclass(frozen=True)
class Judged:
    """A cell with its verdict."""

    cell: Cell
    verdict: Verdict


def judge(cells: Sequence[Cell], baseline: Mapping[str, Figures], floor: float) -> list[Judged]:
    """Return the cells with their verdicts. `baseline`: by key. `floor`: of the bus bandwidth, in GB/s; 0: none."""
    floored = {cell.key for cell in largest(cells)}
    found = []
    for cell in cells:
        code, sentence = against(cell, baseline.get(cell.key))
        below = cell.key in floored and cell.busbw < floor
        found.append(Judged(cell, Verdict(code, sentence, efficiency(cell, cells), below)))
    return found


def largest(cells: Sequence[Cell]) -> list[Cell]:
    """Return the measured cells of the largest size of their case: smaller ones are bound by latency."""
    found: dict[str, Cell] = {}
    for cell in cells:
        name = cell.case.key(0)
        if cell.state == MEASURED and (name not in found or cell.size > found[name].size):
            found[name] = cell
    return list(found.values())


def against(cell: Cell, before: Figures | None) -> tuple[str, str]:
    """Return how a cell compares with the baseline, as code and sentence."""
    now = cell.figures
    if now is None:
        return NONE, ""
    if before is None:
        return NEW, "there is no baseline yet"
    change = before.seconds / now.seconds - 1  # of the rate
    shown = f"{change:+.0%} against the baseline"
    noise = NOISE.get(BACKENDS[cell.case.backend].device, NOISE["cuda"]) if cell.case.backend in BACKENDS else 0.0
    apart = now.seconds_min > before.seconds_max or now.seconds_max < before.seconds_min
    if not apart:
        return SAME, f"{shown}, and the rounds of both overlap"
    if abs(change) <= noise:
        return SAME, f"{shown}, less than the usual {noise:.0%}"
    return (BETTER if change > 0 else WORSE), f"{shown}, beyond all rounds of both"


def efficiency(cell: Cell, cells: Sequence[Cell]) -> float | None:
    """Return the bus bandwidth as a part of that of the smallest world, alike in all else; None for that one itself.

    With perfect scaling it is 1: an all-reduce of the same bytes has the same bus bandwidth on any number of ranks.
    """
    line = [other for other in line_of(cell, cells) if other.size == cell.size and other.busbw > 0]
    first = min(line, key=lambda other: other.case.ranks, default=None)
    if not cell.figures or first is None or first.case.ranks == cell.case.ranks:
        return None
    return cell.busbw / first.busbw


def line_of(cell: Cell, cells: Sequence[Cell]) -> list[Cell]:
    """Return the measured cells of the same launcher, backend and way; worlds of one node are of every way."""
    ways = {cell.case.way, ONE_NODE}
    alike = (cell.case.launcher, cell.case.backend)
    return [
        other
        for other in cells
        if other.state == MEASURED and (other.case.launcher, other.case.backend) == alike and other.case.way in ways
    ]


def merged(stored: Mapping[str, Figures], cells: Sequence[Cell], reset: bool) -> dict[str, Figures]:
    """Return the baseline to store: what it lacked; with `reset` all that was measured now."""
    now = {cell.key: cell.figures for cell in cells if cell.figures}
    return {**stored, **now} if reset else {**now, **stored}


def sentence(judged: Sequence[Judged]) -> str:
    """Return what became of the bench in one sentence."""
    cells = [row.cell for row in judged]
    states = {state: sum(cell.state == state for cell in cells) for state in (MEASURED, FAILED, IMPOSSIBLE)}
    codes = {code: sum(row.verdict.code == code for row in judged) for code in (BETTER, SAME, WORSE)}
    parts = [f"{states[MEASURED]} of {len(cells)} cells measured"]
    parts += [f"{states[FAILED]} failed"] * bool(states[FAILED])
    parts += [f"{states[IMPOSSIBLE]} cannot be measured here"] * bool(states[IMPOSSIBLE])
    parts += [f"{count} {code} than the baseline" for code, count in codes.items() if count and code != SAME]
    parts += [f"{codes[SAME]} as the baseline"] * bool(codes[SAME])
    below = sum(row.verdict.below for row in judged)
    parts += [f"{below} below the floor"] * bool(below)
    return ", ".join(parts)


def failure(judged: Sequence[Judged], floor: float) -> str:
    """Return why the playbook fails, with the names of the cells; an empty text if it does not."""
    failed = [row.cell for row in judged if row.cell.state == FAILED]
    below = [row.cell for row in judged if row.verdict.below]
    parts = [f"{named(failed, lambda cell: cell.cause)} failed"] if failed else []
    if below:
        rates = named(below, lambda cell: f"{cell.busbw:.3g} GB/s")
        parts.append(f"below bench_floor_gbps={floor:g}: {rates}")
    return "; ".join(parts)


def named(cells: Sequence[Cell], of: Callable[[Cell], str]) -> str:
    """Return the names of cells, each with something about it; of many only the first."""
    shown = [f"{cell.name} ({of(cell)[:300]})" for cell in cells[:NAMED_MOST]]
    more = f" and {len(cells) - NAMED_MOST} more" if len(cells) > NAMED_MOST else ""
    return "; ".join(shown) + more


def ways_of(cells: Sequence[Cell]) -> list[str]:
    """Return the ways between nodes that were measured."""
    return [way for way in (RDMA, TCP) if any(cell.case.way == way and cell.figures for cell in cells)]
