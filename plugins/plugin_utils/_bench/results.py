# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files of a bench on the controller: a cell each, the baseline, and what a job of ours reported."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.report_file import keep_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.choice import CELLS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.files import (
    Absent,
    Unreadable,
    read_json,
    sampled_rows,
    text_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.writer import write_page

from .cells import GBIT_MOST, MEASURED, RDMA, Cell, Figures, cell_of, cell_report, figures_of, line_rate

JOBS = "jobs"  # in the directory of a bench, beside CELLS
NAMES = {"report": "report.html", "csv": "bench.csv"}
FILES_MOST = 100_000
NOT_USED = "RDMA was asked for, and most of the data went over the NIC"


def stored(directory: Path) -> dict[str, Cell]:
    """Return the cells that were measured before, by key. What is no cell is left out, and is measured again."""
    found = {}
    for path in sorted((directory / CELLS).glob("*.json"))[:FILES_MOST]:
        with contextlib.suppress(Unreadable):
            cell = cell_of(read_json(path))
            if cell and cell.state == MEASURED and cell.key == path.stem:
                found[cell.key] = cell
    return found


def store(directory: Path, cell: Cell) -> None:
    """Write the file of a cell, whole or not at all. InputError if it cannot be written."""
    keep_report("runs_dir", str(directory / CELLS / f"{cell.key}.json"), cell_report(cell))


class Reported:
    """What the job of a case reported: figures by size, wrong sums, the line rate and what carried the data.

    Nothing if there is no run directory.
    """

    def __init__(self, run_dir: Path | None) -> None:
        self.figures: dict[int, Figures] = {}
        self.wrong: set[int] = set()
        self.line: dict[str, float] = {}
        if run_dir is None:
            return
        with contextlib.suppress(Unreadable):
            rows, _some = sampled_rows(run_dir / "metrics.jsonl")
            for row in rows:
                if row.whole("rank") == 0:
                    self.line.update(
                        (name, value)
                        for name in ("nic_gbit", "rdma_gbit", "nic_sent_gb", "rdma_sent_gb")
                        if (value := row.number(name, 0)) is not None and value < GBIT_MOST
                    )
                    size, found = row.whole("bytes"), figures_of(row)
                    if size and found:
                        self.figures[size] = found
                        self.wrong |= {size} if row.number("wrong") != 0 else set()

    def line_gbit(self, way: str) -> float:
        """Return what carries the data of a way, in Gbit/s; 0 if it is not known."""
        return line_rate(self.line.get("rdma_gbit" if way == RDMA else "nic_gbit"))

    def note(self, way: str) -> str:
        """Return what is odd: data that did not go by RDMA though that was asked for."""
        nic, rdma = (self.line.get(name) for name in ("nic_sent_gb", "rdma_sent_gb"))
        return NOT_USED if way == RDMA and nic is not None and rdma is not None and nic > rdma else ""


def read_baseline(name: str, nodes: str) -> dict[str, dict[str, Figures]]:
    """Return the stored figures by cluster and key, `nodes` among them. InputError for a file that is no baseline."""
    try:
        clusters = read_json(Path(name).expanduser()).of("clusters")
    except Absent:
        return {nodes: {}}
    except Unreadable as error:
        wanted = f"{error}: remove the file, or give the path of another"
        raise InputError("bench_baseline", name, wanted) from None
    except RuntimeError as error:  # no such ~user
        raise InputError("bench_baseline", name, f"{error}: give the path of a file") from None
    found: dict[str, dict[str, Figures]] = {nodes: {}}
    for cluster in list(clusters.value)[:1000]:
        rows = clusters.of(cluster)
        all_figures = {key: figures_of(rows.of(key)) for key in rows.value}
        found[cluster] = {key: figures for key, figures in all_figures.items() if figures}
    return found


def keep_baseline(name: str, clusters: Mapping[str, Mapping[str, Figures]]) -> str:
    """Write the baseline and return its path. InputError if that fails."""
    rows = {
        cluster: {key: figures.__dict__ for key, figures in sorted(cells.items())}
        for cluster, cells in clusters.items()
    }
    return keep_report("bench_baseline", name, {"clusters": rows})


def cause_of(answer: Mapping[str, object]) -> str:
    """Return why a job failed in one line, from the answer of the action; an empty text if it did not."""
    if not answer.get("failed"):
        return ""
    return text_of(str(answer.get("msg") or "the job failed"), 2000).removeprefix(
        f"job {answer.get('job_id')} failed: "
    )


def directory_of(runs_dir: str, bench_id: str) -> Path:
    """Return the directory of a bench, which may not be there yet. InputError if something else is."""
    try:
        path = Path(runs_dir).expanduser().absolute() / bench_id
        if path.exists() and not (path / CELLS).is_dir():
            raise InputError("bench_id", bench_id, f"{path} exists, and no bench wrote it: choose another id")
    except (OSError, RuntimeError) as error:
        raise unusable(runs_dir, error) from None
    return path


def make_directory(path: Path) -> None:
    """Make the directory of a bench, for its user alone, if it is not there. InputError if it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        (path / CELLS).mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise unusable(str(path.parent), error) from None


def unusable(runs_dir: str, error: Exception) -> InputError:
    """Return the error for a directory of runs that cannot be used."""
    reason = getattr(error, "strerror", None) or error
    return InputError("runs_dir", runs_dir, f"{reason}: -e runs_dir=<a directory of yours>")


def write_all(directory: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Write the page and the CSV, and return their paths. InputError if they cannot be written."""
    written = {}
    for name, text in texts.items():
        path = directory / NAMES[name]
        try:
            write_page(path, text)
        except OSError as error:
            raise InputError("runs_dir", str(path), f"{error.strerror}: make room, or choose another") from None
        written[name] = str(path)
    return written
