# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a look at a running job finds of each rank: its type, its form at the border, and how it is read.

All of it is written by the user's program or about it, so it is hostile: bounded and typed here, and once more where it
comes in from another node.
"""

from __future__ import annotations

import json
import math
import re
from itertools import dropwhile
from typing import Mapping, TypedDict

from .forms import Form, either, flag, listed, number, one_of, optional, short, whole

RANK_MOST = 9_999_999
PID_MOST = 1 << 31
SEQUENCE_MOST = 1 << 62
THREADS_MOST, FRAMES_MOST, GROUPS_MOST, WORKERS_MOST, NAMES_MOST = 8, 48, 64, 16, 2
RECENT_MOST = 4  # collectives of a group: ranks that wait for each other are not further apart
FILE_MOST, NAME_MOST = 300, 100  # characters
TENSORS_MOST, DIMENSIONS_MOST = 1000, 16  # of a collective, of a tensor
ENTRIES_MOST = 100_000  # of a flight recorder: it has 2,000 unless the user asked for more
RECORDERS_MOST = 4  # in a process: PyTorch's, and those of backends mpi, shm and ccl
SECONDS_MOST = 1e9
ENDED, RUNNING, ABSENT = "ended", "running", "absent"  # ABSENT: no record, or no process
THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+\b.*\(most recent call first\):\s*\Z")
FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.+)\Z')
NCCL_LINES_MOST = 400  # of what NCCL knows of a job
OURS = "_torchfleet_look_note.py"


class Frame(TypedDict):
    """A frame of a Python stack."""

    file: str
    line: int  # 0: not known
    function: str


class Collective(TypedDict):
    """What the flight recorder has of one collective."""

    sequence: int
    operation: str
    tensor: str  # what the rank gives, such as "12 Float", or "48 bytes"; empty: not known, or nothing


class Group(TypedDict):
    """What the flight recorder has of one process group."""

    name: str
    sequence: int  # of the last collective that the rank has begun
    before: int  # the same at the first look
    operation: str
    open: bool  # it has not ended
    seconds: float  # since it began
    longest: float  # seconds between two collectives until then; 0: there were fewer than three
    recent: list[Collective]  # the last RECENT_MOST, the newest last


class Worker(TypedDict):
    """A process below a rank's program."""

    pid: int
    state: str
    command: str
    frames: list[Frame]  # of its main thread, innermost first; none: it cannot be asked


class Evidence(TypedDict):
    """What is known of one rank. Texts are empty, and lists too, where nothing is known."""

    rank: int
    host: str
    status: str  # ENDED, RUNNING, ABSENT
    rc: int | None
    done: bool  # the program has ended with status 0, and its process is still there
    pid: int
    state: str  # a letter of /proc/PID/stat
    kernel: str  # the kernel's function in which it sleeps
    command: str
    seconds: float  # between the two looks
    cpu: float  # seconds of CPU of all its processes between them
    wrote: bool  # output between them
    python: bool  # it can be asked for its stacks
    moved: bool  # its main thread was elsewhere at the first look
    threads: list[list[Frame]]  # the main thread is the first
    groups: list[Group]
    workers: list[Worker]
    busy: list[str]  # the program that has much of a CPU, and what of the rank started it: cc1plus, ninja
    nccl: list[str]  # of rank 0: what NCCL's own RAS service tells of the job


NO_NAMES: list[str] = []
NO_CALLS: list[Collective] = []
NOT_TOLD = False  # whether a program is done, of a node that does not tell
FRAME_FORM: Form[Frame] = Form({"file": short, "line": whole(0, 999_999_999), "function": short})
FRAMES = listed(FRAME_FORM, FRAMES_MOST)
COLLECTIVE: Form[Collective] = Form({"sequence": whole(0, SEQUENCE_MOST), "operation": short, "tensor": short})
GROUP: Form[Group] = Form(
    {
        "name": short,
        "sequence": whole(0, SEQUENCE_MOST),
        "before": whole(0, SEQUENCE_MOST),
        "operation": short,
        "open": flag,
        "seconds": number,
        "longest": number,
        "recent": either(listed(COLLECTIVE, RECENT_MOST), NO_CALLS),
    }
)
WORKER: Form[Worker] = Form({"pid": whole(0, PID_MOST), "state": short, "command": short, "frames": FRAMES})
EVIDENCE: Form[Evidence] = Form(
    {
        "rank": whole(0, RANK_MOST),
        "host": short,
        "status": one_of(ENDED, RUNNING, ABSENT),
        "rc": optional(whole(0, 255)),
        "done": either(flag, NOT_TOLD),
        "pid": whole(0, PID_MOST),
        "state": short,
        "kernel": short,
        "command": short,
        "seconds": number,
        "cpu": number,
        "wrote": flag,
        "python": flag,
        "moved": flag,
        "threads": listed(FRAMES, THREADS_MOST),
        "groups": listed(GROUP, GROUPS_MOST),
        "workers": listed(WORKER, WORKERS_MOST),
        "busy": either(listed(short, NAMES_MOST), NO_NAMES),
        "nccl": either(listed(short, NCCL_LINES_MOST), NO_NAMES),
    }
)
MANY_RANKS = 100_000
NOTHING: list[Evidence] = []
ALL_EVIDENCE = either(listed(EVIDENCE, MANY_RANKS), NOTHING)


def read_stacks(text: str) -> list[list[Frame]]:
    """Return the threads that faulthandler wrote, the main thread first: it is the oldest, and comes last.

    A thread without a Python frame is left out. So is ours, and what ours have done in another one to write it. Threads
    in one place stand once: those of a pool, or of a backend's groups, would hide the one that a program waits for.
    """
    threads: list[list[Frame]] = []
    for line in text.split("\n"):
        frame = FRAME.match(line)
        if THREAD.match(line):
            threads.append([])
        elif frame and threads and len(threads[-1]) < FRAMES_MOST:
            file, number_of_line, function = frame.groups()
            at = int(number_of_line) if number_of_line.isdigit() else 0
            threads[-1].append({"file": short(file[-FILE_MOST:]), "line": at, "function": short(function[:NAME_MOST])})
    found: list[list[Frame]] = []
    for frames in reversed(threads):
        theirs = list(dropwhile(lambda row: row["file"].endswith(OURS), frames))
        if theirs and theirs not in found and len(found) < THREADS_MOST:
            found.append(theirs)
    return found


def read_recorder(text: bytes, now: float) -> list[Group]:
    """Return what flight recorders' JSON, with a NUL between several, has of each group.

    `now`: seconds since the epoch on the same machine.
    """
    groups: dict[str, Group] = {}
    last: dict[str, tuple[float, int]] = {}  # by group: when the last one began, and how many there were
    for entry in (entry for part in text.split(b"\0", RECORDERS_MOST)[:RECORDERS_MOST] for entry in entries_of(part)):
        found = read_entry(entry)
        if found is None:
            continue
        name, call, began, is_open = found
        if name not in groups and len(groups) >= GROUPS_MOST:
            continue
        recent = [*(groups[name]["recent"] if name in groups else []), call][-RECENT_MOST:]
        before, count = last.get(name, (began, 0))
        longest = max(groups[name]["longest"], began - before) if count > 1 else 0.0
        last[name] = began, count + 1
        seconds = min(max(0.0, now - began), SECONDS_MOST)
        longest = round(min(longest, SECONDS_MOST), 3)
        groups[name] = group_of(name, recent, is_open, round(seconds, 3), longest)
    return list(groups.values())


def entries_of(text: bytes) -> list[object]:
    """Return the entries of a flight recorder's JSON."""
    try:
        entries = json.loads(text)["entries"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
    return entries[:ENTRIES_MOST] if isinstance(entries, list) else []


def group_of(name: str, recent: list[Collective], is_open: bool, seconds: float, longest: float) -> Group:
    return {
        "name": name,
        "sequence": recent[-1]["sequence"],
        "before": recent[-1]["sequence"],
        "operation": recent[-1]["operation"],
        "open": is_open,
        "seconds": seconds,
        "longest": longest,
        "recent": recent,
    }


def read_entry(entry: object) -> tuple[str, Collective, float, bool] | None:
    """Return group, collective, begin in seconds and whether it is open, of an entry that is one; else None."""
    if not isinstance(entry, dict) or entry.get("is_p2p"):
        return None
    group, sequence, began = entry.get("process_group"), entry.get("collective_seq_id"), entry.get("time_created_ns")
    name, retired = entry.get("profiling_name"), entry.get("retired")
    if not isinstance(group, list) or not all(isinstance(word, str) for word in group) or not isinstance(name, str):
        return None
    if type(sequence) is not int or type(began) is not int or not isinstance(retired, bool):
        return None
    if not 0 <= sequence <= SEQUENCE_MOST or not 0 <= began <= 1 << 62:
        return None
    operation = short(name.rpartition(":")[2][:NAME_MOST])
    call: Collective = {"sequence": sequence, "operation": operation, "tensor": tensor_of(entry)}
    return short(" ".join(group)[:NAME_MOST]), call, began / 1e9, not retired


def is_size(value: object) -> bool:
    """Whether a dimension of a tensor can be: of numbers without a bound Python makes no text (int_max_str_digits)."""
    return type(value) is int and 0 <= value <= SEQUENCE_MOST


def tensor_of(entry: Mapping[str, object]) -> str:
    """Return elements and type of what a rank gives to a collective, "12 Float"; empty if it is nothing, or not known.

    The shape does not count: the same elements in another shape are the same bytes. Of several tensors: their sum. The
    records of backends mpi, shm and ccl have what comes out in its place, and bytes alone where tensors have several
    types, or an older version wrote them (torch_backends/csrc/record.cpp).
    """
    size, side = entry.get("bytes"), "input" if "input_sizes" in entry else "output"
    if f"{side}_sizes" not in entry and type(size) is int and 0 < size <= SEQUENCE_MOST:
        return f"{size} bytes"
    sizes, types = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
    if not isinstance(sizes, list) or not isinstance(types, list) or not sizes or not types:
        return ""
    if not all(isinstance(shape, list) and all(map(is_size, shape)) for shape in sizes[:TENSORS_MOST]):
        return ""
    if len(sizes) > TENSORS_MOST or len(types) > TENSORS_MOST or not all(isinstance(name, str) for name in types):
        return ""
    elements = sum(min(math.prod(shape[:DIMENSIONS_MOST]), SEQUENCE_MOST) for shape in sizes)
    return short(f"{elements} {'+'.join(sorted(set(types)))}"[:NAME_MOST])
