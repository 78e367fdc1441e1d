# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What may come over the wire: a function for each kind of frame, which checks type, form and size of its fields.

A node may be in the hands of an attacker. So the controller checks all that the head sends, and the head all that the
other nodes send, here and nowhere else. Text for people comes out without characters that a terminal would obey.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Callable, Mapping, TypeVar

from ..types.evidence import ALL_EVIDENCE
from ..types.file_messages import DataLaid, DataWanted, Fetched, File, FilesChecked, NodeArtifacts, Wanted
from ..types.forms import (
    BadFrame,
    Fields,
    Form,
    coded,
    either,
    flag,
    like,
    listed,
    mapped,
    metric,
    metric_name,
    moment,
    one_of,
    optional,
    printable,
    short,
    whole,
    words,
)
from ..types.queue_messages import Jobs, Queued, Restarted, Turn, Unqueued
from ..types.reasons import FINAL_STATES, EndReason
from ..types.records import Artifact
from . import protocol
from .node_form import HOST, ROWS, RUNNING, facts
from .record_forms import AHEAD, CODE, JOB_ROW, PLACE, RANK, REPORT, RESTARTS_MOST, RESULT, WAITING, WAITING_MOST

Message = TypeVar("Message")
Accepted = Mapping[str, Callable[[Fields], Message]]  # by kind
LINE_BYTES = 64 << 20  # of one frame without its data: the listing of 10,000 files takes 2 MiB
DATA_BYTES = 1 << 20  # of one block of a file
VALUES_MOST = 4_000_000  # of one frame: a line of empty lists takes thirty times its length in memory
DIGITS_MOST = 4300  # of a whole number, as Python from 3.11 on has it: reading one takes the square of that
MOST_PIECES = 400_000  # of a data set
ATTEMPT = re.compile(r"attempts/(0|[1-9][0-9]{0,3})/(?=.)")  # before a file's name: of an earlier attempt
RANK_FILES = ("stdout", "stderr", "record.json", "arrivals.jsonl", "budget.json", "trace.json.gz")
RANK_FILE = re.compile(rf"ranks/(0|[1-9][0-9]{{0,6}})/({'|'.join(map(re.escape, RANK_FILES))})\Z")


def parse(line: bytes) -> Fields:
    """Return the frame that a line of JSON says. BadFrame if it says none."""
    if sum(map(line.count, (b",", b"[", b"{"))) > VALUES_MOST:
        raise BadFrame(f"it sent more than {VALUES_MOST:,} values at once")
    try:
        frame = json.loads(line, parse_constant=refuse_constant, parse_int=WHOLE)
    except (ValueError, RecursionError):
        raise BadFrame("it sent an invalid message") from None
    if not isinstance(frame, dict) or not isinstance(frame.get("kind"), str):
        raise BadFrame("it sent an invalid message")
    size_of(frame)
    return frame


def size_of(frame: Fields) -> int:
    """Return how many bytes follow the line of a frame. BadFrame if it says that it is more than a block."""
    size = frame.get("size", 0)
    if type(size) is not int or not 0 <= size <= DATA_BYTES:
        raise BadFrame("a frame says that more than a block follows")
    return size


def refuse_constant(name: str) -> object:
    """Refuse NaN and Infinity, which JSON does not have."""
    raise ValueError(name)


def short_whole(digits: str) -> int:
    """Return a whole number of no more digits than Python from 3.11 on takes."""
    if len(digits) > DIGITS_MOST:
        raise ValueError("a number of too many digits")
    return int(digits)


WHOLE = None if hasattr(sys, "get_int_max_str_digits") else short_whole


def checked(frame: Fields, accepted: Accepted[Message]) -> Message:
    """Return a frame with its fields as they must be, others left out. BadFrame for the first that is not."""
    kind = str(frame["kind"])
    if kind not in accepted:
        raise BadFrame(f"it sent an unexpected frame of kind {printable(kind)[:40]!r}")
    try:
        return accepted[kind](frame)
    except (BadFrame, ValueError, OverflowError) as error:
        raise BadFrame(f"its frame {kind!r} is not what it must be: {error}") from None


# --- frames ---------------------------------------------------------------------------------------------------------

PIECE = whole(0, MOST_PIECES)
COUNT = whole(0, 1 << 62)
STATUS = whole(0, 255)
STREAM = one_of("stdout", "stderr")
VALUES = mapped(metric_name, metric, ROWS)
MISSING = listed(words, 100_000)
END_REASON = coded(EndReason)
RESTARTS = whole(0, RESTARTS_MOST)
ARTIFACT: Form[Artifact] = Form(
    {"path": words, "bytes": COUNT, "sha256": like(re.compile(r"[0-9a-f]{64}\Z"), "a digest")}
)


def beat(_raw: Fields) -> protocol.Beat:
    return {"kind": "beat"}


def surveyed(raw: Fields) -> protocol.Surveyed:
    return {"kind": "survey", "facts": facts(raw.get("facts")), "nodes": mapped(HOST, facts)(raw.get("nodes"))}


def node_surveyed(raw: Fields) -> protocol.NodeSurveyed:
    return {"kind": "survey", "facts": facts(raw.get("facts"))}


def wanted(raw: Fields) -> Wanted:
    return {"kind": "wanted", "wanted": listed(words)(raw.get("wanted"))}


def files_checked(raw: Fields) -> FilesChecked:
    return {"kind": "files_checked", "reason": words(raw.get("reason"))}


def pieces(value: object) -> tuple[int, int]:
    """Return the numbers of the first and the last of some pieces of a data set."""
    if not isinstance(value, list) or len(value) != 2:
        raise BadFrame("first and last of some pieces were expected")
    return PIECE(value[0]), PIECE(value[1])


def data_wanted(raw: Fields) -> DataWanted:
    return {
        "kind": "data_wanted",
        "wanted": listed(pieces, MOST_PIECES)(raw.get("wanted")),
        "unreached": listed(HOST)(raw.get("unreached")),
        "reason": words(raw.get("reason")),
    }


def data_laid(raw: Fields) -> DataLaid:
    return {"kind": "data_laid", "reason": words(raw.get("reason"))}


def refused(raw: Fields) -> protocol.Refused:
    running = raw.get("running")
    return {
        "kind": "refused",
        "reason": words(raw.get("reason")),
        "running": {} if running is None else mapped(HOST, RUNNING)(running),
    }


def started(_raw: Fields) -> protocol.Started:
    return {"kind": "started"}


def line(raw: Fields) -> protocol.Line:
    return {
        "kind": "line",
        "rank": RANK(raw.get("rank")),
        "stream": STREAM(raw.get("stream")),
        "text": words(raw.get("text")),
        "skipped": COUNT(raw.get("skipped")),
    }


def report(raw: Fields) -> protocol.Report:
    return {"kind": "report", "rank": RANK(raw.get("rank")), "values": VALUES(raw.get("values"))}


def outcome(raw: Fields) -> protocol.Outcome:
    return {"kind": "result", "result": RESULT(raw.get("result"))}


def file(raw: Fields) -> File:
    """Its name is checked by who asked for files."""
    data = raw.get("data")
    return {
        "kind": "file",
        "name": words(raw.get("name")),
        "first": flag(raw.get("first")),
        "data": data if isinstance(data, bytes) else b"",
    }


def artifacts(raw: Fields) -> NodeArtifacts:
    """Their names are checked by artifact_border.Border, as those of files are."""
    return {
        "kind": "artifacts",
        "host": HOST(raw.get("host")),
        "files": listed(ARTIFACT)(raw.get("files")),
        "left_out": mapped(CODE, whole(0, 1 << 31), 10)(raw.get("left_out")),
        "unmatched": listed(short, 100)(raw.get("unmatched")),
        "refused": like(re.compile(r"[a-z_]{0,40}\Z"), "a code")(raw.get("refused")),
    }


def fetched(raw: Fields) -> Fetched:
    return {"kind": "fetched", "missing": MISSING(raw.get("missing"))}


def waiting(raw: Fields) -> protocol.Waiting:
    return {"kind": "waiting", "jobs": listed(WAITING, 100_000)(raw.get("jobs"))}


def forgotten(raw: Fields) -> protocol.Forgotten:
    return {"kind": "forgotten", "missing": MISSING(raw.get("missing"))}


def attached(raw: Fields) -> protocol.Attached:
    return {"kind": "attached", "placement": listed(PLACE)(raw.get("placement"))}


def jobs(raw: Fields) -> Jobs:
    return {"kind": "jobs", "jobs": listed(JOB_ROW, 100_000)(raw.get("jobs"))}


def queued(raw: Fields) -> Queued:
    return {
        "kind": "queued",
        "ahead": whole(0, WAITING_MOST)(raw.get("ahead")),
        "first": optional(AHEAD)(raw.get("first")),
    }


def restarted(raw: Fields) -> Restarted:
    return {
        "kind": "restarted",
        "state": one_of(*FINAL_STATES)(raw.get("state")),
        "restarts": RESTARTS(raw.get("restarts")),
        "most": RESTARTS(raw.get("most")),
    }


def turn(_raw: Fields) -> Turn:
    return {"kind": "turn"}


def unqueued(raw: Fields) -> Unqueued:
    return {"kind": "unqueued", "found": flag(raw.get("found"))}


def looked(raw: Fields) -> protocol.Looked:
    return {
        "kind": "looked",
        "placement": listed(PLACE)(raw.get("placement")),
        "evidence": ALL_EVIDENCE(raw.get("evidence")),
        "missing": MISSING(raw.get("missing")),
    }


def end(raw: Fields) -> protocol.End:
    reason, detail = END_REASON(raw.get("reason")), short(raw.get("detail"))
    return {"kind": "end", "reason": reason, "detail": detail, "looks": raw.get("looks") is True}


def clock(raw: Fields) -> protocol.Clock:
    return {"kind": "clock", "time": moment(raw.get("time"))}


def staged(raw: Fields) -> protocol.Staged:
    reason, running = raw.get("reason"), raw.get("running")
    return {
        "kind": "staged",
        "reason": "" if reason is None else words(reason),
        "running": [] if running is None else RUNNING(running),
    }


def ending(raw: Fields) -> protocol.Ending:
    return {"kind": "ending", "reason": END_REASON(raw.get("reason")), "detail": short(raw.get("detail"))}


def placed(_raw: Fields) -> protocol.Placed:
    return {"kind": "placed"}


def done(raw: Fields) -> protocol.Done:
    return {"kind": "done", "saved": raw.get("saved") is True}


def launcher_exited(raw: Fields) -> protocol.LauncherExited:
    return {
        "kind": "launcher_exited",
        "rc": STATUS(raw.get("rc")),
        "text": either(words, "")(raw.get("text")),
    }


def over(raw: Fields) -> protocol.Over:
    return {"kind": "over", "report": REPORT(raw.get("report"))}


def round_report(raw: Fields) -> protocol.RoundReport:
    return {"kind": "round_report", "report": REPORT(raw.get("report"))}


def node_report(raw: Fields) -> protocol.MaybeReport:
    return {"kind": "node_report", "report": optional(REPORT)(raw.get("report"))}


def node_looked(raw: Fields) -> protocol.NodeLooked:
    return {"kind": "looked", "evidence": ALL_EVIDENCE(raw.get("evidence"))}


# What the controller takes from the head.
FROM_HEAD: Accepted[protocol.FromHead] = {
    "survey": surveyed,
    "wanted": wanted,
    "files_checked": files_checked,
    "data_wanted": data_wanted,
    "data_laid": data_laid,
    "refused": refused,
    "started": started,
    "beat": beat,
    "line": line,
    "report": report,
    "result": outcome,
    "file": file,
    "artifacts": artifacts,
    "fetched": fetched,
    "waiting": waiting,
    "forgotten": forgotten,
    "attached": attached,
    "jobs": jobs,
    "queued": queued,
    "restarted": restarted,
    "turn": turn,
    "unqueued": unqueued,
    "looked": looked,
}
# What a job takes from those that follow it: any program of its user may connect.
FROM_FOLLOWER: Accepted[protocol.FromFollower] = {"end": end, "beat": beat}
# What the head takes from another node.
FROM_NODE: Accepted[protocol.FromNode] = {
    "clock": clock,
    "survey": node_surveyed,
    "wanted": wanted,
    "files_checked": files_checked,
    "data_wanted": data_wanted,
    "data_laid": data_laid,
    "staged": staged,
    "beat": beat,
    "line": line,
    "report": report,
    "ending": ending,
    "placed": placed,
    "done": done,
    "launcher_exited": launcher_exited,
    "over": over,
    "round_report": round_report,
    "node_report": node_report,
    "file": file,
    "artifacts": artifacts,
    "fetched": fetched,
    "forgotten": forgotten,
    "looked": node_looked,
}
