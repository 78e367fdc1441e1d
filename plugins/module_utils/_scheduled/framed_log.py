# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Messages in the log of a node: a frame of protocol.py as lines of bounded length, with a number each.

A pod has no channel to the controller but its log, a node of Slurm none but what it prints. Lines that are no part of a
frame are what other programs say there, such as the interpreter that does not start. A log that is followed a second
time begins anew: numbers tell what is new.
Kubelets rotate logs (containerLogMaxSize, 10 MiB), and what was rotated away cannot be read any more: frames that are
missing are counted, and reading goes on with the next whole one.
"""

from __future__ import annotations

import json
import re
from typing import Iterator, Literal, Mapping, TypedDict, Union

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import (
    BadFrame,
    Fields,
    flag,
    listed,
    optional,
    printable,
    short,
    whole,
    words,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import frames, protocol

MARK = "@torchfleet"
PART_CHARACTERS = 4000  # of a frame in one line: CRI tears lines of more than 16 KiB
LINE_BYTES = 8192  # of a line with mark and number
FRAME_CHARACTERS = 8 << 20  # of a frame: the report of a node takes some 100 KiB
SAID_MOST = 20  # lines of others that are kept
WHOLE, FIRST, MIDDLE, LAST = ":", "(", "+", ")"  # which part of its frame a line is
FORM = re.compile(r"@torchfleet ([0-9]{1,12}) ([:(+)]) (.*)\Z", re.DOTALL)
BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}\Z")
CONTENT_CHARACTERS = 200_000  # of one block of a file


def content(value: object) -> str:
    """Return a block of a file in base64."""
    if not isinstance(value, str) or len(value) > CONTENT_CHARACTERS or not BASE64.match(value):
        raise BadFrame("base64 was expected")
    return value


class Here(TypedDict):
    """What a node found in itself. `said`: each decision with its reason; `node`: its machine."""

    kind: Literal["here"]
    number: int
    said: list[str]
    nic: str
    rdma: list[str]
    python: str
    node: str | None


class Output(TypedDict):
    """One block of a file of a rank, in base64. `cut`: bytes before the first block that are not sent."""

    kind: Literal["output"]
    name: str
    first: bool
    content: str
    cut: int


FromNode = Union[
    protocol.Line,
    protocol.Report,
    protocol.Placed,
    protocol.Done,
    protocol.Ending,
    protocol.Over,
    protocol.Beat,
    Here,
    Output,
]


def here(raw: Fields) -> Here:
    return {
        "kind": "here",
        "number": whole(0, 99_999)(raw.get("number")),
        "said": listed(short, 20)(raw.get("said")),
        "nic": short(raw.get("nic")),
        "rdma": listed(short, 100)(raw.get("rdma")),
        "python": short(raw.get("python")),
        "node": optional(short)(raw.get("node")),
    }


def output(raw: Fields) -> Output:
    """Its name is checked by who knows the ranks of the pod."""
    return {
        "kind": "output",
        "name": words(raw.get("name")),
        "first": flag(raw.get("first")),
        "content": content(raw.get("content")),
        "cut": whole(0, 1 << 62)(raw.get("cut")),
    }


FROM_NODE: frames.Accepted[FromNode] = {
    "line": frames.line,
    "report": frames.report,
    "placed": frames.placed,
    "done": frames.done,
    "ending": frames.ending,
    "over": frames.over,
    "beat": frames.beat,
    "here": here,
    "output": output,
}


def lines_of(frame: Mapping[str, object], number: int, most: int = PART_CHARACTERS) -> Iterator[str]:
    """Yield the lines of a frame. `number`: of the first; `most`: characters of the frame in one line."""
    text = json.dumps(frame)
    for start in range(0, len(text), most):
        last = start + most >= len(text)
        place = (WHOLE if last else FIRST) if start == 0 else LAST if last else MIDDLE
        yield f"{MARK} {number} {place} {text[start : start + most]}"
        number += 1


class LogReader:
    """Puts the frames of one pod's log together. What comes is hostile: BadFrame for what no pod of ours says."""

    def __init__(self) -> None:
        self.number = -1  # of the last line that counted
        self.parts: list[str] = []
        self.size = 0
        self.missing = 0  # lines that the cluster did not have any more
        self.skips = False  # the start of a frame is missing: its other lines count for nothing
        self.said: list[str] = []  # the last lines that are no part of a frame
        self.line = bytearray()  # that has no end yet

    def take(self, data: bytes) -> Iterator[FromNode]:
        """Yield the frames that end in these bytes of the log."""
        self.line += data
        *whole_lines, rest = self.line.split(b"\n")
        self.line = bytearray(rest)
        if len(self.line) > LINE_BYTES and self.line.startswith(MARK.encode()):
            raise BadFrame("a line of its log has no end")
        del self.line[LINE_BYTES + 1 :]
        for line in whole_lines:
            frame = self.take_line(bytes(line[: LINE_BYTES + 1]))
            if frame:
                yield frame

    def take_line(self, line: bytes) -> FromNode | None:
        """Return the frame that ends with this line, if one does."""
        text = line.decode("utf-8", "replace").rstrip("\r")
        found = FORM.match(text)
        if not found:
            self.said = [*self.said, *filter(None, [printable(text)[:500].strip()])][-SAID_MOST:]
            return None
        number, place, part = int(found.group(1)), found.group(2), found.group(3)
        if number <= self.number:  # the log is read once more
            return None
        if len(line) > LINE_BYTES:
            raise BadFrame("a line of its log is too long")
        self.note_missing(number - self.number - 1)
        self.number = number
        return self.take_part(place, part)

    def note_missing(self, count: int) -> None:
        """Note that lines are missing, and with them the start or the end of a frame."""
        if count:
            self.missing, self.skips = self.missing + count, True
            self.parts, self.size = [], 0

    def take_part(self, place: str, part: str) -> FromNode | None:
        """Return the frame that ends with a part, if one does. `place`: of the part in its frame."""
        begins = place in (WHOLE, FIRST)
        self.skips = self.skips and not begins
        if self.skips:
            return None
        if begins == bool(self.parts):
            raise BadFrame("a frame of its log begins or ends within another one")
        self.parts.append(part)
        self.size += len(part)
        if self.size > FRAME_CHARACTERS:
            raise BadFrame("its log has a frame without an end")
        if place not in (WHOLE, LAST):
            return None
        whole_text, self.parts, self.size = "".join(self.parts), [], 0
        return frames.checked(frames.parse(whole_text.encode()), FROM_NODE)

    def again(self) -> None:
        """Read the log from its start again: a frame that was incomplete is sent again."""
        self.number, self.parts, self.size = self.number - len(self.parts), [], 0
        self.line.clear()
