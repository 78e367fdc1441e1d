# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The wire between controller, head and workers: JSON lines over a pipe or an SSH channel, some followed by raw bytes.

A frame is one line of JSON; if it has a `size`, that many bytes follow, which are its `data` here. End of file means
that the peer is gone.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from typing import BinaryIO, Callable, Generic, Iterable, Mapping, TypeVar, cast

from ..basics.job_directory import open_file
from ..types.file_messages import File
from ..types.forms import BadFrame, Fields
from . import frames
from .protocol import FromSupervisor, ToSupervisor

Sent_contra = TypeVar("Sent_contra", contravariant=True, bound=Mapping[str, object])  # one of the unions of protocol.py
Received_co = TypeVar("Received_co", covariant=True)
Taken = TypeVar("Taken")

PIPE_BUF = 4096  # bytes that a pipe which poll calls writable takes at once (pipe(7))
BLOCK = frames.DATA_BYTES  # bytes of a file sent in one frame
LINE = 1 << 16  # bytes at the end of a block in which a line end is looked for
BEAT_SECONDS = 2.0  # between two signs of life


def ready(descriptors: Iterable[int], seconds: float | None, event: int = select.POLLIN) -> set[int]:
    """Return the descriptors that can be read (or written, with POLLOUT), or none after so many seconds (None: wait).

    One whose other end is gone counts: reading it says so. Descriptors may have any number; select(2) takes 1,024.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, event)
    return {found for found, _event in poll.poll(None if seconds is None else max(0.0, seconds) * 1000)}


class Channel(Generic[Sent_contra, Received_co]):
    """Both directions of the wire. A lost peer raises EOFError when receiving and is ignored when sending.

    A peer that reads nothing for `send_timeout` seconds is lost too (a dead network looks like a slow one), and so is
    one that breaks the protocol: `protocol_error` says how.
    """

    def __init__(
        self,
        incoming: int,
        outgoing: int,
        send_timeout: float | None = None,
        accepted: frames.Accepted[Received_co] | None = None,
    ) -> None:
        """`accepted`: the frames that may come, as frames.py has them; without it the other side is trusted."""
        self.accepted, self.protocol_error = accepted, ""
        self.incoming, self.outgoing = incoming, outgoing
        self.send_timeout = send_timeout
        self.buffer = bytearray()
        self.searched = 0  # bytes of it that have no line end
        self.pending: Fields | None = None  # the frame whose data has not all arrived
        self.lost = False
        self.deaf = False  # lost, because it read nothing for that long
        self.sending = threading.Lock()  # frames of several threads go out one after the other

    def send(self, frame: Sent_contra) -> None:
        """Send one frame. A peer that is gone is noted in `lost`."""
        self.send_bytes(serialized(frame))

    def offer(self, frame: Sent_contra) -> None:
        """Send a small frame if the pipe has room for it, else drop it: output shown must never block the job."""
        if not self.lost and ready([self.outgoing], 0, select.POLLOUT):  # room for PIPE_BUF bytes
            raw = serialized(frame)
            if len(raw) <= PIPE_BUF:  # more would wait for a reader
                self.send_bytes(raw)

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes."""
        raw = memoryview(data)
        with self.sending:
            try:
                while raw and not self.lost:
                    if self.send_timeout and not ready([self.outgoing], self.send_timeout, select.POLLOUT):
                        raise TimeoutError
                    raw = raw[os.write(self.outgoing, raw[:PIPE_BUF] if self.send_timeout else raw) :]
            except OSError as error:
                self.lost, self.deaf = True, isinstance(error, TimeoutError)

    def receive(self, timeout: float | None = None) -> Received_co | None:
        """Return the next frame, None after `timeout` seconds. EOFError: the peer is gone."""
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
                if len(self.buffer) > frames.LINE_BYTES + frames.DATA_BYTES:
                    raise BadFrame("it sent more than a frame without an end")
            except BadFrame as error:
                self.lost, self.protocol_error = True, str(error)
                raise EOFError(self.protocol_error) from None
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not ready([self.incoming], left):
                return None
            try:
                chunk = os.read(self.incoming, BLOCK)
            except ConnectionError:  # stdin may be a socket
                chunk = b""
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

    def parse(self) -> Received_co | None:
        """Take one whole frame out of the buffer, if there is one. BadFrame."""
        if self.pending is None:
            line = self.parse_line()
            if line is None:
                return None
            self.pending = frames.parse(line)
        size = frames.size_of(self.pending)
        if len(self.buffer) < size:
            return None
        frame, self.pending = self.pending, None
        if frame.pop("size", None) is not None or frame["kind"] == "file":
            frame["data"] = bytes(self.buffer[:size])
            del self.buffer[:size]
        return cast(Received_co, frame) if self.accepted is None else frames.checked(frame, self.accepted)

    def send_file(self: FileChannel, name: str, path: str) -> None:
        """Send a file as `file` frames of at most BLOCK bytes; the first of a name truncates, the others append.

        Where the file has lines a block ends with one: rows that come from several nodes at a time stay whole.
        A link, pipe or device in its place is not followed, waited for or read: nothing of it is sent.
        """
        try:
            descriptor = open_file(path)
        except OSError:
            return
        with open(descriptor, "rb") as file:
            first, block = True, next_block(file)
            while first or block:
                self.send({"kind": "file", "name": name, "first": first, "data": block})
                first, block = False, next_block(file)

    def close(self) -> None:
        """Close both directions: the peer sees end of file."""
        os.close(self.incoming)
        os.close(self.outgoing)


FileChannel = Channel[File, object]
SupervisorChannel = Channel[FromSupervisor, ToSupervisor]  # of a supervisor, to the other end of its connection


def serialized(frame: Mapping[str, object]) -> bytes:
    """Return a frame as it is sent."""
    fields = dict(frame)
    data = fields.pop("data", b"")
    if not isinstance(data, bytes) or not data:
        return json.dumps(fields).encode() + b"\n"
    return json.dumps({**fields, "size": len(data)}).encode() + b"\n" + data


def next_block(file: BinaryIO) -> bytes:
    """Return the next bytes of a file, at most BLOCK, to the end of a line if there is one near."""
    block = file.read(BLOCK - LINE)
    return block + file.readline(LINE)
