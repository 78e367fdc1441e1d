# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A run directory, read: `Run` from plan.json, result.json, the ranks' records and reports, and the stored proof."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import SECONDS_MOST
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.hooks.profile_note import PARTS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.codes import known
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import NoteCode, RankError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes.book import book
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.autopsy import TEXT_FILE
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.run_directory import DIAGNOSIS

from .files import Fields, Unreadable, finite, read_json, read_lines, sampled_rows, text_of
from .run import Failure, Known, Leftover, Link, Links, NodeRun, Note, Points, RankRun, Reason, Run, Waiting
from .stacks import last_stacks
from .taken import figures_of, findings_of, taken_of

RANKS_MOST = 4096  # whose records are read
RECORD_BYTES = 1 << 16  # of each: a node wrote it
LINES_MOST = 80  # of a diagnosis
NAMES_MOST = 24  # of metrics with curves
PROGRESS = ("epoch", "epochs", "step", "steps")
LOG = re.compile(r"(ranks/\d{1,7}/(stdout|stderr)|launcher(\.[A-Za-z0-9._-]+)?\.out)\Z")  # that a result names
NO_NUMBER = ("nan", "inf", "-inf", "+inf", "infinity", "-infinity")
AT_ONCE_SECONDS, PAUSE_SECONDS = 0.01, 0.5  # between reports of one reading; between two readings at most
SLACK_SECONDS = 3600.0  # a record of a moment that is further than this from the job's own is nonsense


def read_run(run_dir: Path, proof: Path | None = None) -> Run:
    """Return what a run directory tells. `proof`: the report of verify.yml. Nothing in it makes this fail."""
    missing: list[str] = []
    plan = look(run_dir, "plan.json", missing)
    result = look(run_dir, "result.json", missing)
    look(run_dir, "fetched.json", missing)
    nodes = nodes_of(plan)
    offsets = {node.name: node.clock_offset or 0.0 for node in nodes}
    began, ended = moment_of(result.text("started")), moment_of(result.text("ended"))
    ranks = ranks_of(run_dir, plan, result, offsets, (began, ended))
    series, sampled = series_of(
        run_dir, {row.rank: offsets.get(row.host, 0.0) for row in ranks}, (began, ended), missing
    )
    return Run(
        job_id=plan.text("job_id") or result.text("job_id") or text_of(run_dir.name),
        run_dir=text_of(str(run_dir)),
        state=result.text("state", 20),
        rc=result.whole("rc"),
        began=began,
        ended=ended,
        seconds=result.number("seconds", 0.0),
        world_size=max(0, result.whole("world_size") or plan.whole("world_size") or len(ranks)),
        ranks=ranks,
        nodes=nodes,
        failure=failure_of(result.of("first_failure")),
        known=known_of(result.of("cause")),
        slow=result.of("skew").text("sentence"),
        budget=budget_of(result.of("profile")),
        collectives=max(0, result.of("skew").whole("collectives") or 0),
        notes=tuple(Note(known(NoteCode, row.text("code")), row.text("text")) for row in result.rows("notes", 20)),
        leftovers=leftovers_of(result),
        metrics=metrics_of(result),
        series=series,
        sampled=sampled,
        taken=taken_of(run_dir, missing),
        figures=figures_of(result),
        findings=findings_of(result),
        links=links_of(proof, {row.host for row in ranks}, {node.network for node in nodes}),
        missing=tuple(missing),
        diagnosis=diagnosis_of(run_dir, result, ranks),
        attempts=attempts_of(run_dir),
        **planned(plan, result),
        **started_with(plan, result),
    )


def diagnosis_of(run_dir: Path, result: Fields, ranks: Iterable[RankRun]) -> tuple[str, ...]:
    """Return the lines of the last look at a job; of one that job_timeout ended first, what its ranks wrote then."""
    found = read_lines(run_dir / DIAGNOSIS / TEXT_FILE, LINES_MOST)
    failure = failure_of(result.of("first_failure"))
    if found or result.text("state", 20) != "timed_out" or failure is None:
        return found
    stacks = last_stacks(run_dir, [row.rank for row in ranks])[:LINES_MOST]
    return (failure.cause, *stacks) if stacks else ()


def look(run_dir: Path, name: str, missing: list[str]) -> Fields:
    """Return the object in a file of the run; what cannot be read is noted, and empty."""
    try:
        return read_json(run_dir / name)
    except Unreadable as error:
        missing.append(f"{name}: {error}")
        return Fields(None)


class Planned(TypedDict):
    """Fields of Run that the plan tells."""

    command: tuple[Reason, ...]
    variables: dict[str, tuple[Reason, ...]]
    program: tuple[str, ...]
    code: str
    data: str
    packages: tuple[str, ...]
    job_timeout: float | None
    warnings: tuple[str, ...]


class StartedWith(TypedDict):
    """Fields of Run about what started the ranks, and joins them."""

    launcher: str
    launcher_version: str
    backend: str
    backend_reason: str


def planned(plan: Fields, result: Fields) -> Planned:
    """Return what of a run only its plan tells, and the bare command of the result where there is no plan."""
    program = plan.of("program")
    what = program.text("script") or program.text("module")
    command = tuple(reason_of(row, " ".join(row.words("words"))) for row in plan.rows("command", 500))
    return {
        "command": command or tuple(Reason(word, "", "") for word in result.words("command")),
        "variables": {
            text_of(name): tuple(reason_of(row, f"{row.text('name')}={row.text('value')}") for row in found)
            for name in list(plan.of("environment").value)[:RANKS_MOST]
            for found in [plan.of("environment").rows(name, 500)]
        },
        "program": (what, *program.words("args")) if what else (),
        "code": plan.text("code", 64),
        "data": plan.text("data"),
        "packages": plan.words("packages", 200),
        "job_timeout": plan.number("job_timeout", 0.0),
        "warnings": plan.words("warnings", 50),
    }


def started_with(plan: Fields, result: Fields) -> StartedWith:
    """Return launcher and backend: those of the result, else those of the plan."""
    launcher = result.of("launcher")
    return {
        "launcher": launcher.text("name") or plan.text("launcher"),
        "launcher_version": launcher.text("version") or plan.text("launcher_version"),
        "backend": result.text("backend") or plan.text("backend"),
        "backend_reason": plan.text("backend_reason"),
    }


def reason_of(row: Fields, words: str) -> Reason:
    """Return words with the reason and source that a row of the plan has."""
    return Reason(text_of(words, 2000), row.text("reason"), row.text("source", 40))


def nodes_of(plan: Fields) -> tuple[NodeRun, ...]:
    """Return the nodes of a plan; the head is one of them if it runs ranks."""
    return tuple(node_of(row) for row in plan.rows("nodes", RANKS_MOST))


def node_of(row: Fields) -> NodeRun:
    """Return one node of a plan."""
    fabric, gpus = row.of("fabric"), row.of("accelerators")
    runtime = [word for word in row.words("runtime") if "/lib/" in word]
    return NodeRun(
        name=row.text("name"),
        address=row.text("address"),
        nic=fabric.text("nic"),
        network=fabric.text("network"),
        fabric=fabric.text("digest", 64),
        cores=max(0, row.whole("cores") or 0),
        torch=row.text("torch", 80),
        runtime=runtime[0].split("/lib/")[-1].partition("/")[0] if runtime else "",
        gpus={text_of(name, 40): count for name in list(gpus.value)[:20] if (count := gpus.whole(name) or 0) > 0},
        clock_offset=row.number("clock_offset"),
    )


def ranks_of(
    run_dir: Path,
    plan: Fields,
    result: Fields,
    offsets: Mapping[str, float],
    bounds: tuple[float | None, float | None],
) -> tuple[RankRun, ...]:
    """Return the ranks of the result, or of the plan where there is no result, with what their records add."""
    rows = result.rows("ranks", RANKS_MOST) or plan.rows("placement", RANKS_MOST)
    cpus = {row.whole("rank"): len(row.items("cpus")) for row in result.rows("placement", RANKS_MOST)}
    waiting = {row.whole("rank"): waiting_of(row) for row in result.of("skew").rows("ranks", RANKS_MOST)}
    found: dict[int, RankRun] = {}
    for row in rows:
        rank = row.whole("rank")
        if rank is None or rank < 0 or rank in found:
            continue
        try:
            record = read_json(run_dir / "ranks" / str(rank) / "record.json", RECORD_BYTES)
        except Unreadable:
            record = Fields(None)
        host = row.text("host")
        began, ended = times_of(record, offsets.get(record.text("host"), offsets.get(host, 0.0)), bounds)
        seconds = row.number("seconds", 0.0)
        found[rank] = RankRun(
            rank=rank,
            host=host,
            state=row.text("state", 20),
            rc=row.whole("rc") if "state" in row.value else record.whole("rc"),
            signal=row.whole("signal") if "state" in row.value else record.whole("signal"),
            seconds=ended - began if seconds is None and began is not None and ended is not None else seconds,
            cpu_seconds=row.number("cpu_seconds", 0.0),
            peak_bytes=row.number("peak_bytes", 0.0),
            last_line=row.text("last_line"),
            cpus=cpus.get(rank) or len(record.items("cpus")),
            error_code=known(RankError, record.text("error_code", 40)) or RankError.NONE,
            began=began,
            ended=ended,
            waiting=waiting.get(rank),
        )
    return tuple(found[rank] for rank in sorted(found))


def waiting_of(row: Fields) -> Waiting:
    """Return what a rank has to do with the waiting of others."""
    late, cost, waited = (row.number(name, 0.0) or 0.0 for name in ("late", "cost", "waited"))
    return Waiting(max(0, row.whole("last") or 0), late, cost, waited)


def budget_of(profile: Fields) -> dict[int, dict[str, float]]:
    """Return what profiled ranks spent their time on, as shares of it."""
    return {
        rank: {part: min(1.0, row.of("shares").number(part, 0.0) or 0.0) for part in PARTS}
        for row in profile.rows("budget", RANKS_MOST)
        if (rank := row.whole("rank")) is not None
    }


def times_of(
    record: Fields, offset: float, bounds: tuple[float | None, float | None]
) -> tuple[float | None, float | None]:
    """Return start and end of a rank by the head's clock. Its duration is by the monotonic clock of its node."""
    began, ended = record.number("started", 0.0), record.number("ended", 0.0)
    ticks = record.number("started_tick", 0.0), record.number("ended_tick", 0.0)
    if began is not None and ticks[0] is not None and ticks[1] is not None:
        ended = began + ticks[1] - ticks[0]
    if ended is not None and began is not None and ended < began:
        ended = None
    return likely(began, offset, bounds), likely(ended, offset, bounds)


def likely(moment: float | None, offset: float, bounds: tuple[float | None, float | None]) -> float | None:
    """Return a moment of a node by the head's clock; None for one that is far from the time of the job."""
    if moment is None or moment > SECONDS_MOST:
        return None
    least, most = (bounds[0] or 0.0) - SLACK_SECONDS, (bounds[1] or math.inf) + SLACK_SECONDS
    return moment - offset if least <= moment - offset <= most else None


def moment_of(text: str) -> float | None:
    """Return seconds since the epoch of a time in ISO 8601."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def failure_of(row: Fields) -> Failure | None:
    """Return what went wrong first. The log's path is told from the run directory on, wherever that lies now."""
    if not row.value:
        return None
    log = LOG.search(row.text("log", 4000))
    short = log.group() if log else "result.json"
    return Failure(row.whole("rank"), row.text("host"), row.text("cause"), row.text("message"), short)


def known_of(row: Fields) -> Known | None:
    """Return why it failed. The book has the sentences: a head may have written others into the result."""
    entry = next((entry for entry in book() if entry.id == row.text("id")), None)
    where = row.whole("rank"), row.text("host"), row.text("line")
    return Known(entry.id, entry.cause, entry.mend, *where) if entry else None


def leftovers_of(result: Fields) -> tuple[Leftover, ...]:
    """Return the processes that outlived their ranks."""
    found = result.of("leftovers")
    return tuple(
        Leftover(text_of(host), row.whole("pid") or 0, row.text("command", 120), row.text("ended", 20))
        for host in list(found.value)[:RANKS_MOST]
        for row in found.rows(host, 100)
    )


def metrics_of(result: Fields) -> dict[str, float | str]:
    """Return the last value of each name."""
    found = result.of("metrics")
    values = {text_of(name, 60): finite(found.value[name]) for name in list(found.value)[:1000]}
    return {name: found.text(name, 60) if value is None else value for name, value in values.items()}


def series_of(
    run_dir: Path, offsets: Mapping[int, float], bounds: tuple[float | None, float | None], missing: list[str]
) -> tuple[dict[str, dict[int, Points]], bool]:
    """Return what ranks reported over time. `offsets` of the clocks by rank; rows of other ranks are left out."""
    try:
        rows, sampled = sampled_rows(run_dir / "metrics.jsonl")
    except Unreadable as error:
        missing.append(f"metrics.jsonl: {error}")
        return {}, False
    found: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for row in rows:
        rank, at = row.whole("rank"), row.number("time", 0.0)
        at = likely(at, offsets[rank], bounds) if rank is not None and rank in offsets else None
        if rank is None or at is None:
            continue
        for name, value in row.value.items():
            number = reported(value)
            if number is None or name in ("time", "rank") or (name not in found and len(found) >= NAMES_MOST):
                continue
            found.setdefault(name, defaultdict(list))[rank].append((at, number))
    return {
        text_of(name, 60): {rank: spread(points) for rank, points in sorted(ranks.items())}
        for name, ranks in found.items()
    }, sampled


def spread(points: list[tuple[float, float]]) -> Points:
    """Return points in order of time. Those that came at once are spread over the time since those before.

    Reports are read some ten times a second, and have the time of the reading.
    """
    points.sort(key=lambda point: point[0])
    starts = [at for at in range(len(points)) if not at or points[at][0] - points[at - 1][0] > AT_ONCE_SECONDS]
    found: list[tuple[float, float]] = []
    for first, after in zip(starts, [*starts[1:], len(points)], strict=True):
        last = points[after - 1][0]
        before = found[-1][0] if found else 2 * last - points[after][0] if after < len(points) else last
        pause = (last - max(before, last - PAUSE_SECONDS)) / (after - first)
        found += [(last - pause * (after - 1 - at), points[at][1]) for at in range(first, after)]
    return tuple(found)


def reported(value: object) -> float | None:
    """Return a reported value as a number; NaN for a text that says that it was none; None for another text."""
    if isinstance(value, str):
        return math.nan if value.lower() in NO_NUMBER else None
    return finite(value)


def links_of(proof: Path | None, hosts: set[str], networks: set[str]) -> Links | None:
    """Return the proof's matrix of the nodes of a run, if it measured two of them, and in the network of the run."""
    if proof is None:
        return None
    try:
        found = read_json(proof)
    except Unreadable:
        return None
    network = found.text("network")
    pairs = []
    for row in found.rows("links", 100_000):
        link = Link(row.text("from"), row.text("to"), row.number("mbit", 0.0) or 0.0, row.number("rtt_us", 0.0))
        if link.source != link.target and {link.source, link.target} <= hosts:
            pairs.append(link)
    return Links(found.text("at", 40), network, tuple(pairs)) if pairs and network in networks else None


def attempts_of(run_dir: Path) -> tuple[tuple[str, str], ...]:
    """Return the attempts of a job that was started again."""
    try:
        rows = read_json(run_dir / "attempts.json").rows("attempts", 1000)
    except Unreadable:
        return ()
    return tuple((row.text("job_id"), row.text("state", 20)) for row in rows)
