# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What may come over the wire: the kinds of frames, and the type, form and size of each field.

A node may be in the hands of an attacker. So the controller checks all that the head sends, and the head all that the
other nodes send, here and nowhere else. Text for people comes out without characters that a terminal would obey.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
import sys
from typing import Any, Callable, Mapping

from .gpu_vendors import BUILDS, USABLE
from .job_directory import JOB_ID
from .reasons import RANK_ERRORS
from .reasons import STATES as STATES_BY_REASON

Json = Any
Check = Callable[[Json], Json]
LINE_BYTES = 64 << 20  # of one frame without its data: the listing of 10,000 files takes 2 MiB
DATA_BYTES = 1 << 20  # of one block of a file
DEPTH = 16  # of nested values
ITEMS = 200_000  # of one list or object
VALUES_MOST = 4_000_000  # of one frame: a line of empty lists takes thirty times its length in memory
DIGITS_MOST = 4300  # of a whole number, as Python from 3.11 on has it: reading one takes the square of that
TEXT = 10_000  # characters of a text for people
SHORT = 600  # of a line of output, a command, a name
CPUS_MOST = 1 << 13  # of a node: as many as Linux has
ROWS = 1000  # of leftovers, of metrics
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
NIC = re.compile(r"[A-Za-z0-9_.:@-]{1,15}\Z")  # IFNAMSIZ; "@" as in macvlan0@eth0
STATES = ("succeeded", "failed", "timed_out", "cancelled", "lost")
RANK_STATES = ("succeeded", "failed", "ended", "silent")
RANK_FILE = re.compile(r"ranks/(0|[1-9][0-9]{0,6})/(stdout|stderr|record\.json)\Z")


class BadFrame(ValueError):
    """The other side sent what no honest one would."""


def parse(line: bytes) -> dict[str, Json]:
    """Return the frame that a line of JSON says. BadFrame if it says none."""
    if sum(map(line.count, (b",", b"[", b"{"))) > VALUES_MOST:
        raise BadFrame(f"it sent more than {VALUES_MOST:,} values at once")
    try:
        frame = json.loads(line, parse_constant=refuse_constant, parse_int=WHOLE)
    except (ValueError, RecursionError):
        raise BadFrame("what it sent is no frame") from None
    if not isinstance(frame, dict) or not isinstance(frame.get("kind"), str):
        raise BadFrame("what it sent is no frame")
    size = frame.get("size", 0)
    if type(size) is not int or not 0 <= size <= DATA_BYTES:
        raise BadFrame("a frame says that more than a block follows")
    return frame


def refuse_constant(name: str) -> Json:
    """Refuse NaN and Infinity, which JSON does not have."""
    raise ValueError(name)


def short_whole(digits: str) -> int:
    """Return a whole number of no more digits than Python from 3.11 on takes."""
    if len(digits) > DIGITS_MOST:
        raise ValueError("a number of too many digits")
    return int(digits)


WHOLE = None if hasattr(sys, "get_int_max_str_digits") else short_whole


def checked(frame: Mapping[str, Json], accepted: Mapping[str, Mapping[str, Check]]) -> dict[str, Json]:
    """Return a frame with its fields as they must be, others left out. BadFrame for the first that is not."""
    kind = frame["kind"]
    if kind not in accepted:
        raise BadFrame(f"it sent a frame of kind {printable(kind)[:40]!r}, which nobody asked for")
    try:
        found = {name: check(frame.get(name)) for name, check in accepted[kind].items()}
    except (BadFrame, ValueError, OverflowError) as error:
        raise BadFrame(f"its frame {kind!r} is not what it must be: {error}") from None
    return {"kind": kind, **found}


def printable(text: str) -> str:
    """Return a text without what a terminal would obey: control characters, line ends, directions of writing."""
    if text.isprintable():
        return text
    return "".join(letter for letter in text if letter == "\t" or letter.isprintable())


# --- forms ----------------------------------------------------------------------------------------------------------


def words(value: Json) -> str:
    """Return a text for people, made printable."""
    if not isinstance(value, str):
        raise BadFrame("a text was expected")
    return printable(value[:TEXT])


def short(value: Json) -> str:
    """Return a short text for people, made printable."""
    return words(value)[:SHORT]


def like(form: re.Pattern[str], what: str) -> Check:
    """Return a check: a text of this form."""

    def check(value: Json) -> str:
        if not isinstance(value, str) or len(value) > 4096 or not form.match(value):
            raise BadFrame(f"{what} was expected")
        return value

    return check


def one_of(*choices: str) -> Check:
    def check(value: Json) -> str:
        if value not in choices:
            raise BadFrame(f"one of {', '.join(choices)} was expected")
        return str(value)

    return check


def whole(least: int, most: int) -> Check:
    """Return a check: a whole number from `least` to `most`."""

    def check(value: Json) -> int:
        if type(value) is not int or not least <= value <= most:
            raise BadFrame(f"a whole number from {least} to {most} was expected")
        return value

    return check


def number(value: Json) -> float:
    """Return a finite number; times are seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or abs(value) > 1e12:
        raise BadFrame("a number was expected")
    return float(value)


def moment(value: Json) -> float:
    """Return a time since the epoch: the difference of two, and of clocks, is a number() as well."""
    found = number(value)
    if not 0 <= found <= 1e11:
        raise BadFrame("a time was expected")
    return found


def flag(value: Json) -> bool:
    if not isinstance(value, bool):
        raise BadFrame("true or false was expected")
    return value


def optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def either(check: Check, default: Json) -> Check:
    """Return a check that takes a field which is not there for the default."""
    return lambda value: default if value is None else check(value)


def listed(check: Check, most: int = ITEMS) -> Check:
    def every(value: Json) -> list[Json]:
        if not isinstance(value, list) or len(value) > most:
            raise BadFrame(f"a list of at most {most} was expected")
        return [check(item) for item in value]

    return every


def mapped(name: Check, check: Check, most: int = ITEMS) -> Check:
    def every(value: Json) -> dict[str, Json]:
        if not isinstance(value, dict) or len(value) > most:
            raise BadFrame(f"an object of at most {most} was expected")
        return {name(key): check(content) for key, content in value.items()}

    return every


def shaped(fields: Mapping[str, Check], late: Mapping[str, Check] | None = None) -> Check:
    """Return a check: an object with these fields; what else it has is kept as bounded JSON.

    `late`: fields that need not be there, but are of this form if they are.
    """
    only = just(fields, late)
    known = {**fields, **(late or {})}

    def check(value: Json) -> dict[str, Json]:
        found: dict[str, Json] = only(value)
        return {**plain({key: content for key, content in value.items() if key not in known}), **found}

    return check


def just(fields: Mapping[str, Check], late: Mapping[str, Check] | None = None) -> Check:
    """Return a check: an object with these fields, as shaped() has them; what else it has is left out."""

    def check(value: Json) -> dict[str, Json]:
        if not isinstance(value, dict):
            raise BadFrame("an object was expected")
        found = {name: field(value.get(name)) for name, field in fields.items()}
        return {**found, **{name: field(value[name]) for name, field in (late or {}).items() if name in value}}

    return check


def plain(value: Json, depth: int = DEPTH, text: Check = words) -> Json:
    """Return any JSON with its texts made printable, as `text` does. BadFrame if it is too deep or too large."""
    if depth <= 0:
        raise BadFrame("its values are nested too deep")
    if isinstance(value, str):
        return text(value)
    if isinstance(value, (list, dict)) and len(value) > ITEMS:
        raise BadFrame(f"more than {ITEMS} values in one place")
    if isinstance(value, list):
        return [plain(item, depth - 1, text) for item in value]
    if isinstance(value, dict):
        return {words(key): plain(content, depth - 1, text) for key, content in value.items()}
    return value if value is None or isinstance(value, bool) else value if type(value) is int else number(value)


def path(value: Json) -> str:
    """Return an absolute path, or an empty text where a node has none."""
    if not isinstance(value, str) or len(value) > 4096 or printable(value) != value or (value and value[0] != "/"):
        raise BadFrame("an absolute path was expected")
    return value


def address(value: Json) -> str:
    """Return the IP address of one machine."""
    if not isinstance(value, str) or len(value) > 45 or "%" in value:
        raise BadFrame("an IP address was expected")
    found = ipaddress.ip_address(value)
    if found.is_unspecified or found.is_multicast:
        raise BadFrame("the IP address of one machine was expected")
    return str(found)


def network(value: Json) -> str:
    if not isinstance(value, str) or len(value) > 50:
        raise BadFrame("a network was expected")
    return str(ipaddress.ip_network(value))


def metric(value: Json) -> Json:
    """Return a value that a rank reported: a finite number of any size, or a text. A huge whole number is a text."""
    if isinstance(value, str):
        return words(value)[:500]
    if type(value) is int:
        return value if abs(value) < 1 << 63 else str(value)[:500]
    if not isinstance(value, float) or not math.isfinite(value):
        raise BadFrame("a number or a text was expected")
    return value


def metric_name(value: Json) -> str:
    return words(value)[:100]


# --- frames ---------------------------------------------------------------------------------------------------------

HOST = like(NAME, "the name of a host")
RANK = whole(0, 9_999_999)
TIME = optional(number)
PORT = just(
    {
        "device": like(NAME, "the name of a device"),
        "port": whole(0, 255),
        "gid_index": optional(whole(0, 1 << 16)),
        "netdev": optional(like(re.compile(r"[A-Za-z0-9_.:@-]{0,15}\Z"), "the name of a NIC")),
    }
)
CHOICE = shaped(
    {"nic": like(NIC, "the name of a NIC"), "address": address, "network": network},
    {
        "rdma": listed(PORT, 64),
        "rejected": listed(just({"nic": short, "reason": short, "code": either(short, "")}), 4096),
        "rdma_off": short,
        "nccl_gid": short,
    },
)


def fabric(value: Json) -> dict[str, Json]:
    """Return the choice of role fabric for a node: its address is one of the network, not loopback or another's."""
    found: dict[str, Json] = CHOICE(value)
    if ipaddress.ip_address(found["address"]) not in ipaddress.ip_network(found["network"]):
        raise BadFrame("an address in its network was expected")
    return found


RUNNING = listed(just({"job_id": like(JOB_ID, "a job id"), "owner": short}), ROWS)
FACTS: dict[str, Check] = {
    "home": path,
    "cwd": path,
    "tmpdir": path,
    "interpreter": path,
    "python": path,
    "python_wanted": words,
    "cores": whole(1, CPUS_MOST),
    "uid": whole(0, (1 << 32) - 1),
    "accelerators": mapped(one_of(*USABLE), whole(0, 64), len(USABLE)),
    "fabric": optional(fabric),
    "torch": optional(just(dict.fromkeys(("version", *BUILDS), either(short, "")))),
    "hostname": either(like(re.compile(r"[A-Za-z0-9_.-]{0,255}\Z"), "the name of a host"), ""),
    "nics": listed(like(NIC, "the name of a NIC"), 4096),
    "launcher": just({"path": path, **dict.fromkeys(("version", "wanted", "said", "refused"), either(words, ""))}),
    "backends": listed(words, 64),
    "free_bytes": whole(0, 1 << 62),
    "port": optional(whole(1, 65535)),
    "jobs": listed(like(JOB_ID, "a job id"), 100_000),
    "running": RUNNING,
    "leftovers": listed(just({"pid": whole(0, 1 << 31), "job_id": short, "command": short}), 10_000),
    "clock_offset": either(number, 0.0),
}


def facts(value: Json) -> dict[str, Json]:
    """Return the facts of a node, or `unreachable` with the reason."""
    if isinstance(value, dict) and "unreachable" in value:
        return {"unreachable": words(value["unreachable"])}
    found: dict[str, Json] = shaped(FACTS)(value)
    return found


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
        "error_code": one_of(*RANK_ERRORS),
        "error": short,
        "ended_by_us": flag,
        "group": RANK,
    },
)
LEFTOVER = just({"pid": whole(0, 1 << 31), "command": short, "ended": optional(one_of("SIGTERM", "SIGKILL"))})


def record(value: Json) -> dict[str, Json]:
    """Return the record of a rank. Fields that it has only at its end are checked where they are."""
    found: dict[str, Json] = RECORD(value)
    if ("rc" in found or found.get("error")) and "ended" not in found:
        raise BadFrame("the end of a rank was expected to have a time")
    if found.get("signal") is not None:
        found["signal"] = whole(1, 64)(found["signal"])
    found["leftovers"] = listed(LEFTOVER, ROWS)(found.get("leftovers", []))
    return found


def pair(value: Json) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2:
        raise BadFrame("a stream and a line were expected")
    return one_of("stdout", "stderr")(value[0]), short(value[1])


def measured(value: Json) -> list[Json]:
    if not isinstance(value, list) or len(value) != 3:
        raise BadFrame("name, rank and value of a metric were expected")
    return [metric_name(value[0]), RANK(value[1]), metric(value[2])]


def launcher(value: Json) -> dict[str, Json]:
    """Return what became of a launcher's daemon; nothing where there was none."""
    checks = {"pid": whole(0, 1 << 31), "rc": whole(0, 255), "at": moment, "unasked": flag, "last_line": short}
    found: dict[str, Json] = just({}, checks)(value)
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
    }
)
RESULT = shaped(
    {
        "job_id": like(JOB_ID, "a job id"),
        "state": one_of(*STATES),
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
                    "last_line": short,
                }
            )
        ),
        "first_failure": optional(
            shaped({"rank": optional(RANK), "host": HOST, "cause": words, "message": words, "log": words})
        ),
        "leftovers": mapped(HOST, listed(LEFTOVER, 2 * ROWS)),
        "metrics": mapped(metric_name, metric),
        "notes": listed(just({"code": CODE, "text": words}), 100),
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
WANTED: dict[str, Check] = {"wanted": listed(words)}
LAID: dict[str, Check] = {"reason": words}
WAITING = just(
    {"job_id": like(JOB_ID, "a job id"), "run_dir": words, "state": one_of(*STATES), "own": flag, "seconds": number}
)

# What the controller takes from the head.
FROM_HEAD: dict[str, dict[str, Check]] = {
    "survey": {"facts": facts, "others": mapped(HOST, facts)},
    "wanted": WANTED,
    "laid": LAID,
    "refused": {"reason": words, "running": either(mapped(HOST, RUNNING), {})},
    "started": {},
    "beat": {},
    "line": LINE,
    "report": VALUES,
    "result": {"result": RESULT},
    "file": FILE,
    "fetched": {"missing": listed(words, 100_000)},
    "waiting": {"jobs": listed(WAITING, 100_000)},
    "forgotten": {"missing": listed(words, 100_000)},
}
# What the head takes from another node.
FROM_NODE: dict[str, dict[str, Check]] = {
    "clock": {"time": moment},
    "survey": {"facts": facts},
    "wanted": WANTED,
    "laid": LAID,
    "staged": {"reason": either(words, ""), "running": either(RUNNING, [])},
    "beat": {},
    "line": LINE,
    "report": VALUES,
    "ending": {"reason": one_of(*STATES_BY_REASON), "detail": short},
    "placed": {},
    "done": {},
    "left": {"rc": whole(0, 255), "text": either(words, "")},
    "over": {"report": REPORT},
    "node_report": {"report": optional(REPORT)},
    "file": FILE,
    "fetched": {"missing": listed(words, 100_000)},
    "forgotten": {"missing": listed(words, 100_000)},
}
