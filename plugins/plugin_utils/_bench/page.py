# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The page of a bench: one file that loads nothing, in the style of a report. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.markup import (
    Html,
    code,
    folded,
    join,
    table,
    tag,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.page import PAGE_BYTES, fitting, page
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.sections import icon, section

from .cells import FAILED, IMPOSSIBLE, ONE_NODE, WAYS, Cell, size_text
from .curves import log_chart
from .judge import WORSE, Judged, sentence
from .tables import HEADS, RDMA_HEADS, rdma_rows, rdma_title, row_of

CHARTS_MOST = 12
ROWS_MOST = 400
SOURCE = (
    "GB/s are 10^9 bytes a second. algbw = bytes / time; busbw = algbw x 2(n-1)/n for n ranks (NVIDIA nccl-tests, "
    "doc/PERFORMANCE.md). The time is the median of the rounds, each by the slowest rank. Scaling: busbw as a part of "
    "that of the smallest world."
)


def bench_page(bench_id: str, cluster: str, at: str, judged: Sequence[Judged], failed: str) -> str:
    """Return the page. `at`: when it was made; `failed`: why the playbook fails, empty if it does not."""
    cells = [row.cell for row in judged]
    worse = any(row.verdict.code == WORSE for row in judged)
    tone = "failed" if failed else "timed_out" if worse else "succeeded"
    parts = [
        head(bench_id, cluster, at, judged, failed, {"failed": "✕", "timed_out": "!"}.get(tone, "✓")),
        over_sizes(cells),
        over_ranks(cells),
        with_rdma(cells),
        not_measured(cells),
        all_cells(judged),
    ]
    room = PAGE_BYTES - len(page("", "", ()).encode())
    return page(bench_id, tone, [join(fitting(parts, room))])


def head(bench_id: str, cluster: str, at: str, judged: Sequence[Judged], failed: str, mark: str) -> Html:
    """Return the sentence and why the bench failed, if it did. `mark`: the sign of the verdict."""
    return tag(
        "header",
        tag("p", "torchfleet", tag("span", bench_id), tag("span", f"{cluster}, {at}"), class_="job"),
        tag("h1", icon(mark), tag("span", f"{sentence(judged)}.")),
        tag("blockquote", code(failed[:2000])) if failed else "",
        class_="verdict",
    )


def groups(cells: Sequence[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """Return the measured cells by launcher and backend."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.figures:
            found.setdefault((cell.case.launcher, cell.case.backend), []).append(cell)
    return found


def over_sizes(cells: Sequence[Cell]) -> Html:
    """Return the bus bandwidth over message sizes: charts by launcher and backend, a line for each world and way.

    Within a node an all-reduce may be ten times faster than between nodes: that has a chart of its own.
    """
    charts = []
    for (launcher, backend), own in groups(cells).items():
        for within, title in ((True, "within a node"), (False, "between nodes")):
            part = [cell for cell in own if (cell.case.way == ONE_NODE) == within]
            lines: dict[str, list[tuple[float, float]]] = {}
            for cell in sorted(part, key=lambda cell: (cell.case.ranks, cell.case.way, cell.size)):
                way = "" if within else f", {WAYS[cell.case.way]}"
                name = f"{cell.case.ranks} ranks ({cell.case.shape}){way}"
                lines.setdefault(name, []).append((cell.size, cell.busbw))
            charts.append(log_chart(f"{launcher}, {backend}, {title}", "GB/s", list(lines.items()), bytes_text))
    return charts_section("Bus bandwidth over message size", charts)


def bytes_text(size: float) -> str:
    """Return a size of the axis as one types it."""
    return size_text(round(size))


def over_ranks(cells: Sequence[Cell]) -> Html:
    """Return the bus bandwidth over the number of ranks, at the largest size: a line for each way between nodes."""
    charts = []
    for (launcher, backend), own in groups(cells).items():
        size = max(cell.size for cell in own)
        largest = sorted((cell for cell in own if cell.size == size), key=lambda cell: cell.case.ranks)
        within = [cell for cell in largest if cell.case.way == ONE_NODE]
        lines = []
        for way in dict.fromkeys(cell.case.way for cell in largest):
            line = [cell for cell in largest if cell.case.way == way]
            points = {float(cell.case.ranks): cell.busbw for cell in [*within, *line]}
            lines.append((WAYS[way], sorted(points.items())))
        if len({cell.case.ranks for cell in largest}) > 1:
            title = f"{launcher}, {backend}, {size_text(size)}"
            charts.append(log_chart(title, "GB/s", lines, lambda ranks: f"{ranks:.0f} ranks"))
    return charts_section("Bus bandwidth over ranks", charts)


def charts_section(title: str, charts: Sequence[Html]) -> Html:
    """Return a part with charts; nothing if there are none."""
    shown = [chart for chart in charts if chart]
    more = f"{len(shown) - CHARTS_MOST} more are only in the table." if len(shown) > CHARTS_MOST else ""
    if not shown:
        return Html("")
    return section(title, tag("div", *shown[:CHARTS_MOST], class_="charts"), tag("p", more) if more else "")


def with_rdma(cells: Sequence[Cell]) -> Html:
    """Return the table of RDMA and no RDMA."""
    rows = rdma_rows(cells)
    if not rows:
        return Html("")
    return section("RDMA or not", tag("p", f"{rdma_title(cells)}."), table(RDMA_HEADS, rows, "RDMA or not"))


def not_measured(cells: Sequence[Cell]) -> Html:
    """Return the cells without figures, each with its cause."""
    rows = [[cell.name, cell.state, cell.cause] for cell in cells if cell.state in (FAILED, IMPOSSIBLE)]
    title = f"Not measured: {len(rows)}"
    return section(title, table(["cell", "state", "cause"], rows[:ROWS_MOST], title, "reasons")) if rows else Html("")


def all_cells(judged: Sequence[Judged]) -> Html:
    """Return the table of all that was measured."""
    rows = [row_of(row) for row in judged if row.cell.figures]
    if not rows:
        return Html("")
    heads = [f"{name}, GB/s" if name in ("algbw", "busbw") else name for name in HEADS]
    more = tag("p", f"{len(rows) - ROWS_MOST} more are in bench.csv.") if len(rows) > ROWS_MOST else ""
    whole = table(heads, rows[:ROWS_MOST], "all cells", "cells")
    return section("All cells", whole, more, folded("How it is computed", tag("p", SOURCE)))
