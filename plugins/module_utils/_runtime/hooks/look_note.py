# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Staged with the exit note: lets a look (see looking.py) ask a rank where it is, also if it waits in C.

A thread sleeps until it is asked: it writes the stacks of all threads, and what PyTorch's flight recorder has. Now and
then it notes when the rank came to its collectives (arrivals_note). It starts with the first process group, so that a
program without one has no thread of ours. PyTorch's own server for the recorder would have nine, and write to stderr.

Where the thread is not there, as in programs without a process group and in forked workers, a handler of Python's own
does it: it runs between two steps of the program, so no frame changes meanwhile. What waits or computes in C comes to
no next step: faulthandler's handler of another signal writes the stacks then. It needs no GIL, and is the last choice
for that: frames that change while they are read end the program (SIGSEGV).
"""

from __future__ import annotations

import _thread
import faulthandler
import fcntl
import os
import select
import signal
import sys
from typing import Protocol

LOOK_SIGNAL = signal.SIGRTMAX - 6  # of a rank that is asked for its stacks: nobody's, as that of exit_note
TELL_SIGNAL = signal.SIGRTMAX - 7  # the same, for the handler that waits for the next step of the program
STACKS, PIPE, RECORDER = "stacks", "look.pipe", "recorder.json"  # in the directory of a rank
WHOLE = b"(all threads)\n"  # behind stacks that were written with the GIL: who reads sees that nothing is missing
FOR_STACKS, FOR_RECORDER = b"s", b"?"  # what our thread is asked for, through the pipe
# Modules with what tells the entries of a flight recorder. PyTorch 2.13 does not see those of our own backends.
RECORDERS = (("torch._C._distributed_c10d", "_dump_fr_trace_json"), ("torchfleet_backends", "recorded"))
THREAD_NAME = "torchfleet-look"  # of at most 15 characters
HIGH = (1000, 200)  # descriptors below are left alone, as far as possible: a program finds those that it expects


def listen_for_looks(directory: str) -> None:
    """Write the stacks of all threads into the rank's directory whenever LOOK_SIGNAL or TELL_SIGNAL comes."""
    path = os.path.join(directory, STACKS)

    def tell(*_signal: object) -> None:
        try:
            write_stacks(path)
        except Exception:  # a full disk: the program goes on without an answer
            pass

    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    except OSError:
        return
    try:
        faulthandler.register(LOOK_SIGNAL, file=moved_up(opened))
        signal.signal(TELL_SIGNAL, tell)
    except (OSError, RuntimeError, ValueError):  # no descriptor is left
        pass


class Arrivals(Protocol):
    """What the thread needs of arrivals_note."""

    def pause(self) -> float: ...
    def tick(self) -> None: ...


def start_recorder(directory: str, arrivals: Arrivals | None = None) -> None:
    """Let a thread answer whenever a byte comes through the pipe, and note arrivals in between."""
    path = os.path.join(directory, PIPE)
    try:
        if not os.path.exists(path):
            os.mkfifo(path, 0o600)
        opened = os.open(path, os.O_RDWR | os.O_NOFOLLOW)  # also for writing: without a writer it would end
        _thread.start_new_thread(answer, (moved_up(opened), directory, arrivals))
    except (OSError, RuntimeError):
        pass


def moved_up(descriptor: int) -> int:
    """Return a descriptor in place of another one, out of the program's way. OSError."""
    for least in HIGH:
        try:
            found = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)
        except OSError:  # fewer are allowed
            continue
        os.close(descriptor)
        return found
    return descriptor


def answer(pipe: int, directory: str, arrivals: Arrivals | None = None) -> None:
    """Write the stacks, or the flight recorder's entries, to a file each time that they are asked for."""
    place = os.path.join(directory, RECORDER)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {LOOK_SIGNAL})  # they are the program's
    take_name()
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    while True:
        try:
            if arrivals and not waiting.poll(arrivals.pause() * 1000):
                arrivals.tick()
                continue
            asked = os.read(pipe, 512)
            if not asked:
                return
            if FOR_STACKS in asked:
                write_stacks(os.path.join(directory, STACKS))
            if FOR_RECORDER not in asked:
                continue
            entries = recorded()
            with open(place + ".tmp", "wb") as file:
                file.write(entries)
            os.replace(place + ".tmp", place)
        except Exception:  # whatever torch or a full disk makes of it: the rank goes on without an answer
            continue


def write_stacks(path: str) -> None:
    """Write the stacks of all threads. The one that does it has the GIL: no frame changes meanwhile. OSError.

    They come to the file at once: faulthandler writes piece by piece, and a disk that is busy, or its handler of the
    other signal, may come in between.
    """
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    try:
        os.write(opened, stacks_of_all(f"{path}.{_thread.get_native_id()}") + WHOLE)
    finally:
        os.close(opened)


def stacks_of_all(path: str) -> bytes:
    """Return the stacks of all threads; the file is made for that, and removed. OSError."""
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.unlink(path)
        faulthandler.dump_traceback(opened)
        return os.pread(opened, os.fstat(opened).st_size, 0)
    finally:
        os.close(opened)


def take_name() -> None:
    """Let this thread be found: it is asked, so that no call of the program is interrupted."""
    try:
        with open(f"/proc/self/task/{_thread.get_native_id()}/comm", "w") as file:
            file.write(THREAD_NAME)
    except OSError:  # the process gets the signal then
        pass


def recorded() -> bytes:
    """Return the entries as JSON, those of PyTorch and of backends of ours, a NUL between them. LookupError if none."""
    texts: list[bytes] = []
    for module, function in RECORDERS:
        try:
            texts.append(bytes(vars(sys.modules[module])[function]()))
        except Exception:  # it is not there, or another one
            continue
    if not texts:
        raise LookupError
    return b"\0".join(texts)
