# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The connection to the head: how it begins, what ends it, and who is waited for and how long."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics import bootstrap
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import frames
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import (
    ERROR_SECONDS,
    WORK_SECONDS,
    ConnectionLost,
    RemoteProcess,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import FromHead, ToHead
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import Stopped, signals_later
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node

from . import runtime_archive

DEFAULT_HOME = "~/.torchfleet"
ASK_SECONDS = 0.2  # how often the user is asked while the head is waited for
SILENT_SECONDS = 60.0  # without a sign of life, after which a head is lost; while a job runs it is the lease
LEAVE_SECONDS = 30.0  # for the head to exit after the session is closed
QUEUE_SECONDS = 5.0  # for the head to take a job out of the queue whose user stops it


class HeadLost(Exception):
    """The head stopped answering. What it has of the run stays there until clean.yml fetches it."""


class Connection:
    """Starts the supervisor on the head, and takes its answers."""

    def __init__(self, head: Node, ssh: tuple[str, ...], detached: bool = False) -> None:
        """`ssh`: the words that run a command on a head elsewhere, as Ansible's connection to it would.

        `detached`: the job that it will run goes on when this session is closed.
        """
        self.head = head
        self.home = head.home or DEFAULT_HOME
        self.queued = False  # the job waits in the queue, or has waited there
        start = bootstrap.bootstrap(head.interpreter, self.home, runtime_archive.digest())
        entry = os.path.join(os.path.abspath(os.path.expanduser(self.home)), runtime_archive.entry())
        known = head.local and os.path.exists(entry)
        if known:  # saves one start of Python
            start = [head.interpreter, "-I", "-S", entry, "supervise"]
        self.remote: RemoteProcess[ToHead, FromHead]
        try:
            with signals_later():
                self.start(start if head.local else [*ssh, "exec " + shlex.join(start)])
            if not known:
                self.greet()
        except Stopped:
            self.drop()
            raise
        if detached:
            self.remote.channel.send({"kind": "detach"})

    def start(self, program: Sequence[str]) -> None:
        """Start the program that is the connection. InputError if there is none."""
        try:
            self.remote = RemoteProcess(program, SILENT_SECONDS, frames.FROM_HEAD)
        except ConnectionLost as lost:
            name = f"{'ansible_python_interpreter' if self.head.local else 'connection'} of {self.head.name}"
            raise InputError(name, program[0], str(lost)) from None

    def greet(self) -> None:
        """Wait until our code runs on the head. InputError says why it does not."""
        try:
            self.remote.greet(runtime_archive.archive)
        except ConnectionLost as lost:
            self.remote.close()
            if self.remote.process.returncode == bootstrap.TOO_OLD:
                name = f"ansible_python_interpreter of {self.head.name}"
                raise InputError(name, self.head.interpreter, str(lost)) from None
            if self.head.local:
                raise self.unusable_home(lost) from None
            check = f"try: ansible {self.head.name} -m ping"
            raise InputError(f"connection of {self.head.name}", self.head.address, f"{lost}; {check}") from None

    def unusable_home(self, lost: Exception) -> InputError:
        """Return the error for a home to which our code cannot be copied."""
        name = f"torchfleet_home of {self.head.name}"
        return InputError(name, self.home, f"{lost}; give a directory of yours: -e torchfleet_home=/scratch/me")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is Stopped and not self.queued:
            self.drop()
            return
        self.remote.channel.close()
        try:
            self.remote.process.wait(QUEUE_SECONDS if kind is Stopped else LEAVE_SECONDS)
        except subprocess.TimeoutExpired:  # it still ends a job, and needs nobody for that
            if kind is Stopped:
                self.kill()
        self.remote.stderr_reader.join(ERROR_SECONDS)

    def drop(self) -> None:
        """Kill the connection to the head at once: no job was started. It may not have been made."""
        if not hasattr(self, "remote"):
            return
        self.kill()
        with contextlib.suppress(OSError):  # the channel may be closed
            self.remote.close()

    def kill(self) -> None:
        """Kill the program that is the connection to the head."""
        with contextlib.suppress(OSError):  # it may be gone
            os.killpg(self.remote.process.pid, signal.SIGKILL)  # it has a session of its own

    def ask(self, frame: ToHead) -> FromHead:
        """Send a frame and return the next answer. HeadLost if there will be none."""
        self.remote.channel.send(frame)
        return self.answer(lambda: False)

    def other_question(self) -> HeadLost:
        """Return the error for an answer of another kind than what was asked."""
        return HeadLost(f"invalid answer from head {self.head.name}: it does not match the request")

    def answer(
        self, give_up: Callable[[], bool], silence: float = SILENT_SECONDS, work: float = 2 * WORK_SECONDS
    ) -> FromHead:
        """Return the next frame that is no beat. HeadLost if there will be none.

        Or if `give_up`, which is asked several times a second (so a signal that another thread took is dealt with soon,
        too), or nothing is heard for `silence` seconds, or only beats for `work` seconds. Time in which this process
        was stopped is no silence of the head.
        """
        silent, start, looked = 0.0, time.monotonic(), time.monotonic()
        while True:
            if give_up():
                raise HeadLost("stopped twice")
            try:
                frame = self.remote.channel.receive(ASK_SECONDS)
            except EOFError:
                raise HeadLost(
                    f"the supervisor on the head {self.head.name} died: {self.remote.failure_text()}"
                ) from None
            if frame and frame["kind"] != "beat":
                return frame
            now = time.monotonic()
            silent = 0.0 if frame else silent + min(now - looked, 2 * ASK_SECONDS)
            looked = now
            if silent > silence:
                raise HeadLost(f"the head {self.head.name} is lost: silent for {silence:g} s")
            if now - start > work:
                raise HeadLost(f"the head {self.head.name} is lost: still at work after {work:g} s, its disk may hang")
