# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What each rank of a job does, by what looks found of it (evidence.py). Pure functions."""

from __future__ import annotations

import re
from typing import Dict, Iterable, Mapping, NamedTuple, Sequence, Tuple

from ..types.evidence import ABSENT, ENDED, FRAMES_MOST, Evidence, Frame, Group

# What a rank does. LEAVES: its program has ended, and libraries have something to end yet.
GONE, LEAVES, STOPPED, WAITS, DATA, COMPUTES, SLEEPS, OPAQUE, SILENT = (
    *("gone", "leaves", "stopped", "waits", "data", "computes", "sleeps", "opaque", "silent"),
)
BUSY, SOME = 0.5, 0.05  # share of a CPU from which on a rank computes; the same if it waits for a CPU
LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d|^<|/hook/sitecustomize\.py$|/_torchfleet_\w+\.py$")
INSTALLED = re.compile(r"/(site|dist)-packages/")
Rule = Tuple["re.Pattern[str]", "re.Pattern[str]", str]
COLLECTIVE = (
    r"(all_\w+|broadcast\w*|reduce\w*|gather\w*|scatter\w*|barrier|monitored_barrier|send\w*|recv\w*|isend|irecv"
    r"|batch_isend_irecv|new_group|split_group|init_process_group|destroy_process_group)\Z"
)


def rules(*rows: tuple[str, str, str]) -> list[Rule]:
    return [(re.compile(file), re.compile(function), name) for file, function, name in rows]


# File and function of a frame, and what a rank waits for there; "{}" is the function.
PEERS = rules(
    (r"torch/distributed/distributed_c10d\.py$", COLLECTIVE, "{}"),
    (r"torch/distributed/_functional_collectives\.py$", "", "a functional collective"),
    (r"torch/distributed/(rendezvous|_?store)\.py$", "", "init_process_group"),
    (r"torch/nn/parallel/distributed\.py$|torch/distributed/utils\.py$", r"_sync|_verify|_broadcast|_ddp_init", "{}"),
    (r"torch/nn/parallel/distributed\.py$", r"_pre_forward\Z", "DistributedDataParallel.forward"),
    (r"torch/autograd/graph\.py$", r"_engine_run_backward\Z", "backward"),
    (r"torch/distributed/(fsdp|tensor|checkpoint|pipelining|elastic)/", "", "torch.distributed, {}"),
    (r"mpi4py/", "", "MPI, {}"),
)
# In a thread of backend ccl, whose library polls while it waits: such CPU is no work.
POLLS = rules((r"torchfleet_backends/_oneccl\.py$", r"(all_|reduce|broadcast)", "a collective"))
FROM_WORKERS = rules(
    (r"torch/utils/data/", "", "its data loader"),
    (r"multiprocessing/(queues|connection|pool|popen_\w+)\.py$", "", "another process"),
)
FROM_PROGRAMS = rules((r"python\d[.\d]*/subprocess\.py$", "", "a program that it started"))
AT_EXIT = rules((r"python\d[.\d]*/threading\.py$", r"_shutdown\Z", "a thread that does not end"))


class Doing(NamedTuple):
    """What one rank does."""

    kind: str
    what: str  # a few words behind "is", or the call in which it waits
    place: str  # of the user's code: file:line
    sequence: int = -1  # of the collective in which it waits; -1: not known
    group: str = ""

    @property
    def call(self) -> str:
        """Return the call in which it waits: all_reduce #17."""
        return self.what + (f" #{self.sequence}" if self.sequence >= 0 else "")


Doings = Dict[int, Doing]


def classify(found: Mapping[int, Evidence]) -> Doings:
    """Return what each rank does: by its state, its stacks and its CPU, then by the flight recorders of all."""
    doings = {rank: doing_of(row) for rank, row in found.items()}
    newest: dict[str, int] = {}
    for row in found.values():
        for group in row["groups"]:
            newest[group["name"]] = max(newest.get(group["name"], 0), group["sequence"])
    return {rank: with_recorder(doings[rank], row, newest) for rank, row in found.items()}


def doing_of(row: Evidence) -> Doing:
    """Return what a rank does, by all but the flight recorder."""
    if row["status"] == ENDED:
        return Doing(GONE, f"finished with exit status {row['rc']}", "")
    if row["status"] == ABSENT:
        return Doing(SILENT, "missing: no process of it is known", "")
    if row["state"] in ("T", "t"):
        return Doing(STOPPED, "stopped by a signal (state T)", "")
    return by_stack(row, row["threads"][0]) if row["threads"] else without_stack(row)


def by_stack(row: Evidence, main: Sequence[Frame]) -> Doing:
    """Return what a rank does by the stacks of its threads; `main`: of the main thread."""
    polls = any(waits_for(frames, POLLS) for frames in row["threads"])
    place, busy = place_of(main), is_busy(row) and not polls
    call = waits_for(main, PEERS)
    if call and not (busy and call == "backward"):
        return Doing(WAITS, call, place)
    other = next((frames for frames in row["threads"][1:] if waits_for(frames, PEERS)), None)
    if other and not busy:  # the main thread waits for one that waits for the others
        return Doing(WAITS, waits_for(other, PEERS), place_of(other) or place)
    if polls:
        return Doing(WAITS, "a collective", place)
    for wanted, told_of in ((FROM_WORKERS, told_of_workers), (FROM_PROGRAMS, told_of_program)):
        source = next(filter(None, (waits_for(main, [rule]) for rule in wanted)), "")
        if source and not busy:
            return Doing(DATA, f"waiting for {source}{told_of(row)}", place)
    at_end = None if busy else by_threads_at_end(row["threads"])
    return at_end or Doing(COMPUTES if busy else SLEEPS, doing_words(row, main, busy), place)


def by_threads_at_end(threads: Sequence[Sequence[Frame]]) -> Doing | None:
    """Return what a rank does whose program is over, None if it is not; the main thread is the first."""
    main = threads[0]
    left = next((frames for frames in threads[1:] if has_own(frames)), None)
    if left and waits_for(main, AT_EXIT):
        thread = f"{where(left[0])} in {left[0]['function']}"
        return Doing(SLEEPS, f"waiting at exit for a thread at {thread}", place_of(left))
    in_module = len(main) >= FRAMES_MOST or any(frame["function"] == "<module>" for frame in main)
    if in_module or any(map(has_own, threads)):
        return None
    return Doing(LEAVES, f"about to leave, at {where(main[0])} in {main[0]['function']}", "")


def without_stack(row: Evidence) -> Doing:
    """Return what a rank does whose main thread did not tell."""
    if row["state"] == "D":
        return Doing(SLEEPS, f"in disk wait (state D, in {row['kernel'] or 'the kernel'})", "")
    if row["done"]:
        return Doing(LEAVES, "finished with exit status 0, while its libraries shut down", "")
    if row["python"] and is_busy(row):
        return Doing(COMPUTES, f"computing at an unknown place (pid {row['pid']})", "")
    if row["python"]:
        return Doing(SILENT, f"silent: no answer came (pid {row['pid']}, state {row['state']})", "")
    commands = [worker["command"] for worker in row["workers"]] or [row["command"]]
    inside = f", in {row['kernel']}" if row["kernel"] else ""
    return Doing(OPAQUE, f"running `{commands[-1][:80]}`, which has no Python stack to read{inside}", "")


def doing_words(row: Evidence, main: Sequence[Frame], busy: bool) -> str:
    inner = f"{where(main[0])} in {main[0]['function']}"
    return f"{'computing' if busy else 'sleeping or waiting'} at {inner}"


def told_of_workers(row: Evidence) -> str:
    """Return where a worker of a rank is, if one tells."""
    for worker in row["workers"]:
        place = place_of(worker["frames"])
        if place:
            return f", whose worker {worker['pid']} is at {place}"
    return ""


def told_of_program(row: Evidence) -> str:
    """Return the program that a rank has started, if there is one only."""
    return f", `{row['workers'][0]['command'][:80]}`" if len(row["workers"]) == 1 else ""


def with_recorder(doing: Doing, row: Evidence, newest: Mapping[str, int]) -> Doing:
    """Return what a rank does with what its flight recorder adds: the collective, or that it waits in one at all."""
    group = open_group(row)
    if group is None or doing.kind in (GONE, STOPPED):
        return doing
    entered = doing._replace(sequence=group["sequence"], group=group["name"], what=group["operation"])
    if doing.kind == WAITS:
        return entered if doing.what not in ("send", "recv", "isend", "irecv") else doing
    behind = group["sequence"] < newest[group["name"]]
    if doing.kind in (SILENT, SLEEPS, LEAVES) and not behind and group["seconds"] >= row["seconds"]:
        return entered._replace(kind=WAITS)  # such as work.wait(), of which no frame is seen
    return doing


def open_group(row: Evidence) -> Group | None:
    """Return the group in which a rank has waited the longest for a collective, None if it is in none."""
    return max((group for group in row["groups"] if group["open"]), key=lambda group: group["seconds"], default=None)


def is_busy(row: Evidence) -> bool:
    """Whether a rank computes: it had much of a CPU, or some of one and would take more."""
    share = row["cpu"] / row["seconds"] if row["seconds"] > 0 else 0.0
    return share > BUSY or (row["state"] == "R" and share > SOME)


def waits_for(frames: Sequence[Frame], table: Iterable[Rule]) -> str:
    """Return what a thread waits for, if the user's own code is not further in than a call that waits."""
    table = list(table)
    for frame in frames:
        for file, function, name in table:
            if file.search(frame["file"]) and function.search(frame["function"]):
                return name.format(frame["function"])
        if not LIBRARY.search(frame["file"]):
            return ""
    return ""


def has_own(frames: Sequence[Frame]) -> bool:
    """Whether a thread is in the user's own code."""
    return any(not LIBRARY.search(frame["file"]) for frame in frames)


def place_of(frames: Sequence[Frame]) -> str:
    """Return the innermost place in the user's own code: file:line; an empty text if there is no stack.

    A program that is itself part of a library, as with `python -m`, is the user's own.
    """
    own = next((frame for frame in frames if not LIBRARY.search(frame["file"])), None)
    started = [frame["file"] for frame in frames if frame["function"] == "<module>" and INSTALLED.search(frame["file"])]
    if own is None and started:
        own = next(frame for frame in frames if frame["file"] == started[-1])
    return where(own or frames[0]) if frames else ""


def where(frame: Frame) -> str:
    return f"{frame['file'].rsplit('/', 1)[-1]}:{frame['line']}"
