# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A program on another machine, started with ssh. An attacker may control that machine: time and output are bounded."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Sequence

ANSWER_BYTES = 1 << 20  # of stdout
TOO_MUCH = f"it answered with more than {ANSWER_BYTES >> 20} MB"
STDERR_BYTES = 16 << 20  # tar may write a line for each of 20,000 files
KEPT_BYTES = 4096  # of the end of stderr
STDERR_SECONDS = 2.0  # to read the rest of stderr; a process that ssh left behind may keep it open


class RemoteProgram:
    """Runs until the end of the `with` block, its output, or its time. `status` and `error` are there after the block.

    It is killed after `seconds`, and when it writes more than ANSWER_BYTES or STDERR_BYTES.
    """

    def __init__(self, argv: Sequence[str], seconds: float) -> None:
        self.argv, self.seconds = list(argv), seconds
        self.limit, self.last, self.status = "", b"", 0

    def __enter__(self) -> RemoteProgram:
        read_end, self.stderr = os.pipe()
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(self.argv, stdin=pipe, stdout=pipe, stderr=self.stderr, bufsize=0)
        except OSError:
            os.close(read_end)
            os.close(self.stderr)
            raise
        self.feeder: subprocess.Popen[bytes] | None = None
        self.timer = threading.Timer(self.seconds, self.kill, [f"it did not end within {self.seconds:.0f} s"])
        self.reader = threading.Thread(target=self.read_stderr, args=[read_end], daemon=True)
        self.timer.start()
        self.reader.start()
        return self

    def __exit__(self, *_error: object) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()
        self.status = self.process.wait()
        self.timer.cancel()
        os.close(self.stderr)
        self.reader.join(STDERR_SECONDS)

    @property
    def error(self) -> str:
        """Which limit was exceeded, or the last line of stderr, or the status."""
        lines = [line.strip() for line in self.last.decode(errors="replace").splitlines() if line.strip()]
        return self.limit or [f"{self.argv[0]} ended with status {self.status}", *lines][-1]

    def kill(self, limit: str) -> None:
        """Kill it, and what feeds it, for a limit that was exceeded."""
        self.limit = self.limit or limit
        self.process.kill()
        if self.feeder:
            self.feeder.kill()

    def read_stderr(self, descriptor: int) -> None:
        """Keep the end of stderr."""
        read = 0
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            for part in iter(lambda: stream.read(1 << 16), b""):
                read += len(part)
                self.last = (self.last + part)[-KEPT_BYTES:]
                if read > STDERR_BYTES:
                    self.kill(f"it wrote more than {STDERR_BYTES >> 20} MB of messages")
                    break

    def write(self, data: bytes) -> None:
        """Write to its stdin. An end is seen by whoever reads its answer."""
        if self.process.stdin:
            try:
                self.process.stdin.write(data)
            except BrokenPipeError:
                pass

    def line(self) -> bytes:
        """Return the next line of its stdout; nothing at its end."""
        found = self.process.stdout.readline(ANSWER_BYTES) if self.process.stdout else b""
        if len(found) == ANSWER_BYTES:
            self.kill(TOO_MUCH)
        return found

    def feed(self, argv: Sequence[str]) -> int:
        """Have another program write the rest of its stdin. Return the status of that program."""
        if not self.process.stdin:
            return 1
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=self.process.stdin, stderr=self.stderr
        ) as self.feeder:
            self.process.stdin.close()
            if self.limit:  # it was killed before there was a feeder to kill
                self.feeder.kill()
            return self.feeder.wait()

    def rest(self) -> bytes:
        """Return the rest of its stdout, once its stdin has ended."""
        if self.process.stdin:
            self.process.stdin.close()
        found = b""
        while self.process.stdout and len(found) <= ANSWER_BYTES:
            part = self.process.stdout.read(1 << 16)
            if not part:
                return found
            found += part
        self.kill(TOO_MUCH)
        return b""


def ask(argv: Sequence[str], seconds: float, written: bytes = b"") -> tuple[bytes, str]:
    """Return what a program answers, and the error if it ends with another status than 0 or exceeds a limit."""
    with RemoteProgram(argv, seconds) as program:
        program.write(written)
        answer = program.rest()
    return answer, program.error if program.status or program.limit else ""
