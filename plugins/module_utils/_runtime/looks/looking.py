# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Looks at the ranks of a job on this node, twice, and tells what each does. Nothing is ended, stopped or changed.

How a process is asked stands in asking.py. hang.py judges what is found.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable, Iterator, NamedTuple

from ..basics.file_locks import try_lock_open
from ..basics.job_directory import JobDir, open_file
from ..hooks.look_note import FOR_RECORDER, LOOK_SIGNAL, RECORDER, STACKS, WHOLE
from ..processes import processes
from ..processes.ending import Tree, handles, trees_below
from ..processes.processes import Process
from ..types.evidence import (
    ABSENT,
    ENDED,
    NAME_MOST,
    RUNNING,
    WORKERS_MOST,
    Evidence,
    Frame,
    Group,
    Worker,
    read_recorder,
    read_stacks,
)
from ..types.forms import short
from ..types.orders import Order
from ..types.records import RankRecord
from .asking import ask, ask_in_c, cpu_of_main, is_in_c, write_to
from .busy_program import busy_program
from .nccl_status import Question

BETWEEN_SECONDS = 2.0  # the two looks: what moves in between is slow, and does not hang
SAMPLES = (0.17, 0.43, 0.71)  # of that time, when stacks are asked for as well: a program in a loop moves
# For all ranks to write their stacks, for those that only a signal reaches to do so, and for what recorders have.
ANSWER_SECONDS = 0.5
QUIET_SECONDS = 0.1  # no longer than that between two pieces of stacks that faulthandler's handler writes
WORKER_SECONDS = 0.1  # for each worker of a rank to write its stack
PAUSE = 0.005
# That are read of one answer; of the file, beyond which none is asked for.
STACKS_BYTES, STACKS_FILE = 1 << 17, 32 << 20
RECORDER_BYTES = 32 << 20
EXIT_BYTES = 8  # of a file with an exit status
OTHERS_SECONDS = 10.0  # for another look at this job to be over
TICKS = os.sysconf("SC_CLK_TCK")


class Seen(NamedTuple):
    """What one look found of one rank."""

    record: RankRecord | None
    done: bool  # the program noted that it has ended with status 0 (exit_note.py)
    tree: Tree
    asked: Process | None  # the Python that can be asked for its stacks
    ticks: dict[tuple[int, int], int]  # of CPU, by process
    written: int  # bytes of output
    threads: list[list[Frame]]
    groups: list[Group]


def look(
    job: JobDir, order: Order, asks: bool = True, seconds: float = BETWEEN_SECONDS, patience: float | None = None
) -> list[Evidence]:
    """Return what is known of each rank of this node, from two looks that are so many seconds apart.

    Unless it `asks`, ranks are sent nothing: only /proc and their files are read. `patience`: as of alone().
    """
    with alone(job, patience) if asks else contextlib.nullcontext():
        began = time.monotonic()
        deaf: set[int] = set()
        first = look_once(job, order, asks, deaf)
        nccl = Question(pids_of(first), seconds) if asks and 0 in first else None  # its answer is about all ranks
        moved: set[int] = set()
        for share in SAMPLES if asks else ():
            pause(began + share * seconds)
            moved |= moved_since(job, first, deaf)
        pause(began + seconds)
        second = look_once(job, order, asks, deaf)
        between = time.monotonic() - began
        moved |= {rank for rank, seen in second.items() if is_elsewhere(first[rank].threads, seen.threads)}
        until = time.monotonic() + (seconds if asks else 0.0)
        workers = {rank: workers_of(job, rank, seen, until) for rank, seen in second.items()}
        rows = {
            rank: evidence_of(order["host"], rank, first[rank], second[rank], between, rank in moved, workers[rank])
            for rank in second
        }
        if nccl:
            rows[0]["nccl"] = nccl.answer()
        return list(rows.values())


def pids_of(seen: dict[int, Seen]) -> list[int]:
    return [process.pid for row in seen.values() for process in row.tree.all]


def pause(until: float) -> None:
    """Sleep until a moment of the monotonic clock."""
    time.sleep(max(0.0, until - time.monotonic()))


def moved_since(job: JobDir, first: dict[int, Seen], deaf: set[int]) -> set[int]:
    """Return the ranks whose main thread is elsewhere than at the first look."""
    asked = {rank: seen.asked for rank, seen in first.items() if seen.asked and processes.read(seen.asked.pid)}
    stacks = ask_for_stacks(job, asked, ANSWER_SECONDS, deaf)
    return {rank for rank, threads in stacks.items() if is_elsewhere(first[rank].threads, threads)}


def is_elsewhere(before: list[list[Frame]], after: list[list[Frame]]) -> bool:
    return bool(before and after and before[0] != after[0])


@contextlib.contextmanager
def alone(job: JobDir, patience: float | None = None) -> Iterator[None]:
    """While it is entered no other look asks ranks: their answers would come into one file.

    It waits, not for ever: `patience` seconds, OTHERS_SECONDS if that is None. What two looks are answered together has
    each stack twice, which does no harm, and perhaps no flight recorder.
    """
    try:
        descriptor = os.open(job.at("look.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError:
        yield
        return
    try:
        wait_for(lambda: try_lock_open(descriptor), OTHERS_SECONDS if patience is None else patience)
        yield
    finally:
        os.close(descriptor)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds, no longer than so many seconds."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(PAUSE)


def look_once(job: JobDir, order: Order, asks: bool, deaf: set[int]) -> dict[int, Seen]:
    """Return what this node's ranks do now."""
    records = {rank: job.record(rank) for rank in order["ranks"]}
    alive = {rank: record for rank, record in records.items() if record and "rc" not in record}
    children = processes.by_parent()
    trees = trees_below({record["wrapper_pid"]: record.get("pid") for record in alive.values()}, children)
    found = {rank: trees[record["wrapper_pid"]] for rank, record in alive.items()}
    asked = {rank: python_of(tree) for rank, tree in found.items()}
    ticks = {rank: {process.identity: ticks_of(process.pid) for process in tree.all} for rank, tree in found.items()}
    targets = {rank: process for rank, process in asked.items() if process and asks}
    threads = ask_for_stacks(job, targets, ANSWER_SECONDS, deaf)
    groups = ask_recorders(job, [rank for rank, process in targets.items() if process.pid not in deaf])
    return {
        rank: Seen(
            records[rank],
            read_part(job.rank(rank, "exit"), 0, EXIT_BYTES).strip() == b"0",
            found.get(rank, Tree([], [])),
            asked.get(rank),
            ticks.get(rank, {}),
            sum(size_of(job.rank(rank, name)) for name in ("stdout", "stderr")),
            threads.get(rank, []),
            groups.get(rank, []),
        )
        for rank in order["ranks"]
    }


def python_of(tree: Tree) -> Process | None:
    """Return the uppermost process of a rank that has a handler for LOOK_SIGNAL."""
    return next((process for process in tree.all if handles(process.pid, LOOK_SIGNAL)), None)


def ticks_of(pid: int) -> int:
    """Return the clock ticks of CPU that a process has used, 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, IndexError, ValueError):
        return 0


def kernel_function(pid: int) -> str:
    """Return the kernel's function in which a process sleeps, if it may be known."""
    try:
        with open(f"/proc/{pid}/wchan") as file:
            name = file.read(NAME_MOST)
    except (OSError, ValueError):
        return ""
    return "" if name == "0" else short(name)


def size_of(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def ask_for_stacks(
    job: JobDir, asked: dict[int, Process], seconds: float, deaf: set[int]
) -> dict[int, list[list[Frame]]]:
    """Return the stacks of one process of each rank; nothing of a rank that does not answer in time.

    `deaf`: the processes that answered only in C before, or not at all: they get less time to answer otherwise.
    """
    before = {rank: size_of(job.rank(rank, STACKS)) for rank in asked}
    sizes = dict(before)
    ran = {rank: cpu_of_main(process.pid) for rank, process in asked.items()}
    ranks = [rank for rank in asked if before[rank] < STACKS_FILE and ask(job, rank, asked[rank])]
    known = {rank: (asked[rank], ran[rank]) for rank in ranks if asked[rank].pid in deaf}
    await_stacks(job, ranks, sizes, seconds, lambda rank: rank in known and is_in_c(*known[rank]))
    late = [rank for rank in ranks if sizes[rank] == before[rank]]
    deaf |= {asked[rank].pid for rank in late}
    await_stacks(job, [rank for rank in late if ask_in_c(asked[rank], ran[rank])], sizes, seconds)
    found: dict[int, list[list[Frame]]] = {}
    for rank in asked:
        if sizes[rank] > before[rank]:
            found[rank] = read_stacks(
                read_part(job.rank(rank, STACKS), before[rank], STACKS_BYTES).decode(errors="replace")
            )
    return found


def await_stacks(
    job: JobDir,
    ranks: list[int],
    sizes: dict[int, int],
    seconds: float,
    given_up: Callable[[int], bool] = lambda _rank: False,
) -> None:
    """Wait until these ranks have written their stacks, not longer than so many seconds. `sizes` are kept up.

    What is written with the GIL tells its end. What is not is over when the file grows no more.
    """
    now = time.monotonic()
    before, waiting, until, grown = dict(sizes), list(ranks), now + seconds, dict.fromkeys(ranks, now)
    while waiting and now < until:
        time.sleep(2 * PAUSE)
        now = time.monotonic()
        for rank in list(waiting):
            path = job.rank(rank, STACKS)
            size = size_of(path)
            if size != sizes[rank]:
                sizes[rank], grown[rank] = size, now
            if size == before[rank]:
                over = given_up(rank)
            else:
                over = now >= grown[rank] + QUIET_SECONDS or ends_with(path, size, WHOLE)
            if over:
                waiting.remove(rank)


def ends_with(path: str, size: int, text: bytes) -> bool:
    """Whether a file of this size ends with a text."""
    return size >= len(text) and read_part(path, size - len(text), len(text)) == text


def read_part(path: str, start: int, most: int) -> bytes:
    """Return a part of a file; nothing of what is no file."""
    try:
        with open(open_file(path), "rb") as file:
            file.seek(start)
            return file.read(most)
    except OSError:
        return b""


def ask_recorders(job: JobDir, ranks: list[int]) -> dict[int, list[Group]]:
    """Return what the flight recorder of each rank has; nothing of a rank that does not answer in time."""
    waiting = [rank for rank in ranks if ask_recorder(job, rank)]
    found: dict[int, list[Group]] = {}
    until = time.monotonic() + ANSWER_SECONDS
    while waiting and time.monotonic() < until:
        for rank in list(waiting):
            if os.path.lexists(job.rank(rank, RECORDER)):
                waiting.remove(rank)
                text = read_part(job.rank(rank, RECORDER), 0, RECORDER_BYTES + 1)
                found[rank] = read_recorder(text, time.time()) if len(text) <= RECORDER_BYTES else []
        time.sleep(PAUSE)
    return found


def ask_recorder(job: JobDir, rank: int) -> bool:
    """Ask a rank for what its flight recorder has. Return whether anybody will answer."""
    try:
        os.unlink(job.rank(rank, RECORDER))  # an old answer
    except OSError:
        pass
    return write_to(job, rank, FOR_RECORDER)


def workers_of(job: JobDir, rank: int, seen: Seen, until: float) -> list[Worker]:
    """Return the processes below a rank's Python, or all of a rank that has none.

    They are asked for their stacks until a moment of the monotonic clock: the end of a job does not wait for hundreds.
    """
    rows: list[Worker] = []
    for process in below(seen)[:WORKERS_MOST]:
        asked = time.monotonic() < until
        stacks = ask_for_stacks(job, {rank: process}, WORKER_SECONDS, set()) if asked else {}
        frames = next(iter(stacks.get(rank, [])), [])
        command = short(processes.command_of(process.pid))
        rows.append({"pid": process.pid, "state": process.state, "command": command, "frames": frames})
    return rows


def below(seen: Seen) -> list[Process]:
    """Return the processes below a rank's Python, parents before children; all of a rank that has none."""
    tops = {seen.asked.pid} if seen.asked else {process.parent for process in seen.tree.program}
    found: list[Process] = []
    for process in seen.tree.all:
        if process.parent in tops:
            tops.add(process.pid)
            found.append(process)
    return found


def busy_below(first: Seen, second: Seen, seconds: float) -> list[str]:
    """Return the names of the busiest program that a rank has started. Not its workers, which are the same program."""
    started = [process for process in below(second) if second.asked and not handles(process.pid, LOOK_SIGNAL)]
    identities = {process.identity: process.pid for process in started}
    used = {
        identities[known]: (ticks - first.ticks.get(known, 0)) / TICKS
        for known, ticks in second.ticks.items()
        if known in identities
    }
    return busy_program(started, used, seconds)


def evidence_of(
    host: str, rank: int, first: Seen, second: Seen, between: float, moved: bool, workers: list[Worker]
) -> Evidence:
    """Return what two samples show of a rank."""
    record = second.record
    top = second.asked or next(iter(second.tree.all), None)
    before = {group["name"]: group["sequence"] for group in first.groups}
    groups: list[Group] = [{**row, "before": before.get(row["name"], row["sequence"])} for row in second.groups]
    used = sum(ticks - first.ticks.get(process, 0) for process, ticks in second.ticks.items())
    status = ENDED if record and "rc" in record else RUNNING if top else ABSENT
    return {
        "rank": rank,
        "host": host,
        "status": status,
        "rc": record.get("rc") if record else None,
        "done": second.done and status == RUNNING,
        "pid": top.pid if top else 0,
        "state": top.state if top else "",
        "kernel": kernel_function(top.pid) if top else "",
        "command": short(processes.command_of(top.pid)) if top else "",
        "seconds": round(between, 3),
        "cpu": round(max(0, used) / TICKS, 3),
        "wrote": second.written > first.written,
        "python": second.asked is not None,
        "moved": moved,
        "threads": second.threads,
        "groups": groups,
        "workers": workers,
        "busy": busy_below(first, second, between),
        "nccl": [],
    }
