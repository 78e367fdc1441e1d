# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Asks a process of a rank for its stacks, so that nobody's frames are read while they may change (look_note.py).

A process that has no handler for a signal is not sent it: it would end. One that is stopped is sent nothing.
"""

from __future__ import annotations

import os
import stat
import time

from ..basics.job_directory import JobDir
from ..hooks.look_note import FOR_STACKS, LOOK_SIGNAL, PIPE, TELL_SIGNAL, THREAD_NAME
from ..processes import processes
from ..processes.ending import handles
from ..processes.processes import Process

THREADS_MOST = 4096  # of a process among which ours is looked for
LOOKS, LOOK_SECONDS = 5, 0.001  # at whether other threads of a process run
IN_C = 50_000_000  # nanoseconds of CPU: Python gives up its GIL, and handles signals, within 5 ms


def ask(job: JobDir, rank: int, process: Process) -> bool:
    """Ask a process for its stacks, by our thread or between two steps of its program. Return whether it was asked."""
    if not can_be_asked(process):
        return False
    if our_thread(process.pid) and write_to(job, rank, FOR_STACKS):
        return True
    return handles(process.pid, TELL_SIGNAL) and processes.send(process, TELL_SIGNAL)  # its main thread gets it


def ask_in_c(process: Process, ran: int) -> bool:
    """Ask a process for its stacks that did not answer: it waits or computes in C, so its frames do not change.

    `ran`: as is_in_c. Of one that waits a call would be interrupted (EINTR): our thread gets the signal, where it is.
    """
    now = can_be_asked(process)
    if now is None or not is_in_c(now, ran):
        return False
    thread = our_thread(process.pid)
    if not thread and all(any_other_runs(process.pid) for _look in range(LOOKS)):
        return False
    apart = thread and now.state != "R" and send_to_thread(process.pid, thread, LOOK_SIGNAL)
    return bool(apart) or processes.send(process, LOOK_SIGNAL)


def is_in_c(process: Process, ran: int) -> bool:
    """Whether a process that was asked, and did not answer, is in C: it waits, or computes without Python's next step.

    `ran`: the nanoseconds of CPU that its main thread had used when it was asked. It may not have had the chance to
    answer before it has used more.
    """
    now = processes.read(process.pid)
    return now is not None and (now.state != "R" or cpu_of_main(process.pid) >= ran + IN_C)


def can_be_asked(process: Process) -> Process | None:
    """Return what a process is now, None if it may not be asked.

    Of one that is stopped the answer would come too late. What it executed since the look before (execve) has no
    handler of ours, and would die.
    """
    now = processes.read(process.pid)
    if now is None or now.started != process.started or now.state in "Tt" or not handles(process.pid, LOOK_SIGNAL):
        return None
    return now


def our_thread(pid: int) -> int:
    """Return the id of our thread in a process (look_note), 0 if there is none."""
    try:
        for name in os.listdir(f"/proc/{pid}/task")[:THREADS_MOST]:
            with open(f"/proc/{pid}/task/{name}/comm") as file:
                if name != str(pid) and file.read(64).strip() == THREAD_NAME:
                    return int(name)
    except (OSError, ValueError):
        pass
    return 0


def cpu_of_main(pid: int) -> int:
    """Return the nanoseconds of CPU that the main thread of a process has used, 0 if that is not known."""
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat") as file:
            return int(file.read(64).split()[0])
    except (OSError, IndexError, ValueError):
        return 0


def any_other_runs(pid: int) -> bool:
    """Whether any thread of a process but the main one runs, as far as that is known. Those of an MPI poll at times."""
    time.sleep(LOOK_SECONDS)
    try:
        names = [name for name in os.listdir(f"/proc/{pid}/task") if name != str(pid)]
        return len(names) > THREADS_MOST or any(state_of_thread(pid, name) == "R" for name in names)
    except OSError:
        return True


def state_of_thread(pid: int, thread: str) -> str:
    """Return the state of a thread as one letter, an empty text if it is gone."""
    try:
        with open(f"/proc/{pid}/task/{thread}/stat", errors="replace") as file:
            return file.read(1024).rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def send_to_thread(pid: int, thread: int, number: int) -> bool:
    """Send a signal to one thread (tgkill(2)); return whether it was there."""
    import ctypes

    try:
        return bool(ctypes.CDLL(None).tgkill(pid, thread, int(number)) == 0)
    except AttributeError:  # glibc before 2.30
        return False


def write_to(job: JobDir, rank: int, what: bytes) -> bool:
    """Ask our thread in a rank. Return whether anybody will answer."""
    try:
        pipe = os.open(job.rank(rank, PIPE), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:  # it has no process group, or is no Python
        return False
    try:
        return stat.S_ISFIFO(os.fstat(pipe).st_mode) and os.write(pipe, what) == len(what)
    except OSError:
        return False
    finally:
        os.close(pipe)
