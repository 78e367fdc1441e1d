# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A run in the text format of Prometheus, for the textfile collector of node_exporter.

The format: prometheus.io/docs/instrumenting/exposition_formats. All are gauges in base units: a run is over and counts
no more. One file has one run, which torchfleet_run_info names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from .run import Run

ROWS_MOST = 4096  # of one metric


def text_of(run: Run) -> str:
    """Return the metrics of a run."""
    info = {"job_id": run.job_id, "state": run.state, "backend": run.backend, "launcher": run.launcher}
    ranks = [({"rank": str(row.rank), "node": row.host}, row) for row in run.ranks[:ROWS_MOST]]
    nodes = [({"node": host}, found) for host, found in list(run.figures.items())[:ROWS_MOST]]
    values = {name: value for name, value in run.metrics.items() if isinstance(value, float)}
    families: list[tuple[str, str, Iterable[tuple[Mapping[str, str], float | None]]]] = [
        ("run_info", "Which run this is.", [(info, 1.0)]),
        ("run_succeeded", "Whether every rank succeeded.", [({}, float(run.state == "succeeded"))]),
        ("run_seconds", "How long the run took.", [({}, run.seconds)]),
        ("run_end_timestamp_seconds", "When the run ended, since the epoch.", [({}, run.ended)]),
        ("run_ranks", "How many ranks it had.", [({}, float(run.world_size))]),
        ("reported", "What ranks reported last.", [({"name": name}, value) for name, value in values.items()]),
        ("rank_cpu_seconds", "CPU time of a rank.", [(labels, row.cpu_seconds) for labels, row in ranks]),
        ("rank_memory_peak_bytes", "Memory of a rank at most.", [(labels, row.peak_bytes) for labels, row in ranks]),
        *(
            (f"node_{name}", said, [(labels, found.get(key)) for labels, found in nodes])
            for name, key, said in NODE_FIGURES
        ),
    ]
    return "".join(family(f"torchfleet_{name}", said, rows) for name, said, rows in families)


NODE_FIGURES = (
    ("cpu_seconds", "cpu_seconds", "CPU time of the ranks of a node."),
    ("cpu_ratio", "cpu_efficiency", "That time, of what the cores could have done."),
    ("memory_peak_bytes", "memory_peak", "Memory of the ranks of a node at most."),
    ("network_mean_bytes_per_second", "nic_mean", "What the network of a node carried, in its busier direction."),
    ("network_peak_bytes_per_second", "nic_peak", "The same at most."),
    ("gpu_ratio", "gpu_share", "Share of the time in which the GPUs of a node worked."),
)


def family(name: str, said: str, rows: Iterable[tuple[Mapping[str, str], float | None]]) -> str:
    """Return a metric with its samples; nothing if it has none."""
    known = [(labels, value) for labels, value in rows if value is not None]
    if not known:
        return ""
    lines = [f"# HELP {name} {said}", f"# TYPE {name} gauge"]
    return "\n".join([*lines, *(f"{name}{braces(labels)} {number(value)}" for labels, value in known)]) + "\n"


def braces(labels: Mapping[str, str]) -> str:
    """Return labels with their values escaped."""
    pairs = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def escaped(value: str) -> str:
    """Return the value of a label: backslash, quote and line end are escaped."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    """Return a number as Go reads it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
