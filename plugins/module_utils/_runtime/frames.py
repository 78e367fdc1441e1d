# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What may come over the wire: the kinds of frames, and the type, form and size of each field.

A node may be in the hands of an attacker. So the controller checks all that the head sends, and the head all that the
other nodes send, here and nowhere else. Text for people comes out without characters that a terminal would obey.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Mapping

from .evidence import ALL_EVIDENCE
from .forms import (
    BadFrame,
    Check,
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
    number,
    one_of,
    optional,
    printable,
    shaped,
    short,
    whole,
    words,
)
from .job_directory import JOB_ID
from .node_form import CPUS_MOST, HOST, ROWS, RUNNING, facts
from .reasons import FINAL_STATES, RANK_STATES, EndReason, RankError
from .usage import USAGE, amount
from .usage_figures import RUN_USAGE

LINE_BYTES = 64 << 20  # of one frame without its data: the listing of 10,000 files takes 2 MiB
DATA_BYTES = 1 << 20  # of one block of a file
VALUES_MOST = 4_000_000  # of one frame: a line of empty lists takes thirty times its length in memory
DIGITS_MOST = 4300  # of a whole number, as Python from 3.11 on has it: reading one takes the square of that
MOST_PIECES = 400_000  # of a data set
RESTARTS_MOST = 1000  # of a job
WAITING_MOST = 1_000_000  # jobs in a queue
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
    size = frame.get("size", 0)
    if type(size) is not int or not 0 <= size <= DATA_BYTES:
        raise BadFrame("a frame says that more than a block follows")
    return frame


def refuse_constant(name: str) -> object:
    """Refuse NaN and Infinity, which JSON does not have."""
    raise ValueError(name)


def short_whole(digits: str) -> int:
    """Return a whole number of no more digits than Python from 3.11 on takes."""
    if len(digits) > DIGITS_MOST:
        raise ValueError("a number of too many digits")
    return int(digits)


WHOLE = None if hasattr(sys, "get_int_max_str_digits") else short_whole


def checked(frame: Mapping[str, object], accepted: Mapping[str, Mapping[str, Check]]) -> Fields:
    """Return a frame with its fields as they must be, others left out. BadFrame for the first that is not."""
    kind = str(frame["kind"])
    if kind not in accepted:
        raise BadFrame(f"it sent a frame of kind {printable(kind)[:40]!r}, which nobody asked for")
    try:
        found = {name: check(frame.get(name)) for name, check in accepted[kind].items()}
    except (BadFrame, ValueError, OverflowError) as error:
        raise BadFrame(f"its frame {kind!r} is not what it must be: {error}") from None
    return {"kind": kind, **found}


# --- frames ---------------------------------------------------------------------------------------------------------

RANK = whole(0, 9_999_999)
PIECE = whole(0, MOST_PIECES)
TIME = optional(number)
RECORD = shaped(
    {
        "rank": RANK,
        "local_rank": RANK,
        "host": HOST,
        "wrapper_pid": whole(0, 1 << 31),
        "cpus": listed(whole(0, 1 << 16), CPUS_MOST),
        "started": moment,
    },
    {
        "pid": RANK,
        "ended": moment,
        "started_tick": moment,
        "ended_tick": moment,
        "rc": whole(0, 255),
        "finished": flag,
        "cpu_seconds": amount,
        "peak_bytes": whole(0, 1 << 62),
        "error_code": coded(RankError),
        "error": short,
        "ended_by_us": flag,
        "group": RANK,
    },
)
LEFTOVER = Form({"pid": whole(0, 1 << 31), "command": short, "ended": optional(one_of("SIGTERM", "SIGKILL"))})


def record(value: object) -> Fields:
    """Return the record of a rank. Fields that it has only at its end are checked where they are."""
    found = RECORD(value)
    if ("rc" in found or found.get("error") or found.get("error_code")) and "ended" not in found:
        raise BadFrame("the end of a rank was expected to have a time")
    if found.get("signal") is not None:
        found["signal"] = whole(1, 64)(found["signal"])
    found["leftovers"] = listed(LEFTOVER, ROWS)(found.get("leftovers", []))
    return found


def pair(value: object) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2:
        raise BadFrame("a stream and a line were expected")
    return one_of("stdout", "stderr")(value[0]), short(value[1])


def pieces(value: object) -> tuple[int, int]:
    """Return the numbers of the first and the last of some pieces of a data set."""
    if not isinstance(value, list) or len(value) != 2:
        raise BadFrame("first and last of some pieces were expected")
    return PIECE(value[0]), PIECE(value[1])


def measured(value: object) -> list[object]:
    if not isinstance(value, list) or len(value) != 3:
        raise BadFrame("name, rank and value of a metric were expected")
    return [metric_name(value[0]), RANK(value[1]), metric(value[2])]


LAUNCHER = Form({}, {"pid": whole(0, 1 << 31), "rc": whole(0, 255), "at": moment, "unasked": flag, "last_line": short})


def launcher(value: object) -> Fields:
    """Return what became of a launcher's daemon; nothing where there was none."""
    found = LAUNCHER(value)
    if "rc" in found and "at" not in found:
        raise BadFrame("the end of a launcher was expected to have a time")
    return found


CODE = like(re.compile(r"[a-z_]{1,40}\Z"), "a code")
DIGITS = like(re.compile(r"[0-9]{1,7}\Z"), "a rank")
REPORT = shaped(
    {
        "records": mapped(DIGITS, record),
        "lines": mapped(DIGITS, pair),
        "leftovers": listed(LEFTOVER, ROWS),
        "launcher": launcher,
        "metrics": listed(measured, ROWS),
        "evidence": ALL_EVIDENCE,
        "usage": optional(USAGE),
    }
)
RESULT = shaped(
    {
        "job_id": like(JOB_ID, "a job id"),
        "state": one_of(*FINAL_STATES),
        "rc": whole(0, 255),
        "seconds": number,
        "launcher": shaped({"name": words, "version": words}),
        "backend": words,
        "world_size": whole(1, 9_999_999),
        "placement": listed(
            shaped({"rank": RANK, "host": HOST, "seen": shaped({"host": optional(HOST), "local_rank": optional(RANK)})})
        ),
        "ranks": listed(
            shaped(
                {
                    "rank": RANK,
                    "host": HOST,
                    "state": one_of(*RANK_STATES),
                    "rc": optional(whole(0, 255)),
                    "signal": optional(whole(1, 64)),
                    "seconds": TIME,
                    "cpu_seconds": optional(amount),
                    "peak_bytes": optional(whole(0, 1 << 62)),
                    "last_line": short,
                }
            )
        ),
        "first_failure": optional(
            shaped({"rank": optional(RANK), "host": HOST, "cause": words, "message": words, "log": words})
        ),
        "leftovers": mapped(HOST, listed(LEFTOVER, 2 * ROWS)),
        "metrics": mapped(metric_name, metric),
        "usage": either(RUN_USAGE, {"nodes": {}, "findings": []}),
        "notes": listed(Form({"code": CODE, "text": words}), 100),
    }
)
LINE: dict[str, Check] = {
    "rank": RANK,
    "stream": one_of("stdout", "stderr"),
    "text": words,
    "skipped": whole(0, 1 << 62),
}
VALUES: dict[str, Check] = {"rank": RANK, "values": mapped(metric_name, metric, ROWS)}
FILE: dict[str, Check] = {"name": words, "first": flag}
ARTIFACTS: dict[str, Check] = {  # their names are checked by artifacts.Border, as those of files are
    "host": HOST,
    "files": listed(
        Form({"path": words, "bytes": whole(0, 1 << 62), "sha256": like(re.compile(r"[0-9a-f]{64}\Z"), "a digest")})
    ),
    "left_out": mapped(CODE, whole(0, 1 << 31), 10),
    "unmatched": listed(short, 100),
    "refused": like(re.compile(r"[a-z_]{0,40}\Z"), "a code"),
}
WANTED: dict[str, Check] = {"wanted": listed(words)}
FILES_CHECKED: dict[str, Check] = {"reason": words}
DATA_WANTED: dict[str, Check] = {"wanted": listed(pieces, MOST_PIECES), "unreached": listed(HOST), "reason": words}
WAITING = Form(
    {
        "job_id": like(JOB_ID, "a job id"),
        "run_dir": words,
        "state": one_of(*FINAL_STATES),
        "own": flag,
        "seconds": number,
    }
)
JOB_ROW = Form(
    {
        "job_id": like(JOB_ID, "a job id"),
        "state": one_of("running", "waiting", *FINAL_STATES),
        "owner": short,
        "own": flag,
        "fetched": flag,
        "seconds": number,
        "position": either(whole(0, WAITING_MOST), 0),
        "restarts": either(whole(0, RESTARTS_MOST), 0),
        "ranks": whole(1, 9_999_999),
        "hosts": listed(HOST, 100_000),
        "launcher": words,
        "backend": words,
        "values": mapped(metric_name, metric, ROWS),
        "before": mapped(metric_name, metric, 10),
        "paced_seconds": number,
    }
)
AHEAD = Form(
    {
        "job_id": like(JOB_ID, "a job id"),
        "owner": short,
        "own_home": flag,
        "state": one_of("running", "waiting"),
        "seconds": number,
    }
)

PLACES = listed(Form({"rank": RANK, "local_rank": RANK, "host": HOST}))

# What the controller takes from the head.
FROM_HEAD: dict[str, dict[str, Check]] = {
    "survey": {"facts": facts, "nodes": mapped(HOST, facts)},
    "wanted": WANTED,
    "files_checked": FILES_CHECKED,
    "data_wanted": DATA_WANTED,
    "data_laid": FILES_CHECKED,
    "refused": {"reason": words, "running": either(mapped(HOST, RUNNING), {})},
    "started": {},
    "beat": {},
    "line": LINE,
    "report": VALUES,
    "result": {"result": RESULT},
    "file": FILE,
    "artifacts": ARTIFACTS,
    "fetched": {"missing": listed(words, 100_000)},
    "waiting": {"jobs": listed(WAITING, 100_000)},
    "forgotten": {"missing": listed(words, 100_000)},
    "attached": {"placement": PLACES},
    "jobs": {"jobs": listed(JOB_ROW, 100_000)},
    "queued": {"ahead": whole(0, WAITING_MOST), "first": optional(AHEAD)},
    "restarted": {"state": one_of(*FINAL_STATES), "restarts": whole(0, RESTARTS_MOST), "most": whole(0, RESTARTS_MOST)},
    "turn": {},
    "unqueued": {"found": flag},
    "looked": {"placement": PLACES, "evidence": ALL_EVIDENCE, "missing": listed(words, 100_000)},
}
# What a job takes from those that follow it: any program of its user may connect.
FROM_FOLLOWER: dict[str, dict[str, Check]] = {
    "end": {"reason": coded(EndReason), "detail": short},
    "beat": {},
}
# What the head takes from another node.
FROM_NODE: dict[str, dict[str, Check]] = {
    "clock": {"time": moment},
    "survey": {"facts": facts},
    "wanted": WANTED,
    "files_checked": FILES_CHECKED,
    "data_wanted": DATA_WANTED,
    "data_laid": FILES_CHECKED,
    "staged": {"reason": either(words, ""), "running": either(RUNNING, [])},
    "beat": {},
    "line": LINE,
    "report": VALUES,
    "ending": {"reason": coded(EndReason), "detail": short},
    "placed": {},
    "done": {},
    "launcher_exited": {"rc": whole(0, 255), "text": either(words, "")},
    "over": {"report": REPORT},
    "node_report": {"report": optional(REPORT)},
    "file": FILE,
    "artifacts": ARTIFACTS,
    "fetched": {"missing": listed(words, 100_000)},
    "forgotten": {"missing": listed(words, 100_000)},
    "looked": {"evidence": ALL_EVIDENCE},
}
