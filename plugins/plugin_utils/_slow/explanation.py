# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why a run was slow, in words and figures: `skew` of result.json on the controller, and the sentence that is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, cast

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import json_in
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.hang import plural, spans
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Result
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes.explanation import (
    RESULT,
    ExplainedResult,
    keep,
)

from .arrivals import read_arrivals, read_clocks
from .budget import FOLDER, RankBudget, more_than_others, place_traces, profiled_ranks, read_budgets, table
from .skew import Share, Skew, SkewCode, judge, length

PLAN_BYTES = 64 << 20
MOST_OF_IT = 0.8  # of a run that was seen, for a share to be one of the run


class RankSkew(TypedDict):
    """What one rank has to do with the waiting."""

    rank: int
    host: str
    last: int  # how often it came last
    late: float  # seconds after the last but one: the median of those times
    late_p95: float
    cost: float  # seconds that the others would have had without that
    waited: float  # seconds that it waited for others


class ToldSkew(TypedDict):
    """`skew` of result.json."""

    code: SkewCode
    rank: int | None  # that the others waited for
    host: str  # its node, or the one that the others waited for
    sentence: str  # empty: nobody is named
    collectives: int
    seconds: float  # of the run that were seen
    uncertainty: float  # of the clocks
    ranks: list[RankSkew]


class ToldProfile(TypedDict):
    """`profile` of result.json."""

    traces: list[int]  # the ranks whose traces came
    missing: list[int]  # those of which nothing came
    budget: list[RankBudget]


class MeasuredResult(ExplainedResult):
    """result.json on the controller."""

    skew: ToldSkew | None
    profile: ToldProfile | None


def measured(result: ExplainedResult, run_dir: Path) -> MeasuredResult:
    """Return the result with why the run was slow, and write that into the run directory if it can be written."""
    try:
        profile, skew = profile_of(result, run_dir), skew_of(result, run_dir)
    except (ArithmeticError, LookupError, TypeError, ValueError):  # of nonsense: the outcome is told all the same
        profile = skew = None
    if skew and skew["sentence"] and profile:
        more = more_than_others(profile["budget"], skew["rank"])
        skew["sentence"] += f"; {more}" if more else ""
    found: MeasuredResult = {**result, "skew": skew, "profile": profile}
    if skew or profile:
        with contextlib.suppress(OSError):  # the disk is full: it is shown all the same
            keep(run_dir / RESULT, found)
    return found


def slow_lines(result: MeasuredResult) -> list[str]:
    """Return what is said at the end of a run: who kept the others waiting, and what became of a profile."""
    skew, profile = result["skew"], result["profile"]
    lines = [skew["sentence"]] if skew and skew["sentence"] else []
    if not profile:
        return lines
    lines += table(profile["budget"])
    lines += [f"profile: {FOLDER}/rank-N.trace.json.gz of {named(profile['traces'])}"] if profile["traces"] else []
    why = "no process group of PyTorch, too short a run, or too large a trace"
    return lines + ([f"profile: none from {named(profile['missing'])}: {why}"] if profile["missing"] else [])


def named(ranks: list[int]) -> str:
    """Return ranks for people."""
    return f"{plural(ranks, 'rank', 'ranks')} {spans(ranks)}"


def profile_of(result: Result, run_dir: Path) -> ToldProfile | None:
    """Return what came of a profiled run, its traces in one folder; None if it was not to be profiled."""
    hosts = {row["rank"]: row["host"] for row in result["ranks"]}
    wanted = profiled_ranks(run_dir, list(hosts))
    if not wanted:
        return None
    came = list[int]()
    with contextlib.suppress(OSError):
        came = place_traces(run_dir, wanted)
    budget = read_budgets(run_dir, {rank: hosts[rank] for rank in wanted})
    return {"traces": came, "missing": [rank for rank in wanted if rank not in came], "budget": budget}


def skew_of(result: Result, run_dir: Path) -> ToldSkew | None:
    """Return who kept the others waiting in a run; None if its ranks noted no collectives."""
    hosts = {row["rank"]: row["host"] for row in result["ranks"]}
    nodes = set(hosts.values())
    clocks = read_clocks(run_dir, nodes, head_of(run_dir) if len(nodes) > 1 else next(iter(nodes), ""))
    found = read_arrivals(run_dir, {rank: clocks[host] for rank, host in hosts.items() if host in clocks})
    if not found:
        return None
    uncertain = {host: clock.uncertainty for host, clock in clocks.items()}
    skew = judge(found, {rank: hosts[rank] for rank in found}, uncertain)
    return told(skew, hosts, result["seconds"])


def head_of(run_dir: Path) -> str:
    """Return the head of a run by its plan, empty if that is not there."""
    plan = json_in(str(run_dir / "plan.json"), PLAN_BYTES)
    head = plan.get("head") if isinstance(plan, dict) else None
    return str(head["name"]) if isinstance(head, dict) and "name" in head else ""


def told(skew: Skew, hosts: Mapping[int, str], took: float) -> ToldSkew:
    """Return the verdict for the result. `took`: seconds of the whole job."""
    rank = skew.culprit if skew.code == SkewCode.RANK else None
    host = hosts[cast("int", rank)] if skew.code == SkewCode.RANK else str(skew.culprit or "")
    return {
        "code": skew.code,
        "rank": cast("int | None", rank),
        "host": host,
        "sentence": sentence(skew, host, took) if skew.code in (SkewCode.RANK, SkewCode.NODE) else "",
        "collectives": skew.collectives,
        "seconds": round(skew.seconds, 3),
        "uncertainty": round(skew.uncertainty, 6),
        "ranks": [row_of(cast("int", unit), hosts, share) for unit, share in sorted(skew.ranks.items())],
    }


def row_of(rank: int, hosts: Mapping[int, str], share: Share) -> RankSkew:
    """Return the figures of one rank."""
    late = sorted(share.late)
    return {
        "rank": rank,
        "host": hosts[rank],
        "last": len(late),
        "late": round(share.middle, 6),
        "late_p95": round(late[min(len(late) - 1, int(0.95 * len(late)))], 6) if late else 0.0,
        "cost": round(length(share.cost), 3),
        "waited": round(length(share.waited), 3),
    }


def sentence(skew: Skew, host: str, took: float) -> str:
    """Return who the others waited for, how often, for how long, and what that cost of the run."""
    share = skew.share
    who, it, count = (f"rank {skew.culprit} on {host}", "it", skew.collectives)
    if skew.code == SkewCode.NODE:
        who, it = f"the ranks on {host}", "they"
    kind = share.kinds.most_common(1)[0][0]
    where = f", most often {kind.operation}" if kind.operation else ""
    cost, whole = length(share.cost), 0 < took <= skew.seconds / MOST_OF_IT
    part = f"{percent(cost / took)} of the run" if whole else f"{percent(cost / skew.seconds)} of the time seen"
    return (
        f"the others waited for {who}: {it} came last in {percent(len(share.late) / count)} of {count:,} "
        f"collectives{where}, by {milliseconds(share.middle)} each; {cost:.1f} s, {part}"
    )


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def milliseconds(seconds: float) -> str:
    """Return a short time for people."""
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
