# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why a job failed, from its run directory and the book of causes: what is shown, and kept in result.json."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import open_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.output_lines import shorten
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.codes import known
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import BadFrame
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import NoteCode, RankError
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Result, ResultRank
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import frames

from .book import Entry, book
from .checkpoint_interval import Interval, interval_of
from .match import LOOKED_AT, Ended, Match, by_code, by_launcher, by_signal, by_state, by_text

RANKS = 8  # whose output is read
RECORD_BYTES = 1 << 16
RESULT_BYTES = 1 << 26
RESULT = "result.json"
HUNG = "hung"  # how the book calls a job that was ended because it hung


class Cause(TypedDict):
    """`cause` of result.json."""

    id: str
    rank: int | None  # None: the launcher, or the job
    host: str
    line: str  # the evidence; empty if a signal or a code is
    cause: str
    mend: str


class ExplainedResult(Result):
    """result.json on the controller."""

    cause: Cause | None
    checkpoint: Interval | None


class Found(NamedTuple):
    """The entry that was recognised, and the rank that it was recognised at."""

    match: Match
    rank: int | None
    host: str


def explained(result: Result, run_dir: Path) -> ExplainedResult:
    """Return a result with its cause, and how often to save; keep them in the run directory. No error if that fails."""
    told: ExplainedResult = {
        **result,
        "cause": cause_of(result, run_dir),
        "checkpoint": interval_of(result, run_dir),
    }
    if told["cause"] or told["checkpoint"]:
        with contextlib.suppress(OSError):  # the disk is full: it is shown all the same
            keep(run_dir / RESULT, told)
    return told


def explained_file(run_dir: Path) -> ExplainedResult | None:
    """Return the result of a run that was brought home, with its cause. None for what is no result of ours.

    The head wrote the file: it is read with the limits of a frame.
    """
    try:
        with open(open_file(str(run_dir / RESULT)), "rb") as file:
            frame = frames.parse(b'{"kind": "result", "result": ' + file.read(RESULT_BYTES) + b"}")
        result = frames.checked(frame, {"result": frames.outcome})["result"]
    except (OSError, BadFrame):
        return None
    return explained(result, run_dir)


def said(cause: Cause | None, blamed: int | None) -> str:
    """Return what the last line of a failed job ends with. `blamed`: the rank that the line names already."""
    if not cause:
        return ""
    whose = (
        "" if cause["rank"] in (None, blamed) else f"rank {cause['rank']} on {cause['host']} says {cause['line']!r}: "
    )
    return f"; cause {cause['id']}: {whose}{cause['cause']} Fix: {cause['mend']}"


def cause_of(result: Result, run_dir: Path) -> Cause | None:
    """Return why a job failed, if the book knows."""
    if not result["first_failure"] or result["state"] in ("succeeded", "saved", "cancelled"):
        return None
    found = found_in(result, run_dir, book())
    if not found:
        return None
    entry = found.match.entry
    line = shorten(found.match.line.encode(errors="replace"))
    return {
        "id": entry.id,
        "rank": found.rank,
        "host": found.host,
        "line": line,
        "cause": entry.cause,
        "mend": entry.mend,
    }


def found_in(result: Result, run_dir: Path, entries: Sequence[Entry]) -> Found | None:
    """Return the first that explains the failure; one that only follows another failure if there is no other."""
    late: list[Found] = []
    for found in candidates(result, run_dir, entries):
        if not found.match.entry.follows:
            return found
        late.append(found)
    return late[0] if late else None


def candidates(result: Result, run_dir: Path, entries: Sequence[Entry]) -> Iterator[Found]:
    """Yield what the book knows of a failure, in the order in which it is believed."""
    failure = result["first_failure"]
    host = failure["host"] if failure else ""
    hung = any(note["code"] == NoteCode.HANG_END for note in result["notes"])
    if hung or result["state"] != "failed":
        state = by_state(entries, HUNG if hung else result["state"])
        yield from [Found(state, None, host)] if state else []
        return
    rows = failed_ranks(result)
    for row in rows:
        ended = how_ended(row, run_dir)
        match = by_code(entries, ended.code) or in_streams(entries, ended, row, run_dir)
        yield from [Found(match, row["rank"], row["host"])] if match else []
    said = (by_launcher(entries, tail(run_dir / name)) for name in launcher_files(result, host))
    match = next(filter(None, said), None)
    yield from [Found(match, None, host)] if match else []
    for row in rows[:1]:
        match = by_signal(entries, how_ended(row, run_dir))
        yield from [Found(match, row["rank"], row["host"])] if match else []


def launcher_files(result: Result, host: str) -> list[str]:
    """Return where launchers' output may say why: the head's, the blamed node's; a batch file of Slurm runs on any."""
    others = dict.fromkeys(row["host"] for row in result["placement"]) if result["launcher"]["name"] == "sbatch" else ()
    return ["launcher.out", *[f"launcher.{name}.out" for name in dict.fromkeys([host, *others])]]


def failed_ranks(result: Result) -> list[ResultRank]:
    """Return the rank to blame, and then others that failed by themselves, the one that ran shortest first."""
    failure = result["first_failure"]
    blamed = failure["rank"] if failure else None
    failed = [row for row in result["ranks"] if row["state"] == "failed"]
    return sorted(failed, key=lambda row: (row["rank"] != blamed, row["seconds"] or 0.0))[:RANKS]


def how_ended(row: ResultRank, run_dir: Path) -> Ended:
    """Return how a rank ended, by its row and its record."""
    try:
        record = json.loads(tail(run_dir / "ranks" / str(row["rank"]) / "record.json", RECORD_BYTES) or "{}")
        code = record.get("error_code") if isinstance(record, dict) else ""
    except (ValueError, RecursionError):
        code = ""
    return Ended(rc=row["rc"], signal=row["signal"], code=known(RankError, code) or RankError.NONE)


def in_streams(entries: Sequence[Entry], ended: Ended, row: ResultRank, run_dir: Path) -> Match | None:
    """Return what a rank's stderr says, else its stdout; what follows another failure only if neither says more."""
    place = run_dir / "ranks" / str(row["rank"])
    found = [by_text(entries, ended._replace(text=tail(place / name))) for name in ("stderr", "stdout")]
    return min((match for match in found if match), key=lambda match: match.entry.follows, default=None)


def tail(path: Path, size: int = LOOKED_AT) -> str:
    """Return the end of a file, empty if it cannot be read."""
    try:
        with open(open_file(str(path)), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size).decode(errors="replace")
    except OSError:
        return ""


def keep(path: Path, told: ExplainedResult) -> None:
    """Exchange result.json for one with the cause: whole, and for its owner only. OSError."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with open(os.open(beside, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(told, file, indent=2)
            file.write("\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
