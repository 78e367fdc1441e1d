# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A bench as text: tables for the terminal, CSV for programs. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.findings import text_table
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.markup import number

from .cells import MEASURED, ONE_NODE, RDMA, TCP, WAYS, Cell, size_text, time_text
from .judge import Judged

HEADS = (
    "ranks",
    "nodes",
    "launcher",
    "backend",
    "way",
    "size",
    "time",
    "algbw",
    "busbw",
    "of line",
    "scaling",
    "verdict",
)
COLUMNS = (
    *("ranks", "shape", "nodes", "launcher", "backend", "way", "bytes", "state"),
    *("seconds", "seconds_min", "seconds_max", "algbw_gbytes_per_s", "busbw_gbytes_per_s", "busbw_gbit_per_s"),
    *(
        "line_gbit_per_s",
        "line_share",
        "scaling_efficiency",
        "verdict",
        "below_floor",
        "cause",
        "note",
        "run_dir",
        "at",
    ),
)


def share_text(part: float | None) -> str:
    """Return a part as percent, an empty text for none."""
    return "" if part is None else f"{part:.0%}"


def row_of(row: Judged) -> list[str]:
    """Return the words of a cell in a table; rates in GB/s."""
    cell, case = row.cell, row.cell.case
    where = [str(case.ranks or ""), case.shape if case.nodes else "", case.launcher, case.backend, WAYS[case.way]]
    where[4] = where[4] if case.nodes else ""
    if not cell.figures:
        return [*where, size_text(cell.size), "", "", "", "", "", f"{cell.state}: {cell.cause}"]
    verdict = f"{row.verdict.code}: {row.verdict.sentence}" if row.verdict.sentence else row.verdict.code
    notes = ["below the floor"] * row.verdict.below + [cell.note] * bool(cell.note)
    rates = (f"{cell.algbw:.3g}", f"{cell.busbw:.3g}", share_text(cell.share), share_text(row.verdict.efficiency))
    return [*where, size_text(cell.size), time_text(cell.figures.seconds), *rates, "; ".join([verdict, *notes])]


def table_lines(judged: Sequence[Judged], width: int) -> list[str]:
    """Return the table of all cells for the terminal."""
    heads = [f"{head} GB/s" if head in ("algbw", "busbw") else head for head in HEADS]
    return text_table(heads, [row_of(row) for row in judged], width)


def rdma_rows(cells: Sequence[Cell]) -> list[list[str]]:
    """Return rows of world, then busbw and algbw with RDMA and without, in Gbit/s, at the largest size; empty: none.

    A world of one node has the same figures on both sides: the network carries nothing of it.
    """
    measured = [cell for cell in cells if cell.state == MEASURED]
    size = max((cell.size for cell in measured), default=0)
    found: dict[tuple[str, str, int, str], dict[str, Cell]] = {}
    for cell in measured:
        if cell.size == size:
            place = (cell.case.launcher, cell.case.backend, cell.case.ranks, cell.case.shape)
            found.setdefault(place, {})[cell.case.way] = cell
    rows = []
    for (launcher, backend, ranks, shape), ways in sorted(found.items()):
        sides = [ways.get(way, ways.get(ONE_NODE)) for way in (RDMA, TCP)]
        rates = [word for side in sides for word in gbit_words(side)]
        rows.append([f"{ranks} ({shape})", launcher, backend, *rates])
    return rows


def gbit_words(cell: Cell | None) -> tuple[str, str]:
    """Return busbw and algbw in Gbit/s."""
    return (number(8 * cell.busbw), number(8 * cell.algbw)) if cell else ("-", "-")


RDMA_HEADS = ("ranks", "launcher", "backend", "RDMA busbw", "RDMA algbw", "no RDMA busbw", "no RDMA algbw")


def rdma_title(cells: Sequence[Cell]) -> str:
    """Return what the table of RDMA is about."""
    size = max((cell.size for cell in cells if cell.figures), default=0)
    return f"Gbit/s of an all-reduce of {size_text(size)}"


def rdma_lines(cells: Sequence[Cell], width: int) -> list[str]:
    """Return the table of RDMA and no RDMA for the terminal."""
    return [f"{rdma_title(cells)}:", *text_table(RDMA_HEADS, rdma_rows(cells), width)]


def csv_text(judged: Sequence[Judged]) -> str:
    """Return all cells as CSV: one header, then a row for each; times in seconds, rates as the header says."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in judged:
        writer.writerow([harmless(value) for value in csv_values(row)])
    return out.getvalue()


def csv_values(row: Judged) -> list[object]:
    """Return the values of a cell in the order of COLUMNS; an empty text where there is none."""
    cell, case, times = row.cell, row.cell.case, row.cell.figures
    rates = (cell.algbw, cell.busbw, 8 * cell.busbw) if times else ("", "", "")
    return [
        *(case.ranks, case.shape if case.nodes else "", " ".join(case.nodes), case.launcher, case.backend, case.way),
        *(cell.size, cell.state),
        *((times.seconds, times.seconds_min, times.seconds_max) if times else ("", "", "")),
        *rates,
        *(cell.line_gbit or "", value_or_none(cell.share), value_or_none(row.verdict.efficiency), row.verdict.code),
        *(row.verdict.below, cell.cause, cell.note, cell.run_dir, cell.at),
    ]


def value_or_none(value: float | None) -> object:
    """Return a number, or an empty text."""
    return "" if value is None else round(value, 4)


def harmless(value: object) -> object:
    """Return a value that no spreadsheet takes for a formula (OWASP, CSV injection)."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
