# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Staged with the exit note: notes when this rank came to each collective, of which a flight recorder knows.

PyTorch's own has those of gloo, that of torchfleet's backends those of mpi, shm and ccl: PyTorch 2.13 sees none.
Each is a ring of the last 2,000. It is read once a minute at first, less and less often later, when a process
group is destroyed (a program may leave by os._exit then), and when the program leaves. Reading it takes the GIL for
some 50 ms, which is why it is read rarely, and on all ranks at the same moment by their clocks: else each would keep
the others waiting, one after the other. What a read cost bounds the next pause. A line of JSON is written for each
read, with what is new since the last one.

It is read without stacks: to name their files PyTorch 2.13 imports its compiler, 800 modules in seconds, and a program
that imports it at that moment fails.

nccl is not read: with it the program runs ahead, and comes to a collective long before its tensors do.
"""

from __future__ import annotations

import _thread
import os
import re
import sys
import time
from itertools import chain
from typing import Any, Iterator, NamedTuple, TypedDict

FILE = "arrivals.jsonl"  # in the directory of a rank
FIRST_SECONDS = 60.0  # between two reads, at first
READS = 4  # after so many the pause is doubled: a week has some 45
DOUBLED_MOST = 12  # times
SHARE, LEFT_SHARE = 500, 100  # a pause lasts so many times as long as the last read took; between destroyed groups
DIGITS = re.compile(r"[0-9]{1,9}\Z")
RING_MOST = 20_000  # entries of a recorder that is read: a user may have asked for more
FILE_BYTES = 4 << 20
KINDS_MOST = 500  # of collectives in a line: operation and sizes
NAME_MOST = 100  # characters
LOCK_SECONDS = 1.0  # for a read to be over when the program leaves
RING_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # PyTorch reads the first that is set
RING_DEFAULT = "2000"  # PyTorch's

# An entry of torch's JSON, whose names are in the order of the alphabet. json.loads() would make so many objects that
# Python's collector looks through all of the program's, which takes longer than all the rest.
ENTRY = re.compile(
    rb'"collective_seq_id":(\d{1,18}),[^{}]*?"input_sizes":([\[\],\d]*),"is_p2p":false,[^{}]*?'
    rb'"process_group":\["([^"]*)"[^{}]*?"profiling_name":"gloo:([^"]*)"[^{}]*?"time_created_ns":(\d{1,19}),'
)
# An entry of torchfleet_backends: torch_backends/csrc/record.cpp and src/torchfleet_backends/_group.py.
OWN_ENTRY = re.compile(
    rb'"process_group": \["([^"]*)"[^{}]*?"collective_seq_id": (\d{1,18}), "profiling_name": "(\w+):([^"]*)", '
    rb'"bytes": (\d{1,18}), "time_created_ns": (\d{1,19}),'
)


class Run(TypedDict):
    """Collectives of a group, in their order. `at`: when this rank came to the first; `gaps`: from each to the next.

    Times in microseconds. `kinds`: of each, by number.
    """

    group: str
    size: int
    first: int
    at: int
    gaps: list[int]
    kinds: list[int]


class Line(TypedDict):
    """What is new since the last read. `kinds`: operation and sizes."""

    kinds: list[list[str]]
    runs: list[Run]


class Entry(NamedTuple):
    """A collective, as a flight recorder has it. `began`: microseconds since the epoch.

    `backend`: "" if it is gloo. Each backend of a group counts its own collectives ("cpu:mpi,cuda:gloo").
    """

    group: str
    backend: str
    sequence: int
    operation: str
    sizes: str
    began: int


class Arrivals:
    """Writes down when this rank came to its collectives. One instance in a process; its methods are for any thread."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, FILE)
        self.sizes: dict[str, int] = {}  # of the process groups, by name
        self.last: dict[str, int] = {}  # the last collective of each backend of a group that was written
        self.reads, self.written, self.cost, self.read_at = 0, 0, 0.0, 0.0
        self.lock = _thread.allocate_lock()
        self.next = self.after(time.time())

    def filed(self, group: Any, size: int) -> None:
        """Note a new process group. Whatever it is, the program goes on."""
        try:
            if size > 1:
                self.sizes[str(group.group_name)] = size
        except Exception:  # another torch
            pass

    def after(self, now: float) -> float:
        """Return the time of the next read: a multiple of the pause, which is the same for all ranks."""
        pause: float = FIRST_SECONDS * 2 ** min(self.reads // READS, DOUBLED_MOST)
        while pause < SHARE * self.cost:
            pause *= 2
        return (now // pause + 1) * pause

    def pause(self) -> float:
        """Return the seconds until the next read."""
        return max(0.05, self.next - time.time())

    def left(self) -> None:
        """Read before a process group is destroyed, unless that would be often."""
        if time.monotonic() >= self.read_at + LEFT_SHARE * self.cost:
            self.note()

    def tick(self) -> None:
        """Read if it is time to."""
        if time.time() >= self.next:
            self.note()
            self.next = self.after(time.time())

    def note(self) -> None:
        """Write what is new. Whatever torch or a full disk makes of it: the rank goes on."""
        if not self.sizes or ring_size() > RING_MOST or not self.lock.acquire(timeout=LOCK_SECONDS):
            return
        try:
            import json  # late, as all that only this needs: most programs have no process group

            began = time.thread_time()
            rows = self.rows(entries())
            if rows["runs"]:
                self.write(json.dumps(rows, separators=(",", ":")).encode() + b"\n")
            self.reads, self.cost = self.reads + 1, time.thread_time() - began
        except Exception:
            self.reads += 1
        finally:
            self.read_at = time.monotonic()
            self.lock.release()

    def rows(self, found: Iterator[Entry]) -> Line:
        """Return what is new: a table of kinds, and when this rank came to each run of collectives of a group."""
        kinds: dict[tuple[str, str], int] = {}
        runs: dict[str, list[Run]] = {}
        came: dict[str, int] = {}  # to the last one of each
        for group, backend, sequence, operation, sizes, began in found:
            counted = f"{group} {backend}" if backend else group
            if group not in self.sizes or sequence <= self.last.get(counted, -1):
                continue
            kind = kinds.setdefault((operation, sizes), min(len(kinds), KINDS_MOST))
            of_group = runs.setdefault(counted, [])
            if not of_group or sequence != self.last[counted] + 1:
                size = self.sizes[group]
                of_group.append(
                    {"group": counted, "size": size, "first": sequence, "at": began, "gaps": [], "kinds": []}
                )
                came[counted] = began
            run = of_group[-1]
            run["gaps"].append(began - came[counted])
            run["kinds"].append(kind)
            came[counted], self.last[counted] = began, sequence
        return {"kinds": [list(kind) for kind in kinds][:KINDS_MOST], "runs": list(chain(*runs.values()))}

    def write(self, line: bytes) -> None:
        """Append a line, unless the file is long enough. OSError."""
        if self.written + len(line) > FILE_BYTES:
            return
        opened = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            self.written += os.write(opened, line)
        finally:
            os.close(opened)


def ask_for_record() -> None:
    """Have the backends of ours record their collectives too, unless the user has decided about flight recorders."""
    if not any(name in os.environ for name in RING_VARIABLES):
        os.environ[RING_VARIABLES[0]] = RING_DEFAULT


def ring_size() -> int:
    """Return how many entries the user wants the recorder to have, 0 if that is not said."""
    return max((int(os.environ[name]) for name in RING_VARIABLES if DIGITS.match(os.environ.get(name, ""))), default=0)


def entries() -> Iterator[Entry]:
    """Return what the recorders have, of each group the oldest first. Any exception of a torch without one."""
    own = sys.modules.get("torchfleet_backends")
    found = entries_in(vars(sys.modules["torch._C._distributed_c10d"])["_dump_fr_trace_json"]())
    return chain(found, own_entries_in(own.recorded())) if own else found


def entries_in(text: bytes) -> Iterator[Entry]:
    """Yield the collectives of gloo that PyTorch's flight recorder wrote."""
    for found in ENTRY.finditer(text):
        sequence, sizes, group, operation, began = found.groups()
        yield Entry(name(group), "", int(sequence), name(operation), name(sizes), int(began) // 1000)


def own_entries_in(text: bytes) -> Iterator[Entry]:
    """Yield the collectives that torchfleet's backends recorded."""
    for found in OWN_ENTRY.finditer(text):
        group, sequence, backend, operation, size, began = found.groups()
        sizes = f"{int(size)} bytes"
        yield Entry(name(group), name(backend), int(sequence), name(operation), sizes, int(began) // 1000)


def name(word: bytes) -> str:
    """Return a name of somebody's as text of bounded length."""
    return word[:NAME_MOST].decode(errors="replace")
