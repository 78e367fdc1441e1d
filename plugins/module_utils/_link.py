# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A conversation with our code on a node: the process that leads there (ssh, or ours itself), and a channel to it."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any, Callable, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._bootstrap import GREETING, parcel
from ansible_collections.torchfleet.cluster.plugins.module_utils._channel import Channel

GREETING_SECONDS = 30.0  # a node that has not answered by then is taken for unreachable (fault-tested: dropped packets)
CLOSE_SECONDS = 2.0


class LinkLost(Exception):
    """The other side does not answer, and why, in one line."""


class Link:
    """Starts a program whose stdin and stdout are a channel, and knows what it said on stderr if that fails."""

    def __init__(self, program: Sequence[str], patience: float | None = None) -> None:
        (stdin, outgoing), (incoming, stdout), (self.errors, stderr) = os.pipe(), os.pipe(), os.pipe()
        try:
            self.process = subprocess.Popen(program, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True)
        except OSError as error:
            for descriptor in (outgoing, incoming, self.errors):
                os.close(descriptor)
            raise LinkLost(f"{program[0]}: {error.strerror}") from None
        finally:
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        self.channel = Channel(incoming, outgoing, patience)

    def greet(self, archive: Callable[[], bytes], seconds: float = GREETING_SECONDS) -> None:
        """Wait for our code to come up on the node; give it the archive if it wants it. LinkLost if it does not."""
        deadline = time.monotonic() + seconds
        line = b""
        try:
            while not line.startswith(GREETING):
                found = self.channel.receive_line(max(0.0, deadline - time.monotonic()))
                if found is None:
                    raise LinkLost(f"no answer within {seconds:.0f} s")
                line = found
        except EOFError:
            raise LinkLost(self.last_words()) from None
        if line.endswith(b"wanted"):
            self.channel.send_bytes(parcel(archive()))

    def ask(self, kind: str, seconds: float | None = None, **fields: Any) -> Any:
        """Send a frame and return the next answer, as answer() does."""
        self.channel.send(kind, **fields)
        return self.answer(seconds)

    def answer(self, seconds: float | None = None) -> Any:
        """Return the next frame. LinkLost if there will be none, or not within `seconds`."""
        try:
            frame = self.channel.receive(seconds)
        except EOFError:
            raise LinkLost(self.last_words()) from None
        if frame is None:
            raise LinkLost(f"no answer within {seconds:.0f} s")
        return frame

    def last_words(self) -> str:
        """Return the last line the program said on stderr."""
        os.set_blocking(self.errors, False)
        try:
            said = os.read(self.errors, 65536).decode(errors="replace").strip().splitlines()
        except BlockingIOError:
            said = []
        return said[-1].strip() if said else "the connection ended without a word"

    def close(self) -> None:
        """Hang up and see the program leave; one that stays is ended."""
        self.channel.close()
        try:
            self.process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.errors)
