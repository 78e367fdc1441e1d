# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The wire between controller, head and workers: JSON lines over a pipe or an SSH channel, some followed by raw bytes.

A frame is one line of JSON; if it has a `size`, that many bytes follow. End of file is news too: the peer is gone.
"""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any, Callable, Mapping, TypeVar

from ansible_collections.torchfleet.cluster.plugins.module_utils import _frames
from ansible_collections.torchfleet.cluster.plugins.module_utils._jobdir import open_file

Taken = TypeVar("Taken")

PIPE_BUF = 4096  # bytes that a pipe which select calls writable takes at once (pipe(7))
BLOCK = _frames.DATA_BYTES  # bytes of a file sent in one frame


class Channel:
    """Both directions of the wire. Lost peers raise EOFError when receiving and are ignored when sending.

    A peer that takes nothing for `patience` seconds is lost too (a dead network looks like a slow one), and so is one
    that sends what it must not: `flaw` says what that was.
    """

    def __init__(
        self,
        incoming: int,
        outgoing: int,
        patience: float | None = None,
        accepted: Mapping[str, Mapping[str, _frames.Check]] | None = None,
    ) -> None:
        """`accepted`: the frames that may come, as _frames has them; without it the other side is trusted."""
        self.accepted, self.flaw = accepted, ""
        self.incoming, self.outgoing = incoming, outgoing
        self.patience = patience
        self.buffer = bytearray()
        self.searched = 0  # bytes of it that have no line end
        self.begun: dict[str, Any] | None = None  # the frame whose data are still coming
        self.lost = False

    def send(self, kind: str, data: bytes = b"", **fields: Any) -> None:
        """Send one frame. A peer that is gone is noted in `lost`."""
        frame = {"kind": kind, **fields}
        if data:
            frame["size"] = len(data)
        self.send_bytes(json.dumps(frame).encode() + b"\n" + data)

    def offer(self, kind: str, **fields: Any) -> None:
        """Send a small frame if the peer has room for it, else drop it: showing must never hold up doing."""
        if not self.lost and select.select([], [self.outgoing], [], 0)[1]:  # room for PIPE_BUF bytes
            frame = json.dumps({"kind": kind, **fields}).encode() + b"\n"
            if len(frame) <= PIPE_BUF:  # more would wait for a reader
                self.send_bytes(frame)

    def send_bytes(self, data: bytes) -> None:
        """Send what is no frame."""
        raw = memoryview(data)
        try:
            while raw and not self.lost:
                if self.patience and not select.select([], [self.outgoing], [], self.patience)[1]:
                    raise TimeoutError
                raw = raw[os.write(self.outgoing, raw[:PIPE_BUF] if self.patience else raw) :]
        except OSError:
            self.lost = True

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """Return the next frame (its bytes under `data`), None after `timeout` seconds. EOFError: the peer is gone."""
        return self.take(self.parse, timeout)

    def receive_line(self, timeout: float | None = None) -> bytes | None:
        """Return the next line as it is, None after `timeout` seconds. EOFError: the peer is gone."""
        return self.take(self.parse_line, timeout)

    def take(self, parse: Callable[[], Taken | None], timeout: float | None) -> Taken | None:
        """Read until `parse` finds something in the buffer."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                found = parse()
                if found is not None:
                    return found
                if len(self.buffer) > _frames.LINE_BYTES + _frames.DATA_BYTES:
                    raise _frames.BadFrame("it sent more than a frame without an end")
            except _frames.BadFrame as error:
                self.lost, self.flaw = True, str(error)
                raise EOFError(self.flaw) from None
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self.incoming], [], [], left)[0]:
                return None
            chunk = os.read(self.incoming, BLOCK)
            if not chunk:
                self.lost = True
                raise EOFError("the other side is gone")
            self.buffer += chunk

    def parse_line(self) -> bytes | None:
        """Take one line out of the buffer, if there is one."""
        end = self.buffer.find(b"\n", self.searched)
        self.searched = len(self.buffer) if end < 0 else 0
        if end < 0:
            return None
        line = bytes(self.buffer[:end])
        del self.buffer[: end + 1]
        return line

    def parse(self) -> dict[str, Any] | None:
        """Take one whole frame out of the buffer, if there is one."""
        if self.begun is None:
            line = self.parse_line()
            if line is None:
                return None
            self.begun = _frames.parse(line)
        size = self.begun.get("size", 0)
        if len(self.buffer) < size:
            return None
        frame, self.begun = self.begun, None
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return {**(frame if self.accepted is None else _frames.checked(frame, self.accepted)), "data": data}

    def send_file(self, name: str, path: str) -> None:
        """Send a file as `file` frames of at most BLOCK bytes; the first of a name truncates, the others append.

        A link, pipe or device in its place is not followed, waited for or read: nothing of it is sent.
        """
        try:
            descriptor = open_file(path)
        except OSError:
            return
        with open(descriptor, "rb") as file:
            block = file.read(BLOCK)
            self.send("file", block, name=name, first=True)
            while block:
                block = file.read(BLOCK)
                if block:
                    self.send("file", block, name=name, first=False)

    def close(self) -> None:
        """Hang up: the peer sees the end of the wire."""
        os.close(self.incoming)
        os.close(self.outgoing)
