# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The wire between controller and head: JSON lines over a pipe or an SSH channel, some followed by raw bytes.

A frame is one line of JSON; if it has a `size`, that many bytes follow. End of file is news too: the peer is gone.
"""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any

BLOCK = 1 << 20  # bytes of a file sent in one frame


class Channel:
    """Both directions of the wire. Lost peers raise EOFError when receiving and are ignored when sending."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming, self.outgoing = incoming, outgoing
        self.buffer = bytearray()
        self.lost = False

    def send(self, kind: str, data: bytes = b"", **fields: Any) -> None:
        """Send one frame. A peer that is gone is noted in `lost`."""
        frame = {"kind": kind, **fields}
        if data:
            frame["size"] = len(data)
        self.send_bytes(json.dumps(frame).encode() + b"\n" + data)

    def offer(self, kind: str, **fields: Any) -> None:
        """Send a small frame if the peer has room for it, else drop it: showing must never hold up doing."""
        if not self.lost and select.select([], [self.outgoing], [], 0)[1]:  # room for PIPE_BUF (4096) bytes
            self.send(kind, **fields)

    def send_bytes(self, data: bytes) -> None:
        """Send what is no frame."""
        raw = memoryview(data)
        try:
            while raw:
                raw = raw[os.write(self.outgoing, raw) :]
        except OSError:
            self.lost = True

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """Return the next frame (its bytes under `data`), None after `timeout` seconds. EOFError: the peer is gone."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            frame = self.parse()
            if frame is not None:
                return frame
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self.incoming], [], [], left)[0]:
                return None
            chunk = os.read(self.incoming, BLOCK)
            if not chunk:
                self.lost = True
                raise EOFError("the other side is gone")
            self.buffer += chunk

    def parse(self) -> dict[str, Any] | None:
        """Take one whole frame out of the buffer, if there is one."""
        end = self.buffer.find(b"\n")
        if end < 0:
            return None
        frame: dict[str, Any] = json.loads(self.buffer[:end])
        size = frame.get("size", 0)
        if len(self.buffer) < end + 1 + size:
            return None
        frame["data"] = bytes(self.buffer[end + 1 : end + 1 + size])
        del self.buffer[: end + 1 + size]
        return frame

    def send_file(self, name: str, path: str) -> None:
        """Send a file as `file` frames of at most BLOCK bytes; the first of a name truncates, the others append."""
        with open(path, "rb") as file:
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

    def wait(self, timeout: float, also: int) -> bool:
        """Wait for the next frame, the end of `also` or the timeout. Return whether `also` ended."""
        if self.lost:  # a dead peer is readable for ever: look at it once per timeout only
            return bool(select.select([also], [], [], timeout)[0])
        return also in select.select([self.incoming, also], [], [], 0 if b"\n" in self.buffer else timeout)[0]
