# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Staged with the exit note, for a job that is profiled (option profile): a Chrome trace, and where the time goes.

A thread waits until the program is warm: it has a process group, and its ranks have met some times. Then PyTorch's
profiler records all threads for the time that was asked for, and the stack of the main thread is looked at some twenty
times a second. A program that has no process group, or ends before, leaves neither.

Nothing is imported here that may not be there: an import in a thread gets in the way of those of the program.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from types import FrameType
from typing import Any

VARIABLE = "TORCHFLEET_PROFILE"  # seconds, and behind a colon the ranks; no colon: all
TRACE, BUDGET = "trace.json.gz", "budget.json"  # in the directory of a rank
COLLECTIVES = 20  # after which a program is warm
WARM_SECONDS = 60.0  # after which it is taken to be
WAIT_SECONDS, SAMPLE_SECONDS = 0.2, 0.05
TRACE_BYTES = 64 << 20
FRAMES_MOST = 100  # of a stack
OWN, OWN_IDLE, DATA, FORWARD = "own", "own_idle", "data", "forward"
BACKWARD, OPTIMIZER, WAITING, CHECKPOINT = "backward", "optimizer", "waiting", "checkpoint"
PARTS = (OWN, OWN_IDLE, DATA, FORWARD, BACKWARD, OPTIMIZER, WAITING, CHECKPOINT)
# Of the innermost frame that one of these has, by a part of its file's path.
FILES = (
    ("torch/distributed/checkpoint/", CHECKPOINT),
    ("torch/serialization.py", CHECKPOINT),
    ("torch/distributed/distributed_c10d.py", WAITING),
    ("torch/utils/data/", DATA),
    ("torch/autograd/graph.py", BACKWARD),
    ("torch/optim/", OPTIMIZER),
    ("torch/nn/modules/", FORWARD),
    ("torch/nn/parallel/", FORWARD),
)


def asked(value: str, rank: str) -> float:
    """Return for how many seconds this rank is to be profiled; 0: it is not."""
    seconds, _colon, ranks = value.partition(":")
    try:
        return float(seconds) if not ranks or rank in ranks.split(",") else 0.0
    except ValueError:
        return 0.0


def start(directory: str, seconds: float, main: int) -> None:
    """Begin in a thread. `main`: the identity of the main thread."""
    try:
        _thread.start_new_thread(run, (directory, seconds, main))
    except RuntimeError:  # no thread is left
        pass


def run(directory: str, seconds: float, main: int) -> None:
    """Wait, record and write. Whatever goes wrong: the program goes on, and there is no profile."""
    try:
        wait_until_warm()
        profiler = started()
        shares = sample(seconds, main)
        if profiler is not None:
            profiler.stop()
        write_budget(os.path.join(directory, BUDGET), seconds, shares)
        if profiler is not None:
            write_trace(os.path.join(directory, TRACE), profiler)
    except Exception:
        return


def wait_until_warm() -> None:
    """Wait until the ranks have met some times, or for a minute."""
    until = time.monotonic() + WARM_SECONDS
    while met() < COLLECTIVES and time.monotonic() < until:
        time.sleep(WAIT_SECONDS)


def met() -> int:
    """Return how many collectives the group of all ranks has had; 0 if it does not say."""
    try:
        world = sys.modules["torch.distributed.distributed_c10d"].GroupMember.WORLD
        return int(world._get_sequence_number_for_group())
    except Exception:  # there is none yet, or its backend does not count
        return 0


def started() -> Any:
    """Return a profiler of all threads that has begun, None if this torch has none."""
    profiler, inner = sys.modules.get("torch.profiler"), sys.modules.get("torch._C._profiler")
    if profiler is None or inner is None:
        return None
    torch: Any = profiler
    kinds = [torch.ProfilerActivity.CPU]
    if sys.modules["torch"].cuda.is_initialized():
        kinds.append(torch.ProfilerActivity.CUDA)
    config = vars(inner)["_ExperimentalConfig"](profile_all_threads=True)
    found = torch.profile(activities=kinds, experimental_config=config, acc_events=False)
    found.start()
    return found


def sample(seconds: float, main: int) -> dict[str, int]:
    """Return how often the main thread was at what, for so many seconds."""
    found = dict.fromkeys(PARTS, 0)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        frame = sys._current_frames().get(main)
        found[part_of(frame, is_running())] += 1
        del frame  # what it holds is the program's
        time.sleep(SAMPLE_SECONDS)
    return found


def part_of(frame: FrameType | None, runs: bool) -> str:
    """Return what a thread is at, by its stack. `runs`: it is on a CPU, or would be."""
    for _depth in range(FRAMES_MOST):
        if frame is None:
            break
        path = frame.f_code.co_filename.replace(os.sep, "/")
        part = next((part for text, part in FILES if text in path), "")
        if part:
            return WAITING if part == BACKWARD and not runs else part  # DistributedDataParallel waits there
        frame = frame.f_back
    return OWN if runs else OWN_IDLE


def is_running() -> bool:
    """Whether the main thread is on a CPU, or waits for one."""
    with open(f"/proc/self/task/{os.getpid()}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] == b"R"


def write_budget(path: str, seconds: float, shares: dict[str, int]) -> None:
    """Write where the time went. OSError."""
    import json

    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        json.dump({"seconds": seconds, "samples": shares}, file)


def write_trace(path: str, profiler: Any) -> None:
    """Write the trace, unless it is too large. OSError."""
    beside = path.replace(TRACE, "." + TRACE)  # torch compresses what ends so
    try:
        profiler.export_chrome_trace(beside)
        os.chmod(beside, 0o600)
        if os.path.getsize(beside) <= TRACE_BYTES:
            os.replace(beside, path)
    finally:
        if os.path.exists(beside):
            os.unlink(beside)
