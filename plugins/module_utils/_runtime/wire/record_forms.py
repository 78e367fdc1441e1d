# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The form of what lies in files of a job and comes over the wire: records.py and job_rows.py have the types."""

from __future__ import annotations

import re

from ..basics.job_directory import JOB_ID
from ..types.evidence import ALL_EVIDENCE
from ..types.forms import (
    BadFrame,
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
    shaped,
    short,
    whole,
    words,
)
from ..types.job_rows import Ahead, JobRow, WaitingRun
from ..types.orders import Place
from ..types.reasons import FINAL_STATES, RANK_STATES, NoteCode, RankError
from ..types.records import LauncherExit, Leftover, Metric, NodeReport, RankRecord, Result
from ..types.run_usage import RUN_USAGE
from ..types.usage import USAGE, amount
from .node_form import CPUS_MOST, HOST, ROWS

RESTARTS_MOST = 1000  # of a job
WAITING_MOST = 1_000_000  # jobs in a queue
RANK = whole(0, 9_999_999)
TIME = optional(number)
RECORD: Form[RankRecord] = shaped(
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
        "stopped": flag,
        "group": RANK,
    },
)
LEFTOVER: Form[Leftover] = Form(
    {"pid": whole(0, 1 << 31), "command": short, "ended": optional(one_of("SIGTERM", "SIGKILL"))}
)


def record(value: object) -> RankRecord:
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


def measured(value: object) -> tuple[str, int, Metric]:
    if not isinstance(value, list) or len(value) != 3:
        raise BadFrame("name, rank and value of a metric were expected")
    return metric_name(value[0]), RANK(value[1]), metric(value[2])


LAUNCHER: Form[LauncherExit] = Form(
    {}, {"pid": whole(0, 1 << 31), "rc": whole(0, 255), "at": moment, "unasked": flag, "last_line": short}
)


def launcher(value: object) -> LauncherExit:
    """Return what became of a launcher's daemon; nothing where there was none."""
    found = LAUNCHER(value)
    if "rc" in found and "at" not in found:
        raise BadFrame("the end of a launcher was expected to have a time")
    return found


CODE = like(re.compile(r"[a-z_]{1,40}\Z"), "a code")
DIGITS = like(re.compile(r"[0-9]{1,7}\Z"), "a rank")
REPORT: Form[NodeReport] = shaped(
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
RESULT: Form[Result] = shaped(
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
        "notes": listed(Form({"code": coded(NoteCode), "text": words}), 100),
    }
)
WAITING: Form[WaitingRun] = Form(
    {
        "job_id": like(JOB_ID, "a job id"),
        "run_dir": words,
        "state": one_of(*FINAL_STATES),
        "own": flag,
        "seconds": number,
    }
)
JOB_ROW: Form[JobRow] = Form(
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
AHEAD: Form[Ahead] = Form(
    {
        "job_id": like(JOB_ID, "a job id"),
        "owner": short,
        "own_home": flag,
        "state": one_of("running", "waiting"),
        "seconds": number,
    }
)

PLACE: Form[Place] = Form({"rank": RANK, "local_rank": RANK, "host": HOST})
