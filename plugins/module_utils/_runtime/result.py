# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From what a job left to what is said of it: pure functions, and the one that reads and writes the job directory.

Exit codes of launchers are not evidence (Open MPI 5.0.11 returns 0 after a lost daemon): a job succeeded if every
planned rank left a record that says so, and for no other reason.
"""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any, Iterable, Mapping

from .frames import ROWS
from .group_note import END
from .job_directory import JobDir, open_file, rows_of
from .metrics import Metrics
from .output_lines import last_line

Json = Any
RC_BY_STATE = {"timed_out": 124, "cancelled": 130, "lost": 1}  # 124 as timeout(1), 130 as a shell after Ctrl-C
# What a rank says when its peer went first: a consequence, named as the cause only if nothing better is known.
CONSEQUENCE = re.compile(r"[Cc]onnection (closed|reset)|[Bb]roken pipe|[Tt]imed out waiting|SIGPIPE|RendezvousConn")

SAME_MOMENT = 0.05  # seconds
NOTE_BYTES = 4096  # of what a rank notes of its process groups: a line for each that is larger than all before
WRAPPER_DIED = "its wrapper died"


def signal_name(number: int) -> str:
    """Return "SIGKILL" for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def timestamp(seconds: float) -> str:
    """Return a time since the epoch as ISO 8601 in UTC with milliseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def rank_state(record: Mapping[str, Json] | None, end: Mapping[str, Json] | None) -> str:
    """Return what became of a rank: succeeded, failed, ended (by us, after something else), or silent (no record)."""
    if record is None:
        return "silent"
    if str(record.get("error", "")).startswith("placement"):
        return "failed"
    if record.get("told", ended_by_us(record, end)):
        return "ended"  # also with status 0: a program that saves its state on SIGTERM was not done
    return "succeeded" if record.get("rc") == 0 or record.get("finished") else "failed"


def ended_by_us(record: Mapping[str, Json], end: Mapping[str, Json] | None) -> bool:
    """Whether a rank of this node ran until we ended the job; by the monotonic clock if both times have it."""
    if end is None:
        return False
    ended, ordered = record.get("ended_tick"), end.get("tick")
    if isinstance(ended, float) and isinstance(ordered, float):
        return ended > ordered
    return bool(record.get("ended", end["at"] + 1) > end["at"])


def rank_row(planned: Mapping[str, Json], record: Mapping[str, Json] | None, state: str, line: str) -> dict[str, Json]:
    """Return one entry of result.ranks."""
    record = record or {}
    seconds = ended_at(record) - record["started"] if record.get("started") and record.get("ended") else None
    return {
        "rank": planned["rank"],
        "host": planned["host"],
        "state": state,
        "rc": record.get("rc"),
        "signal": record.get("signal"),
        "seconds": None if seconds is None else round(seconds, 3),
        "last_line": line,
    }


def cause_of(record: Mapping[str, Json] | None) -> str:
    """Return how a rank failed in a few words."""
    if record is None:
        return "never started"
    if record.get("error"):
        return str(record["error"])
    if record.get("signal"):
        return f"killed by {signal_name(record['signal'])}"
    if "rc" in record:
        return f"exit status {record['rc']}"
    return WRAPPER_DIED


def ended_at(record: Mapping[str, Json]) -> float:
    """Return when a rank ended, in seconds since the epoch; 0 if that is not recorded.

    Its start plus monotonic time: a clock that is set during the job does not change the order.
    """
    ticks = record.get("started_tick"), record.get("ended_tick")
    if all(isinstance(tick, float) for tick in ticks):
        return float(record["started"] + record["ended_tick"] - record["started_tick"])
    return float(record.get("ended", 0.0))


def is_consequence(ended: Mapping[str, Json], line: str) -> bool:
    """Whether a rank ended because another had gone, by its last line."""
    return ended.get("signal") is None and bool(CONSEQUENCE.search(line))


def first_failed(rows: Iterable[Mapping[str, Json]], records: Mapping[int, Mapping[str, Json]]) -> int | None:
    """Return the rank to blame: of those that failed the earliest, consequences (a peer hung up) last.

    Of two at the same moment the one that says why.
    """
    failed = [row for row in rows if row["state"] == "failed"]

    def order(row: Mapping[str, Json]) -> tuple[bool, float]:
        consequence = is_consequence(row, row["last_line"])
        return consequence, ended_at(records[row["rank"]]) - (SAME_MOMENT if row["last_line"] else 0.0)

    return min(failed, key=order)["rank"] if failed else None


def job_state(rows: list[dict[str, Json]], end: Mapping[str, Json] | None) -> str:
    """Return the state of the job from its ranks and from why it was ended."""
    if all(row["state"] == "succeeded" for row in rows):
        return "succeeded"
    reason = end["reason"] if end else ""
    return reason if reason in ("timed_out", "cancelled", "lost") else "failed"


def summarize(
    order: Mapping[str, Json],
    records: Mapping[int, Mapping[str, Json]],
    end: Mapping[str, Json] | None,
    last_lines: Mapping[int, tuple[str, str]],
    launcher: Mapping[str, Json],
    found: Mapping[str, Json],
) -> dict[str, Json]:
    """Return the result of a job, as docs/result.schema.json describes it.

    `last_lines` by rank: stream and line; `found`: leftovers by host, metrics, ended (seconds since the epoch), seconds
    that the job took or None (then the difference of its times).
    """
    took = found.get("seconds")
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
        "started": timestamp(order["started"]),
        "ended": timestamp(found["ended"]),
        "seconds": round(found["ended"] - order["started"] if took is None else took, 3),
        "launcher": order["launcher"],
        "backend": order["backend"],
        "world_size": order["world_size"],
        "command": order["shown_command"],
        "placement": [place_row(place, records.get(place["rank"], {})) for place in planned],
        "ranks": rows,
        "first_failure": first_failure(order, state, rows, blamed, records, end, launcher, last_lines),
        "silent_ranks": [row["rank"] for row in rows if row["state"] == "silent"],
        "leftovers": found["leftovers"],
        "metrics": found["metrics"],
        "notes": ranks_never_met_note(order, state, records) + cancelled_by_node_note(state, end),
    }


def ranks_never_met_note(
    order: Mapping[str, Json], state: str, records: Mapping[int, Mapping[str, Json]]
) -> list[dict[str, str]]:
    """Return a note if every rank succeeded and none used a process group of them all."""
    size = order["world_size"]
    groups = [records[place["rank"]].get("group") for place in order["placement"] if place["rank"] in records]
    known = [group for group in groups if group is not None]
    if state != "succeeded" or size == 1 or len(known) < size or max(known) >= size:
        return []
    how = "each alone" if max(known) < 2 else f"in groups of {max(known)} at most"
    text = f"{size} ranks ran, {how}: no process group of {size} was used"
    return [{"code": "ranks_never_met", "text": text}]


def cancelled_by_node_note(state: str, end: Mapping[str, Json] | None) -> list[dict[str, str]]:
    """Return a note with the node on which the job was cancelled, if it was not the head: nothing else names it."""
    host = end.get("host") if end and state == "cancelled" else ""
    return [{"code": "cancelled_by_a_node", "text": f"{host} ended it: {end['detail']}"}] if end and host else []


def place_row(planned: Mapping[str, Json], record: Mapping[str, Json]) -> dict[str, Json]:
    """Return one entry of result.placement: what was planned, and what was seen: where it came up, pid and cpus."""
    seen = {name: record.get(name) for name in ("host", "local_rank")}
    return {**planned, "seen": seen, "pid": record.get("pid"), "cpus": record.get("cpus", [])}


def exit_status(state: str, rows: list[dict[str, Json]], blamed: int | None, launcher: Mapping[str, Json]) -> int:
    """Return the exit status of the job: that of the rank to blame, else what the state or the launcher says."""
    if state == "succeeded":
        return 0
    if state in RC_BY_STATE:
        return RC_BY_STATE[state]
    rc = next((row["rc"] for row in rows if row["rank"] == blamed), None) or launcher.get("rc")
    return int(rc or 1)


def first_failure(
    order: Mapping[str, Json],
    state: str,
    rows: list[dict[str, Json]],
    blamed: int | None,
    records: Mapping[int, Mapping[str, Json]],
    end: Mapping[str, Json] | None,
    launcher: Mapping[str, Json],
    last_lines: Mapping[int, tuple[str, str]],
) -> dict[str, Json] | None:
    """Return rank, host, cause, message and log of what went wrong first; null if nothing did, or a person ended it."""
    if state in ("succeeded", "cancelled"):
        return None
    if blamed is not None and state == "failed":
        row = next(row for row in rows if row["rank"] == blamed)
        return blame(order, row, cause_of(records[blamed]), last_lines[blamed][0])
    if end and end["reason"] in ("timed_out", "lost"):
        undone = [row for row in rows if row["state"] != "succeeded"] or rows
        late = next((row for row in undone if row["host"] == end.get("host")), undone[0])
        return blame(order, late, end["detail"], last_lines[late["rank"]][0])
    silent = next((row for row in rows if row["state"] == "silent"), None)
    if silent and not launcher.get("rc") and (not end or end["reason"] == "launcher_died"):
        how = f"it left no record, and {order['launcher']['name']} ended with status 0"
        return blame(order, silent, how, last_lines[silent["rank"]][0])
    cause = end["detail"] if end else f"{order['launcher']['name']} ended with status {launcher.get('rc')}"
    host = launcher.get("host", order["host"])
    name = "launcher.out" if host == order["host"] else f"launcher.{host}.out"
    log = os.path.join(order["run_dir"], name)
    return {"rank": None, "host": host, "cause": cause, "message": launcher.get("last_line", ""), "log": log}


def blame(order: Mapping[str, Json], row: Mapping[str, Json], cause: str, stream: str) -> dict[str, Json]:
    """Return the first_failure entry of a rank whose last words are in that stream."""
    log = os.path.join(order["run_dir"], "ranks", str(row["rank"]), stream)
    return {"rank": row["rank"], "host": row["host"], "cause": cause, "message": row["last_line"], "log": log}


def last_line_of(job: JobDir, rank: int, record: Mapping[str, Json] | None) -> tuple[str, str]:
    """Return stream and text of a rank's last line: of stderr if it did not succeed, else of stdout."""
    names = ["stdout", "stderr"] if record and record.get("rc") == 0 else ["stderr", "stdout"]
    lines = [(name, last_line(job.rank(rank, name))) for name in names]
    return next(((name, line) for name, line in lines if line), lines[0])


def records_of(job: JobDir, order: Mapping[str, Json]) -> dict[int, dict[str, Json]]:
    """Return the records on this node by rank, also of ranks that the plan has elsewhere."""
    ranks = [place["rank"] for place in order["placement"]]
    found = {rank: record for rank in ranks for record in [job.record(rank)] if record}
    for rank, record in found.items():
        record.pop("group", None)
        group = group_of(job, rank)
        record.update({} if group is None else {"group": group})
    return found


def misplaced_record(record: Mapping[str, Json], host: str) -> dict[str, Json]:
    """Return the record of a rank that came up on the wrong host: it failed, whatever it says."""
    said = str(record.get("error") or "")
    return {**record, "error": said if said.startswith("placement") else f"placement: the rank came up on {host}"}


def group_of(job: JobDir, rank: int) -> int | None:
    """Return the size of the largest process group that a rank used, 0 for none; None if that is not known."""
    try:
        with open(open_file(job.rank(rank, "group")), "rb") as file:
            words = file.read(NOTE_BYTES).decode(errors="replace").split()
    except OSError:
        return None
    sizes = [int(word) for word in words if re.match(r"[0-9]{1,7}\Z", word)]
    return max(sizes, default=0) if END in words else None


def leftovers_of(job: JobDir, records: Mapping[int, Mapping[str, Json]]) -> list[Json]:
    """Return what outlived its rank on this node, ended by the guard or by a rank that has none above it."""
    found = job.leftovers()
    return found + [row for record in records.values() for row in rows_of(record.get("leftovers"))]


def node_lost(
    end: dict[str, Json] | None,
    silent: Iterable[str],
    launcher: Mapping[str, Json],
    records: Mapping[int, Mapping[str, Json]],
    lines: Mapping[int, tuple[str, str]],
) -> dict[str, Json] | None:
    """Return why the job ended: the loss of a node, if that explains everything recorded before.

    A launcher leaves by itself when one of its nodes is gone (Open MPI 5.0.11 with status 0), ranks lose a connection;
    the loss of the node itself is noticed only when its lease is over.
    """
    lost = next(iter(silent), "")
    if not lost or not end or end["reason"] not in ("launcher_died", "rank_failed") or signal_of(launcher):
        return end
    failed = [rank for rank, record in records.items() if rank_state(record, end) == "failed"]
    orphaned = [rank for rank in failed if records[rank].get("error") == WRAPPER_DIED]
    if all(rank in orphaned or is_consequence(records[rank], lines[rank][1]) for rank in failed):
        detail = f"{lost} is lost: it did not answer when the job ended"
        return {**end, "reason": "lost", "host": lost, "detail": detail}
    return end


def blame_launcher(
    end: dict[str, Json] | None,
    launcher: dict[str, Json],
    daemons: Mapping[str, Mapping[str, Json]],
    records: Mapping[int, dict[str, Json]],
) -> tuple[dict[str, Json] | None, dict[str, Json]]:
    """Name the launcher process whose death explains why the job ended. Return the end, and the launcher's state there.

    One death takes the rest down at once (a launcher its daemons, a daemon the launcher, Hydra's daemons the rank
    wrappers), and which of them we hear of first is chance. Wrappers that died with a launcher are marked as ended.
    """
    everyone = {launcher["host"]: launcher, **daemons}
    host = end.get("host") or launcher["host"] if end else ""
    orphans = [record for record in records.values() if record.get("error") == WRAPPER_DIED]
    claimed = end["reason"] == "launcher_died" if end else False
    if end and end["reason"] == "rank_failed" and signal_of(launcher) == signal.SIGKILL:
        # Slurm kills what is left of a step whose srun was killed: a rank's program may go before its wrapper.
        here = [record for record in records.values() if record["host"] == host]
        killed_with_srun = [record for record in here if record.get("signal") == signal.SIGKILL]
    else:
        killed_with_srun = []
    if end and (claimed or killed_with_srun or (orphans and end["detail"].startswith("the wrapper of"))):
        before = min((record["ended"] for record in orphans), default=end["at"])
        blamed = first_killed_by_signal(everyone, launcher["host"], before if not claimed else None)
        if blamed and not (claimed and blamed == host):
            killer = signal_name(signal_of(everyone[blamed]))
            detail = f"the launcher's process on {blamed} was killed by {killer}"
            end, host = {**end, "reason": "launcher_died", "host": blamed, "detail": detail}, blamed
        for record in [*orphans, *killed_with_srun] if blamed else ():
            record["told"] = True
    return end, {**everyone.get(host, launcher), "host": host if host in everyone else launcher["host"]}


def first_killed_by_signal(everyone: Mapping[str, Mapping[str, Json]], head: str, before: float | None) -> str:
    """Return the host of the launcher or daemon that a signal ended first, and not we; an empty text if none was.

    SIGKILL before other signals, by which a process aborts; the launcher before its daemons: nothing that befalls them
    kills it. With `before` daemons count only if they died before that time.
    """
    order = {
        name: (signal_of(row) != signal.SIGKILL, name != head, row["at"])
        for name, row in everyone.items()
        if signal_of(row) and (name == head or before is None or row["at"] < before)
    }
    return min(order, key=order.__getitem__, default="")


def signal_of(row: Mapping[str, Json]) -> int:
    """Return the signal that ended a launcher or a daemon before we had begun to, 0 if none did."""
    number = int(row.get("rc", 0)) - 128
    return number if row.get("unasked") and 0 < number <= signal.SIGRTMAX else 0


def write_result(
    job: JobDir, metrics: Metrics, node_reports: Mapping[str, Json], seconds: float | None = None
) -> dict[str, Json]:
    """Read what a job left in its directory, write result.json there, return it. The last one standing calls this.

    `metrics` of the head's own ranks; `node_reports`: of the other nodes by name, times by the head's clock;
    `seconds` that the job took, if the caller was there.
    """
    order, end = job.read("order.json"), job.end()
    own = [place["rank"] for place in order["placement"] if place["host"] == order["host"]]
    found_here = records_of(job, order).items()
    records = {rank: record if rank in own else misplaced_record(record, order["host"]) for rank, record in found_here}
    lines = {place["rank"]: ("stderr", "") for place in order["placement"]}
    lines.update({rank: last_line_of(job, rank, records.get(rank)) for rank in own})
    launcher = {**job.launcher(), "last_line": last_line(job.at("launcher.out"))}
    leftovers = {order["host"]: leftovers_of(job, records)[:ROWS]}
    for host, report in node_reports.items():
        for rank, record in report["records"].items():
            planned = next((place["host"] for place in order["placement"] if place["rank"] == int(rank)), None)
            if planned == host:
                records[int(rank)] = record
            elif planned and int(rank) not in records:  # it came up where it should not have
                records[int(rank)] = misplaced_record(record, host)
        theirs = {place["rank"] for place in order["placement"] if place["host"] == host}
        lines.update({int(rank): tuple(line) for rank, line in report["lines"].items() if int(rank) in theirs})
        leftovers[host] = report["leftovers"]
        for name, rank, value in report["metrics"]:
            if rank in theirs:
                metrics.note(name, rank, value)
    launcher["host"] = order["host"]
    silent = [route["name"] for route in order["peers"] if route["name"] not in node_reports]
    end = node_lost(end, silent, launcher, records, lines)
    end, launcher = blame_launcher(
        end, launcher, {host: report["launcher"] for host, report in node_reports.items()}, records
    )
    found = {"leftovers": leftovers, "metrics": metrics.last, "ended": time.time(), "seconds": seconds}
    result = summarize(order, records, end, lines, launcher, found)
    job.write("result.json", result)
    job.drop_ballast()
    return result
