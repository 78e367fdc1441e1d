# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The result of a job, from what its ranks and nodes left: pure functions, and one that reads the job directory.

Exit codes of launchers are not evidence (Open MPI 5.0.11 returns 0 after a lost daemon): a job succeeded if every
planned rank left a record that says so, and for no other reason.
"""

from __future__ import annotations

import time
from typing import Mapping, NamedTuple

from ..basics.bounded_write import write_in_thread
from ..basics.job_directory import JobDir, ranks_on
from ..looks.hang import Verdict
from ..looks.last_look import keep_look, noted_evidence, verdict_at_end
from ..ranks.metrics import Metrics
from ..ranks.output_lines import last_line
from ..ranks.rank_record import ended_at, last_line_of, leftovers_of, misplaced_record, rank_state, records_of
from ..software import batch_system
from ..transfer.fetched_files import USAGE
from ..types.orders import JobOrder, Order, Place, Staging
from ..types.reasons import EXIT_SAVED, STATES, EndReason, FinalState, NoteCode, RankState, Reason
from ..types.records import (
    BlamedLauncher,
    End,
    LauncherExit,
    Leftover,
    Metric,
    NodeReport,
    Note,
    RankRecord,
    Result,
    ResultPlace,
    ResultRank,
    Seen,
)
from ..types.run_usage import FINDINGS_MOST, NodeFigures, Usage
from ..types.usage import CPUS_MOST, NodeUsage
from ..usage.sampler import noted_usage
from ..usage.usage_figures import OfRank, figures_of
from ..usage.usage_findings import findings_of
from ..usage.usage_series import narrowed
from ..wire.node_form import ROWS
from .first_failure import blame_batch_system, blame_launcher, blame_lost_node, deaths_of, first_failed, first_failure
from .restart_rule import not_again

# 124 as timeout(1), 130 as a shell after Ctrl-C.
RC_BY_STATE: Mapping[FinalState, int] = {"timed_out": 124, "cancelled": 130, "lost": 1, "saved": EXIT_SAVED}
BUCKETS_OF_ALL = 2400  # of one series of all nodes: some 2 MB
VALUES_OF_ALL = 400_000  # of all series: a report reads no more


class Found(NamedTuple):
    """What is known at the end of a job in addition to the records of its ranks."""

    leftovers: dict[str, list[Leftover]]  # by host
    metrics: dict[str, Metric]  # the last values
    started: float  # seconds since the epoch
    ended: float
    seconds: float | None = None  # that the job took; None: the difference of its times
    hang: Verdict | None = None  # of a job that was looked at when it was ended: who kept it from going on
    usage: Mapping[str, NodeUsage] = {}  # by host


def timestamp(seconds: float) -> str:
    """Return a time since the epoch as ISO 8601 in UTC with milliseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def rank_row(planned: Place, record: RankRecord | None, state: RankState, line: str) -> ResultRank:
    """Return one entry of result.ranks."""
    whole = record is not None and record.get("started") and record.get("ended")
    seconds = ended_at(record) - record["started"] if record and whole else None
    return {
        "rank": planned["rank"],
        "host": planned["host"],
        "state": state,
        "rc": record.get("rc") if record else None,
        "signal": record.get("signal") if record else None,
        "seconds": None if seconds is None else round(seconds, 3),
        "cpu_seconds": record.get("cpu_seconds") if record else None,
        "peak_bytes": max(0, record.get("peak_bytes", 0)) or None if record else None,
        "last_line": line,
    }


def job_state(rows: list[ResultRank], end: End | None) -> FinalState:
    """Return the state of the job from its ranks and from why it was ended."""
    found = {row["state"] for row in rows}
    if found == {"succeeded"}:
        return "succeeded"
    if "saved" in found and found <= {"saved", "succeeded"}:
        return "saved"
    return STATES.get(end["reason"], "failed") if end else "failed"


def summarize(
    order: JobOrder,
    records: Mapping[int, RankRecord],
    end: End | None,
    last_lines: Mapping[int, tuple[str, str]],
    launcher: BlamedLauncher,
    found: Found,
) -> Result:
    """Return the result of a job. `last_lines` by rank: stream and line."""
    took = found.ended - found.started if found.seconds is None else found.seconds
    planned = order["placement"]
    rows = []
    for place in planned:
        record = records.get(place["rank"])
        rows.append(rank_row(place, record, rank_state(record, end), last_lines[place["rank"]][1]))
    state = job_state(rows, end)
    blamed = first_failed(rows, records)
    return {
        "job_id": order["job_id"],
        "state": state,
        "rc": exit_status(state, rows, blamed, launcher),
        "started": timestamp(found.started),
        "ended": timestamp(found.ended),
        "seconds": round(took, 3),
        "launcher": order["launcher"],
        "backend": order["backend"],
        "world_size": order["world_size"],
        "command": order["shown_command"],
        "placement": [place_row(place, records.get(place["rank"])) for place in planned],
        "ranks": rows,
        "first_failure": first_failure(order, state, rows, blamed, records, end, launcher, last_lines, found.hang),
        "silent_ranks": [row["rank"] for row in rows if row["state"] == "silent"],
        "leftovers": found.leftovers,
        "metrics": found.metrics,
        "usage": usage_of(order, records, found.usage, took),
        "notes": [
            *ranks_never_met_note(order, state, records),
            *cancelled_by_node_note(state, end),
            *hung_notes(state, end, found.hang),
        ],
    }


def ranks_never_met_note(order: JobOrder, state: FinalState, records: Mapping[int, RankRecord]) -> list[Note]:
    """Return a note if every rank succeeded and none used a process group of them all."""
    size = order["world_size"]
    groups = [records[place["rank"]].get("group") for place in order["placement"] if place["rank"] in records]
    known = [group for group in groups if group is not None]
    if state != "succeeded" or size == 1 or len(known) < size or max(known) >= size:
        return []
    how = "each alone" if max(known) < 2 else f"in groups of {max(known)} at most"
    text = f"{size} ranks ran, {how}: no process group of {size} was used"
    return [{"code": NoteCode.RANKS_NEVER_MET, "text": text}]


def cancelled_by_node_note(state: FinalState, end: End | None) -> list[Note]:
    """Return a note with the node on which the job was cancelled, if it was not the head: nothing else names it."""
    host = end.get("host") if end and state == "cancelled" else ""
    return [{"code": NoteCode.CANCELLED_BY_A_NODE, "text": f"{host} ended it: {end['detail']}"}] if end and host else []


def hung_notes(state: FinalState, end: End | None, hang: Verdict | None) -> list[Note]:
    """Return notes on a job that was ended because it hung, that hung when somebody ended it, or that took too long.

    That one may have gone on: it was looked at, however short the time that it was silent.
    """
    by_us: list[Note] = [{"code": NoteCode.HANG_END, "text": "it hung, so hang_end ended it"}]
    notes = by_us if end and end["reason"] == EndReason.HUNG else []
    if end is None or hang is None:
        return notes
    if end["reason"] == EndReason.TIMED_OUT:
        return [{"code": NoteCode.KEPT_WAITING, "text": hang.sentence}] if state == "timed_out" else []
    return [*notes, {"code": NoteCode.HUNG, "text": f"it hung: {hang.sentence}"}]


def usage_of(
    order: JobOrder, records: Mapping[int, RankRecord], usages: Mapping[str, NodeUsage], seconds: float
) -> Usage:
    """Return what the job took of its nodes, as far as that is known. `seconds`: that it took."""
    nodes: dict[str, NodeFigures] = {}
    for host in dict.fromkeys(place["host"] for place in order["placement"]):
        found = [records.get(rank) for rank in ranks_on(host, order["placement"])]
        ranks = [of_rank(record) for record in found if record]
        figures = figures_of(ranks, usages.get(host), seconds)
        if figures:
            nodes[host] = figures
    return {"nodes": nodes, "findings": findings_of(usages, order["backend"])[:FINDINGS_MOST]}


def of_rank(record: RankRecord) -> OfRank:
    """Return what a record says of the usage of its rank."""
    cpus = [cpu for cpu in record.get("cpus", []) if isinstance(cpu, int)]
    return OfRank(cpus[:CPUS_MOST], record.get("cpu_seconds"), record.get("peak_bytes"))


def place_row(planned: Place, record: RankRecord | None) -> ResultPlace:
    """Return one entry of result.placement: what was planned, and what was seen: where it came up, pid and cpus."""
    if record is None:
        return {**planned, "seen": {"host": None, "local_rank": None}, "pid": None, "cpus": []}
    seen: Seen = {"host": record.get("host"), "local_rank": record.get("local_rank")}
    return {**planned, "seen": seen, "pid": record.get("pid"), "cpus": record.get("cpus", [])}


def exit_status(state: FinalState, rows: list[ResultRank], blamed: int | None, launcher: LauncherExit) -> int:
    """Return the exit status of the job: that of the rank to blame, else what the state or the launcher says."""
    if state == "succeeded":
        return 0
    if state in RC_BY_STATE:
        return RC_BY_STATE[state]
    rc = next((row["rc"] for row in rows if row["rank"] == blamed), None) or launcher.get("rc")
    return int(rc or 1)


def write_result(
    job: JobDir,
    order: Order,
    staging: Staging,
    metrics: Metrics,
    node_reports: Mapping[str, NodeReport],
    seconds: float | None = None,
) -> Result:
    """Write result.json, and return it: the arguments are those of find_result(). OSError."""
    result = find_result(job, order, staging, metrics, node_reports, seconds)
    keep_result(job, result)
    return result


def keep_usage(job: JobDir, usages: Mapping[str, NodeUsage]) -> None:
    """Write usage.json, from which the report draws: what was read of all nodes. Of many each has fewer buckets."""
    lists = 3 * sum(len(usage["series"]) for usage in usages.values())
    most = max(1, min(BUCKETS_OF_ALL // max(1, len(usages)), VALUES_OF_ALL // max(1, lists)))
    if usages:
        write_in_thread(lambda: job.write(USAGE, {"nodes": {host: narrowed(usages[host], most) for host in usages}}))


def keep_result(job: JobDir, result: Result) -> None:
    """Write result.json: from then on the job is over. OSError."""
    job.write("result.json", result)
    job.drop_ballast()


def unfinished(result: Result, reason: Reason) -> Result:
    """Return the result of a job that was to be started again, and was not: that of its last attempt, with the reason.

    One that somebody ended between two attempts is cancelled.
    """
    found: Result = {**result, "notes": [*result["notes"], not_again(reason.detail)]}
    if reason.code != EndReason.CANCELLED:
        return found
    return {**found, "state": "cancelled", "rc": RC_BY_STATE["cancelled"]}


def find_result(
    job: JobDir,
    order: Order,
    staging: Staging,
    metrics: Metrics,
    node_reports: Mapping[str, NodeReport],
    seconds: float | None = None,
    hang: Verdict | None = None,
) -> Result:
    """Return the result of a job, by what it left on the head.

    The head's supervisor calls this; if that died, the next one that lists the jobs that are over. `metrics` of the
    head's own ranks; `node_reports`: of the other nodes by host, times by the head's clock; `seconds` that the job
    took, if the caller knows; `hang`: of a job that was ended for it, what two looks had found.
    """
    head, own = order["host"], order["ranks"]
    hosts = {place["rank"]: place["host"] for place in order["placement"]}
    found_here = records_of(job, order).items()
    records = {rank: record if rank in own else misplaced_record(record, head) for rank, record in found_here}
    lines = dict.fromkeys(hosts, ("stderr", ""))
    lines.update({rank: last_line_of(job, rank, records.get(rank)) for rank in own})
    launcher: LauncherExit = {**job.launcher(), "last_line": last_line(job.at("launcher.out"))}
    leftovers = {head: leftovers_of(job, records)[:ROWS]}
    for host, report in node_reports.items():
        theirs = ranks_on(host, order["placement"])
        add_records(records, report, host, hosts)
        lines.update({int(rank): (line[0], line[1]) for rank, line in report["lines"].items() if int(rank) in theirs})
        leftovers[host] = report["leftovers"]
        for name, reporter, value in report["metrics"]:
            if reporter in theirs:
                metrics.note(name, reporter, value)
    silent = [host for host in dict.fromkeys(hosts.values()) if host != head and host not in node_reports]
    launchers = {head: launcher, **{host: report["launcher"] for host, report in node_reports.items()}}
    end = why_it_ended(job, head, silent, launchers, records, lines)
    host = end.get("host", "") if end else ""
    culprit: BlamedLauncher = {**launchers.get(host, launcher), "host": host if host in launchers else head}
    evidence = [*noted_evidence(job), *(row for each in node_reports.values() for row in each.get("evidence", []))]
    keep_look(job, order, end, evidence)
    hang = verdict_at_end(end, evidence, hosts, hang)
    usages = {host: usage for host, usage in usages_of(job, order, node_reports).items() if host in hosts.values()}
    keep_usage(job, usages)
    found = Found(leftovers, metrics.last, staging["started"], time.time(), seconds, hang, usages)
    return summarize(order, records, end, lines, culprit, found)


def why_it_ended(
    job: JobDir,
    head: str,
    silent: list[str],
    launchers: Mapping[str, LauncherExit],
    records: Mapping[int, RankRecord],
    lines: Mapping[int, tuple[str, str]],
) -> End | None:
    """Return why the job ended, from what was noted first and from all that died together. Marks victims in `records`.

    `silent`: nodes that told nothing; `launchers` by host; `lines`: the last ones, by rank: stream and line.
    """
    end = blame_lost_node(job.end(), silent, launchers[head], records, lines)
    end = blame_launcher(end, deaths_of(launchers, head), records, head)
    return blame_batch_system(end, batch_system.noted_end(job), records, head)


def add_records(records: dict[int, RankRecord], report: NodeReport, host: str, hosts: Mapping[int, str]) -> None:
    """Add the records of another node's ranks. `hosts`: where each rank was to run."""
    for rank, record in ((int(text), record) for text, record in report["records"].items()):
        if hosts.get(rank) == host:
            records[rank] = record
        elif rank in hosts and rank not in records:  # it came up where it should not have
            records[rank] = misplaced_record(record, host)


def usages_of(job: JobDir, order: Order, node_reports: Mapping[str, NodeReport]) -> dict[str, NodeUsage]:
    """Return what the samplers of all nodes read, by host."""
    every = {order["host"]: noted_usage(job), **{host: report.get("usage") for host, report in node_reports.items()}}
    return {host: usage for host, usage in every.items() if usage is not None}
