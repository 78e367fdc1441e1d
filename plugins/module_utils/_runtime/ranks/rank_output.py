# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A rank's stdout and stderr: named pipes that its program writes to, and the files that they are copied to.

The program does not have the files themselves: `echo text > /dev/stderr` in a shell script opens what stderr is once
more, with O_TRUNC, and a file would lose all that the rank had written before. A pipe opened so loses nothing.

The rank's wrapper copies. The guard has each pipe open too and reads it when no wrapper does: so a program whose
wrapper is killed gets no SIGPIPE, and what was in the pipe, or what a daemon writes that outlives its rank, is in the
file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import termios
from typing import Collection, Iterable

from ..basics.job_directory import PIPES, JobDir

CHUNK = 1 << 16  # bytes that a pipe holds unless the program made it larger


class Stream:
    """One stream of a rank, from its pipe to its file."""

    def __init__(self, job: JobDir, rank: int, name: str) -> None:
        """Open the pipe for reading: a program may open it for writing from now on. OSError."""
        self.name, self.path = name, job.rank(rank, name)
        pipe = job.rank(rank, PIPES[name])
        self.pipe = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        if not stat.S_ISFIFO(os.fstat(self.pipe).st_mode):
            os.close(self.pipe)
            raise OSError(errno.EINVAL, "no pipe", pipe)
        self.file = -1
        self.error = ""  # why the file could not be written; what comes after that is dropped

    def copy(self, limit: int = CHUNK) -> int:
        """Copy what is in the pipe, at most `limit` bytes; return how many, -1 if nobody can write to it any more."""
        try:
            data = os.read(self.pipe, limit)
        except BlockingIOError:
            return 0
        if data and not self.error:
            self.write(data)
        return len(data) or -1

    def copy_all(self) -> None:
        """Copy what is in the pipe now. A process that goes on writing does not keep this from returning."""
        waiting = struct.unpack("i", fcntl.ioctl(self.pipe, termios.FIONREAD, bytes(4)))[0]
        while waiting > 0:
            copied = self.copy(min(waiting, CHUNK))
            if copied <= 0:
                return
            waiting -= copied

    def write(self, data: bytes) -> None:
        """Write to the file, which is made if it is not there yet; with the first error `error` is set."""
        try:
            self.open_file()
            while data:
                data = data[os.write(self.file, data) :]
        except OSError as error:
            self.error = f"its {self.name} could not be written: {(error.strerror or '').lower()}"

    def open_file(self) -> None:
        """Open the file unless it is open. OSError, also for a link, a pipe or a device in its place."""
        if self.file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
            self.file = os.open(self.path, flags, 0o600)
            if not stat.S_ISREG(os.fstat(self.file).st_mode):
                raise OSError(errno.EINVAL, "no regular file", self.path)

    def close(self) -> None:
        """Read and write nothing more."""
        for descriptor in (self.pipe, self.file):
            if descriptor >= 0:
                os.close(descriptor)
        self.pipe = self.file = -1

    def become(self, descriptor: int) -> None:
        """In the program's process: make the pipe its stdout or stderr. OSError."""
        opened = os.open(f"/proc/self/fd/{self.pipe}", os.O_WRONLY)
        os.dup2(opened, descriptor)
        os.close(opened)


def open_streams(job: JobDir, rank: int) -> list[Stream]:
    """Open stdout and stderr of a rank. OSError."""
    return [Stream(job, rank, name) for name in PIPES]


def streams_of(job: JobDir, ranks: Iterable[int]) -> dict[int, list[Stream]]:
    """Open the pipes of some ranks, as far as that is possible; return them by rank."""
    found: dict[int, list[Stream]] = {}
    for rank in ranks:
        try:
            found[rank] = open_streams(job, rank)
        except OSError:  # no descriptor is left: the rank's wrapper reads them all the same
            pass
    return found


def copy_all(streams: Collection[Stream]) -> None:
    """Copy the content of the pipes of a rank whose wrapper is gone."""
    for stream in streams:
        stream.copy_all()
