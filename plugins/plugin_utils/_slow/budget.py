# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ranks spent their time on, and the traces of a profiled run: brought into place, in figures and as lines."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import json_in, open_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.hooks.profile_note import (
    BUDGET,
    DATA,
    OWN,
    OWN_IDLE,
    PARTS,
    TRACE,
    VARIABLE,
    WAITING,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import (
    BadFrame,
    Form,
    number,
    whole,
)


class Budget(TypedDict):
    """budget.json of a rank: samples by part."""

    seconds: float
    samples: dict[str, int]


FOLDER = "profile"  # in a run directory
BUDGET_BYTES = 1 << 16
SAMPLES_MOST = 1 << 20
SHOWN = 16  # ranks on a terminal
NAMES = {OWN: "own code", OWN_IDLE: "own, idle", DATA: "data", WAITING: "waiting"}
LEAST_MORE = 0.1  # of the time that a rank spends more on something than the others, to be told
SAMPLES: Form[dict[str, int]] = Form({part: whole(0, SAMPLES_MOST) for part in PARTS})
FILE: Form[Budget] = Form({"seconds": number, "samples": SAMPLES})
# What a rank that is waited for may spend more time on.
WHERE = {OWN: "its own code", OWN_IDLE: "its own code, off the CPU", DATA: "its data loader"}


class RankBudget(TypedDict):
    """What one rank spent its time on: shares by part, which are 1 together."""

    rank: int
    host: str
    seconds: float
    shares: dict[str, float]


def read_budgets(run_dir: Path, hosts: Mapping[int, str]) -> list[RankBudget]:
    """Return the budgets of the ranks that have one."""
    found: list[RankBudget] = []
    for rank, host in hosts.items():
        budget = read_budget(run_dir / "ranks" / str(rank) / BUDGET)
        if budget:
            found.append({"rank": rank, "host": host, "seconds": budget[0], "shares": budget[1]})
    return found


def read_budget(path: Path) -> tuple[float, dict[str, float]] | None:
    """Return seconds and shares that a rank wrote, None if it is no file of ours."""
    try:
        found = FILE(json_in(str(path), BUDGET_BYTES))
    except (BadFrame, ValueError, RecursionError, OverflowError):
        return None
    total = sum(found["samples"].values())
    if not total or not 0 < found["seconds"] <= 3600:
        return None
    return found["seconds"], {part: round(count / total, 4) for part, count in found["samples"].items()}


def place_traces(run_dir: Path, ranks: Sequence[int]) -> list[int]:
    """Move the traces of ranks into one folder, `profile/rank-N.trace.json.gz`; return whose came. OSError."""
    came = []
    for rank in ranks:
        there, here = run_dir / FOLDER / f"rank-{rank}.{TRACE}", run_dir / "ranks" / str(rank) / TRACE
        if here.is_file() and not here.is_symlink():
            there.parent.mkdir(mode=0o700, exist_ok=True)
            here.replace(there)
        if there.is_file():
            came.append(rank)
    return came


def profiled_ranks(run_dir: Path, ranks: Sequence[int]) -> list[int]:
    """Return the ranks that were to be profiled, by the plan of the run."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        with open(open_file(str(run_dir / "plan.json")), "rb") as file:
            nodes = list(json.load(file)["environment"].values())
        for value in [str(row["value"]) for row in (nodes[0] if nodes else ()) if row["name"] == VARIABLE]:
            wanted = value.partition(":")[2]
            return [rank for rank in ranks if not wanted or str(rank) in wanted.split(",")]
    return []


def table(budgets: Sequence[RankBudget]) -> Iterator[str]:
    """Yield a short table of what ranks spent their time on, in percent."""
    parts = [part for part in PARTS if any(row["shares"][part] for row in budgets)]
    heads = [NAMES.get(part, part) for part in parts]
    if not budgets:
        return
    yield f"what ranks spent {budgets[0]['seconds']:g} s on, in percent:"
    yield "  rank  " + "  ".join(heads)
    for row in budgets[:SHOWN]:
        cells = [f"{100 * row['shares'][part]:.0f}".rjust(len(head)) for part, head in zip(parts, heads, strict=True)]
        yield f"{row['rank']:>6}  " + "  ".join(cells)
    if len(budgets) > SHOWN:
        yield f"... {len(budgets) - SHOWN} more ranks are in result.json"


def more_than_others(budgets: Sequence[RankBudget], rank: int | None) -> str:
    """Return what a rank spends clearly more of its time on than the others do; empty if that is not known."""
    own = next((row["shares"] for row in budgets if row["rank"] == rank), None)
    others = [row["shares"] for row in budgets if row["rank"] != rank]
    if own is None or not others:
        return ""
    more = {part: own[part] - median(shares[part] for shares in others) for part in WHERE}
    worst = max(more, key=lambda part: more[part])
    if more[worst] < LEAST_MORE:
        return ""
    usual = median(shares[worst] for shares in others)
    return f"it is slow in {WHERE[worst]}: {100 * own[worst]:.0f} % of its time, the others {100 * usual:.0f} %"
