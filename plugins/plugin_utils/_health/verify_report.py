# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What verify shows: tables on the terminal, and the report as plain values. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric import link_matrix
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.fabric_types import Measured
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

from . import findings as findings_module
from . import speed as speed_module
from .drift import drift_report, drift_table
from .findings import Finding
from .rail_links import links, summary
from .run_results import Run
from .speed import Speed
from .trial import ALL_REDUCE, BURN_IN, Trial
from .verify import Outcome

VERSION = 1  # of the report
MANY_NODES = 12  # above this only a summary of the matrix is shown; the report has it all
FIGURES = ("ranks", "GB/s", "over")


def round_trips(measured: Mapping[str, Sequence[Measured]]) -> dict[tuple[str, str], float]:
    """Return the shortest round trip of each pair in microseconds, for both orders of the pair."""
    trips = {}
    for name, rows in measured.items():
        for row in rows:
            if not row["error"]:
                trips[name, row["node"]] = trips[row["node"], name] = float(row["rtt_us"])
    return trips


def matrix_table(outcome: Outcome) -> list[str]:
    """Return a table of Mbit/s from row to column and microseconds of a round trip; only a summary for many nodes."""
    rates, trips = link_matrix.rates(outcome.measured, outcome.trial.network), round_trips(outcome.measured)
    if not rates:
        return []
    names = list(outcome.trial.steps)
    least, middle = min(rates, key=lambda pair: rates[pair]), statistics.median(rates.values())
    pace = f"median {middle:,.0f} Mbit/s, slowest {rates[least]:,.0f} ({least[0]} -> {least[1]})"
    title = (
        f"{outcome.trial.network}, {len(rates)} links: {pace}, round trip {statistics.median(trips.values()):.0f} us"
    )
    titles = [title, *kept_text(outcome.trial)]
    if len(names) > MANY_NODES:
        return titles

    def cell(one: str, two: str) -> str:
        return f"{rates[one, two]:,.0f} / {trips[one, two]:.0f}" if (one, two) in rates else "-"

    rows = [[one, *(cell(one, two) for two in names)] for one in names]
    return [*titles, *findings_module.text_table(["Mbit/s / us", *names], rows)]


def kept_text(trial: Trial) -> list[str]:
    """Return a line that says which links were not tested, and since when; none if all were."""
    if not trial.kept:
        return []
    names = fold_names([name for name in trial.steps if any(name in pair for pair in trial.kept)])
    kept = f"{2 * len(trial.kept)} of them were not tested again, for their nodes have not changed: {names}"
    return [f"{kept}; all were on {trial.kept_at}. -e verify_all=true tests all"]


def of(run: Run) -> tuple[str, str]:
    """Return launcher and backend of a run."""
    return run["launcher"], run["backend"]


def speed_in(outcome: Outcome, run: Run) -> Speed | None:
    """Return the figures of a run, if it is an all-reduce that reported them."""
    found = [speed for speed in outcome.speeds if (speed.launcher, speed.backend) == of(run)]
    return found[0] if found and run["workload"] == ALL_REDUCE else None


def run_cells(run: Run, speed: Speed | None) -> tuple[str, ...]:
    """Return how an all-reduce ended, on how many ranks, its bus bandwidth, and what carried it."""
    test = "burn-in" if run["workload"] == BURN_IN else "all-reduce"
    ended = f"{test} failed" if run["failed"] else f"{test} correct"
    if not speed:
        return ended, "", "", ""
    bandwidth = f"{speed.busbw:.3g}" if speed.world_size > 1 else ""  # one rank sends nothing
    return ended, str(speed.world_size), bandwidth, speed.carrier


def show(outcome: Outcome, findings: Sequence[Finding]) -> list[str]:
    """Return the lines to show, the summary last."""
    runs = [(*of(run), *run_cells(run, speed_in(outcome, run))) for run in outcome.runs]
    count = f"{len(outcome.trial.nodes)} node{'s' * (len(outcome.trial.nodes) != 1)}"
    parts = [
        drift_table(outcome.drift),
        matrix_table(outcome),
        summary(outcome.rails),
        findings_module.text_table(("launcher", "backend", f"on {count}", *FIGURES), runs) if runs else [],
        speed_module.measured_anew(outcome.speeds, outcome.network, outcome.baseline),
        findings_module.render(findings),
    ]
    count = f"{len(outcome.answers)} node{'s' * (len(outcome.answers) != 1)}"
    lines = [line for part in parts if part for line in [*part, ""]]
    return [*lines, f"verify of {count}: {findings_module.count(findings)}"]


def report(outcome: Outcome, findings: Sequence[Finding], at: str) -> dict[str, object]:
    """Return the same as plain values for JSON."""
    rates, trips = link_matrix.rates(outcome.measured, outcome.trial.network), round_trips(outcome.measured)
    pairs = [
        {"from": one, "to": two, "mbit": rate, "rtt_us": trips.get((one, two))} for (one, two), rate in rates.items()
    ]
    return {
        "version": VERSION,
        "at": at,
        "ok": not findings_module.errors(findings),
        "findings": findings_module.report(findings),
        "drift": drift_report(outcome.drift),
        "network": outcome.trial.network,
        "certificate_days": outcome.certificate_days,
        "links": pairs,
        "links_kept": {"at": outcome.trial.kept_at, "pairs": [list(pair) for pair in outcome.trial.kept]},
        "rails": links(outcome.rails),
        "runs": [dict(run) for run in outcome.runs],
        "speeds": [speed_module.report(speed) for speed in outcome.speeds],
    }
