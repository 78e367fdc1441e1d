# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A program of the user's that talks to a cluster. What the cluster answers is hostile: time and output are bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes.processes import descendants, send
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.codes import Code
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import ready

BLOCK = 1 << 16
ERROR_BYTES = 1 << 20  # of stderr that are kept; what is over is read and dropped
TICK_SECONDS = 0.1  # between two looks whether it ended: what it started may keep its output open


class Exceeded(Code):
    """The limit for which a program was ended."""

    NONE = ""
    TIME = "time"
    SIZE = "size"


class Done(NamedTuple):
    """How a program ended."""

    status: int
    stdout: bytes
    stderr: bytes
    exceeded: Exceeded = Exceeded.NONE


def run(argv: Sequence[str], given: bytes, seconds: float, most: int) -> Done:
    """Run a program that reads `given`. It is killed after `seconds`, or when it prints more than `most` bytes.

    What it started is killed with it.
    OSError if it cannot be started.
    """
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as stdin:  # a file: nobody has to write while its output is read
        stdin.write(given)
        stdin.seek(0)
        with subprocess.Popen(argv, stdin=stdin, stdout=pipe, stderr=pipe) as process:
            out, err, exceeded = read(process, time.monotonic() + seconds, most)
            if exceeded:
                kill_with_children(process)
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()
    return Done(process.returncode, out, err, exceeded)


def kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """Kill a program, and what it started: kubectl starts the programs that log in to a cloud."""
    # Not a group or session of its own: Ctrl-C ends the group of Ansible's worker, and this program with it.
    process.send_signal(signal.SIGSTOP)  # it starts nothing while we look
    # After its end the pid may be another program's. A controller with macOS has no /proc to look in.
    children = descendants(process.pid) if process.poll() is None and os.path.isdir("/proc") else []
    process.kill()
    for child in children:
        send(child, signal.SIGKILL)


def read(process: subprocess.Popen[bytes], deadline: float, most: int) -> tuple[bytes, bytes, Exceeded]:
    """Return stdout and stderr of a program that has ended, or that has exceeded a limit."""
    said = {stream.fileno(): bytearray() for stream in (process.stdout, process.stderr) if stream}
    (stdout, stderr), waiting, exceeded = said, set(said), Exceeded.NONE
    while not exceeded:
        ended = process.poll() is not None
        found = ready(waiting, 0 if ended else TICK_SECONDS)
        for descriptor in found:
            block = os.read(descriptor, BLOCK)
            waiting -= set() if block else {descriptor}
            said[descriptor] += block
        if len(said[stdout]) > most:
            exceeded = Exceeded.SIZE
        del said[stderr][ERROR_BYTES:]
        if ended and not found:
            break
        if time.monotonic() > deadline:
            exceeded = Exceeded.TIME
    return bytes(said[stdout][:most]), bytes(said[stderr]), exceeded
