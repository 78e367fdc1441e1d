# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Several runs over each other: whether they can be compared, what differed, then their curves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .charts import LINES_MOST, Line, charts
from .comparable import obstacles
from .markup import Html, code, folded, join, span, table, tag
from .page import PAGE_BYTES, fitting, page
from .reading import PROGRESS
from .run import Run
from .sections import CHARTS_MOST, UNITS, digest, drawable, label, rank_of_name, section, value_of
from .verdict import verdict_of


def comparison(runs: Sequence[Run]) -> str:
    """Return the page that lays runs over each other."""
    warnings = [tag("p", f"! {text}", class_="warn") for text in cautions(runs)]
    title = tag("h1", tag("span", sentence(runs)))
    parts = [
        tag("header", tag("p", "torchfleet", class_="job"), title, *warnings, class_="verdict"),
        section("Runs", outcome_table(runs)),
        differences(runs),
        curves_over(runs),
    ]
    room = PAGE_BYTES - len(page("", "", ()).encode())
    return page(f"{len(runs)} runs", "", [join(fitting(parts, room))])


def sentence(runs: Sequence[Run]) -> str:
    """Return what differed between runs in one sentence."""
    names = list(differing(runs))
    if not names:
        return f"{len(runs)} runs, planned alike: same program, versions, nodes and network."
    shown = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"{len(runs)} runs, which differ in {shown}."


def cautions(runs: Sequence[Run]) -> list[str]:
    """Return a line for each reason why these runs cannot be compared."""
    return [f"Not comparable: {obstacle.text}" for obstacle in obstacles(runs)]


def differing(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return what is not the same in all runs: its name, and the value of each; empty where it is not recorded."""
    found = [digest(run) for run in runs]
    names = dict.fromkeys(name for values in found for name in values)
    rows = {name: [values.get(name, "") for values in found] for name in names}
    return {name: row for name, row in rows.items() if len(set(row)) > 1}


def outcome_table(runs: Sequence[Run]) -> Html:
    """Return what became of each run, and its last values."""
    names = sorted(
        {name for run in runs for name in run.metrics} - set(PROGRESS), key=lambda name: (rank_of_name(name), name)
    )
    names = names[:6]
    heads = [label(name) + (f", {UNITS[name]}" if name in UNITS else "") for name in names]
    rows = []
    for run in runs:
        state = tag("span", f"{verdict_of(run).mark} {run.state or 'unknown'}", class_=f"state {run.state}")
        took = span(run.seconds) if run.seconds is not None else ""
        rows.append(
            [code(run.job_id), state, took, str(run.world_size or ""), *(value_of(run, name) for name in names)]
        )
    return table(["run", "state", "took", "ranks", *heads], rows, "the runs and what became of them", "runs")


def differences(runs: Sequence[Run]) -> Html:
    """Return what differed, and, where one asks for it, what did not."""
    rows = differing(runs)
    heads = ["what", *(run.job_id for run in runs)]
    alike = [[name, value] for name, value in digest(runs[0]).items() if name not in rows]
    inside = table(heads, [[name, *map(code, row)] for name, row in rows.items()], "what differed") if rows else ""
    same = (
        folded(f"The same in all: {len(alike)}", table(["what", "value"], alike, "what is the same")) if alike else ""
    )
    return section("What differed", inside or tag("p", "Nothing that was planned."), same)


def curves_over(runs: Sequence[Run]) -> Html:
    """Return curves with one line for each run: the median of its ranks, each from its own first report."""
    names = sorted(
        {name for run in runs for name in run.series} - set(PROGRESS), key=lambda name: (rank_of_name(name), name)
    )
    found = [(label(name), lines, UNITS.get(name, "")) for name in names if drawable(lines := lines_of(runs, name))]
    more = f"Only the first {LINES_MOST} runs have curves." if len(runs) > LINES_MOST else ""
    said = tag("p", "The time is since the first report of each run.", class_="facts")
    return section("Curves", charts(found[:CHARTS_MOST]), said, tag("p", more), class_="whole") if found else Html("")


def lines_of(runs: Sequence[Run], name: str) -> list[Line]:
    """Return the curve of each run."""
    found = []
    for run in runs[:LINES_MOST]:
        ranks = run.series.get(name, {})
        if len(ranks) == 1:
            points = next(iter(ranks.values()))
        else:
            points = medians([point for rows in ranks.values() for point in rows], first_report(run), run.end)
        if points:
            found.append(Line(run.job_id, tuple((at - first_report(run), value) for at, value in points)))
    return found


def first_report(run: Run) -> float:
    """Return when the first rank reported: until then runs differ in what they wait for, and not in how they train."""
    first = [points[0][0] for ranks in run.series.values() for points in ranks.values() if points]
    return min(first, default=run.start)


def medians(points: list[tuple[float, float]], start: float, end: float) -> tuple[tuple[float, float], ...]:
    """Return the median of what several ranks reported at about the same time."""
    found: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        found.setdefault(int(200 * (point[0] - start) / (end - start)) if end > start else 0, []).append(point)
    return tuple(
        (max(at for at, _value in rows), statistics.median(value for _at, value in rows))
        for _place, rows in sorted(found.items())
    )
