# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A process that runs our code on a node (ssh, or our code itself), and the channel to it."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from typing import Callable, Generic, Sequence, TypeVar

from ..basics.bootstrap import GREETING, parcel
from ..types.forms import printable
from .channel import BEAT_SECONDS, Channel
from .frames import Accepted
from .protocol import FromNode, FromSupervisor, ToNode, ToSupervisor

TALKATIVE = "its login shell prints too much (over 1 MiB)"
GREETING_SECONDS = 30.0  # then a node is unreachable (fault-tested: dropped packets)
STEP_SECONDS = 0.2  # after which a signal that another thread took is handled
WORK_SECONDS = 600.0  # for an answer of a node that sends beats meanwhile
MOST_BEATS = int(WORK_SECONDS / BEAT_SECONDS)
CLOSE_SECONDS = 2.0
ERROR_BYTES = 65536  # of stderr that are kept, the last ones
ERROR_SECONDS = 0.5  # for the rest of stderr of a program that is gone
TALK_BYTES = 1 << 20  # that login shells and profiles may print before our greeting


Sent = TypeVar("Sent", bound=ToSupervisor)
Answer = TypeVar("Answer", bound=FromSupervisor)


class ConnectionLost(Exception):
    """The other side does not answer; the text says why, in one line."""


class RemoteProcess(Generic[Sent, Answer]):
    """A program whose stdin and stdout are a channel. Its stderr is kept to explain a failure."""

    def __init__(
        self,
        program: Sequence[str],
        send_timeout: float | None = None,
        accepted: Accepted[Answer] | None = None,
    ) -> None:
        """`accepted`: the frames that may come, as frames.py has them."""
        (stdin, outgoing), (incoming, stdout), (errors, stderr) = os.pipe(), os.pipe(), os.pipe()
        try:
            self.process = subprocess.Popen(program, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True)
        except OSError as error:
            for descriptor in (outgoing, incoming, errors):
                os.close(descriptor)
            raise ConnectionLost(f"{program[0]}: {error.strerror}") from None
        finally:
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        self.channel: Channel[Sent, Answer] = Channel(incoming, outgoing, send_timeout, accepted)
        self.stderr_tail = b""  # the last ERROR_BYTES of stderr
        self.stderr_reader = threading.Thread(target=self.read_stderr, args=(errors,), daemon=True)
        try:
            self.stderr_reader.start()
        except RuntimeError as error:  # this user has as many threads as allowed
            os.close(errors)
            self.process.kill()
            self.channel.close()
            self.process.wait()
            raise ConnectionLost(f"{program[0]}: {error}") from None

    def read_stderr(self, errors: int) -> None:
        """Read stderr to its end: a full pipe would block the program that writes to it."""
        with open(errors, "rb", buffering=0) as stream:
            for chunk in iter(lambda: stream.read(ERROR_BYTES), b""):
                self.stderr_tail = (self.stderr_tail + chunk)[-ERROR_BYTES:]

    def greet(self, archive: Callable[[], bytes], seconds: float = GREETING_SECONDS) -> None:
        """Wait until our code runs on the node, sending the archive if it asks for it. ConnectionLost."""
        deadline = time.monotonic() + seconds
        line, received = b"", 0
        try:
            while not line.startswith(GREETING):
                left = deadline - time.monotonic()
                found = self.channel.receive_line(max(0.0, min(STEP_SECONDS, left)))
                if found is None and left > 0:
                    continue
                received += len(found or b"") + 1
                if found is None or received > TALK_BYTES:
                    raise ConnectionLost(f"no answer within {seconds:.0f} s" if found is None else TALKATIVE)
                line = found if found.strip() else line
        except EOFError:
            raise ConnectionLost(self.failure_text(line.decode(errors="replace"))) from None
        if line.endswith(b"wanted"):
            self.channel.send_bytes(parcel(archive()))

    def ask(self, frame: Sent, seconds: float | None = None) -> Answer:
        """Send a frame and return the next one that comes, as answer() does."""
        self.channel.send(frame)
        return self.answer(seconds)

    def answer(self, seconds: float | None = None, times: int = 1) -> Answer:
        """Return the next frame. ConnectionLost if there will be none, or nothing comes for `seconds`.

        A node that beats is at work, with a slow disk perhaps: it is waited for, WORK_SECONDS and MOST_BEATS at most,
        or so many `times` that.
        """
        work, beats, most_beats = WORK_SECONDS * times, 0, MOST_BEATS * times
        deadline = time.monotonic() + work
        while True:
            try:
                frame = self.channel.receive(seconds)
            except EOFError:
                raise ConnectionLost(self.failure_text()) from None
            if frame is None:
                raise ConnectionLost(f"no answer within {seconds:.0f} s")
            if frame["kind"] != "beat":
                return frame
            beats += 1
            if beats > most_beats:
                raise ConnectionLost(f"it sent more than {most_beats} heartbeats, but no answer")
            if time.monotonic() > deadline:
                raise ConnectionLost(f"still at work after {work:.0f} s: its disk may hang")

    def failure_text(self, before: str = "") -> str:
        """Return why there is no answer: the protocol error, else the last line of stderr.

        `before`: the last line of stdout, where some shells refuse a login.
        """
        if self.channel.protocol_error:
            return self.channel.protocol_error
        self.stderr_reader.join(ERROR_SECONDS)
        lines = self.stderr_tail.decode(errors="replace").strip().splitlines()
        last = printable(lines[-1].strip() if lines else before.strip())[:500]
        return last or "the connection was closed without an error message"

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Close the channel and wait for the program to exit; kill it if it does not."""
        self.channel.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stderr_reader.join(ERROR_SECONDS)


def wrong_answer(asked: ToNode, frame: FromNode) -> ConnectionLost:
    """Return the error for a node whose answer is of another kind than what was asked."""
    return ConnectionLost(f"it answered {asked['kind']} with {frame['kind']}")
