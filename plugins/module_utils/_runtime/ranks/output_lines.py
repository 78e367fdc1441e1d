# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads what ranks write while they write it: whole lines for the live view, reports for metrics.jsonl.

The rank files are the truth and are never touched; this reads them with bounded memory and may drop lines for people,
never a report while the job runs. A report is a line `torchfleet: name=value ...` on stdout, or one of MLPerf's
benchmarks (docs/reporting.md).
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from typing import BinaryIO, Callable, NamedTuple, Union

from ..basics.job_directory import open_file

CHUNK = 1 << 18  # bytes read at a time
LOOK_SECONDS = 0.02  # that one look at one file takes, about
LINE_LIMIT = 4096  # bytes of one line that are kept
SHOW_LIMIT = 40  # lines of one stream shown per look
REPORT = b"torchfleet: "
MLLOG = b":::MLLOG "  # of MLPerf's benchmarks (mlperf-logging): JSON with key, value and metadata
MARKS = (REPORT, MLLOG)
NAME = re.compile(r"[a-z][a-z0-9_]{0,99}\Z")
PAIR = re.compile(r"([a-z][a-z0-9_]*)=(\S+)\Z")
# Of faulthandler, above each stack.
STACK = re.compile(rb"((Current thread|Thread) 0x[0-9a-f]+\b.*|Stack) \(most recent call first\):\s*\Z")
NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\Z")

Value = Union[int, float, str]


class Line(NamedTuple):
    """One line of a rank for people to read; `skipped` counts the lines before it that are only in the file."""

    rank: int
    stream: str
    text: str
    skipped: int


def parse_report(line: str) -> dict[str, Value] | None:
    """Return the values of a report line, or None if the line is just output.

    `epoch=3/12` becomes epoch=3 and epochs=12. Numbers become numbers, anything else stays text.
    """
    if line.startswith(MLLOG.decode()):
        return parse_mllog(line[len(MLLOG) :])
    if not line.startswith(REPORT.decode()):
        return None
    values: dict[str, Value] = {}
    for word in line[len(REPORT) :].split():
        pair = PAIR.match(word)
        if not pair:
            return None
        name, text = pair.groups()
        done, slash, total = text.partition("/")
        if slash and NUMBER.match(done) and NUMBER.match(total):
            values[name], values[name + "s"] = number(done), number(total)
        else:
            values[name] = number(text) if NUMBER.match(text) else text
    return values or None


def parse_mllog(text: str) -> dict[str, Value] | None:
    """Return the value that an MLPerf benchmark logs, under its key, and its epoch; None if it is no number."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not is_number(found.get("value")):
        return None
    key = str(found.get("key")).lower()
    if not NAME.match(key):
        return None
    values: dict[str, Value] = {key: found["value"]}
    metadata = found.get("metadata")
    epoch = metadata.get("epoch_num") if isinstance(metadata, dict) else None
    if isinstance(epoch, (int, float)) and is_number(epoch):
        values.setdefault("epoch", epoch)
    return values


def is_number(value: object) -> bool:
    """Whether a value of JSON is a number that JSON has."""
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def number(text: str) -> Value:
    """Return an int if the text is one, else a float; what is too large for one stays text (JSON has no infinity)."""
    if text.lstrip("+-").isdigit():
        return int(text)
    return text if float(text) in (float("inf"), float("-inf")) else float(text)


def clean(raw: bytes) -> str:
    """Return a line fit for a terminal: bad bytes replaced, no control characters, of `\\r` redraws only the last."""
    text = raw.decode("utf-8", errors="replace").rstrip("\r").rsplit("\r", 1)[-1]
    if text.isprintable():
        return text
    return "".join(character for character in text if character == "\t" or character.isprintable())


class Follower:
    """Follows one output file of one rank."""

    def __init__(
        self,
        path: str,
        rank: int,
        stream: str,
        show: bool,
        on_line: Callable[[Line], None],
        on_report: Callable[[int, dict[str, Value]], None],
    ) -> None:
        self.path, self.rank, self.stream, self.show = path, rank, stream, show
        self.on_line, self.on_report = on_line, on_report
        self.position = 0
        self.rest = b""  # the line that has no end yet, at most LINE_LIMIT bytes of it
        self.skipped = 0
        self.skipped_line = b""  # the last one of them
        self.shown = 0

    def look(self, last: bool = False, until: float = math.inf) -> int:
        """Read what was written since the last look. With `last`, read to the end of the file, an unfinished line too.

        Return how many bytes were passed over to get there: what is still to be read at `until` (time.monotonic()).
        """
        self.shown = 0
        passed = 0
        try:
            with open(open_file(self.path), "rb") as file:
                file.seek(self.position)
                # A look stays short, so that the others get their turn.
                self.read(file, until if last else time.monotonic() + LOOK_SECONDS)
                if last:
                    passed = self.pass_over(file)
                    self.read(file, math.inf)
        except OSError:  # it is not there yet, or is no file
            return 0
        if last and self.rest:
            self.line(self.rest)
        if last and self.skipped:
            self.on_line(Line(self.rank, self.stream, shorten(self.skipped_line), self.skipped - 1))
        return passed

    def read(self, file: BinaryIO, until: float) -> None:
        chunk = b"go"
        while chunk and time.monotonic() < until:
            chunk = file.read(CHUNK)
            self.position += len(chunk)
            self.take(chunk)

    def pass_over(self, file: BinaryIO) -> int:
        """Go to the first whole line of the last chunk, if more than that is left to read; return the bytes between."""
        start = self.position
        if file.seek(0, os.SEEK_END) - start > CHUNK:
            file.seek(-CHUNK, os.SEEK_END)
            file.readline()
            self.position, self.rest = file.tell(), b""
        file.seek(self.position)
        return self.position - start

    def take(self, chunk: bytes) -> None:
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            self.rest = (self.rest + chunk)[:LINE_LIMIT]
            return
        whole = self.rest + head
        self.rest = tail[:LINE_LIMIT]
        room = SHOW_LIMIT - self.shown if self.show else 0
        if room <= 0 and not any(mark in whole for mark in MARKS):
            if self.show:
                self.skip(whole.count(b"\n") + 1, whole[whole.rfind(b"\n") + 1 :])
            return
        for line in whole.split(b"\n"):
            self.line(line)

    def line(self, raw: bytes) -> None:
        report = parse_report(clean(raw)) if raw.startswith(MARKS) and self.stream == "stdout" else None
        if report:
            self.on_report(self.rank, report)
        elif self.show and self.shown < SHOW_LIMIT:
            self.shown += 1
            self.on_line(Line(self.rank, self.stream, shorten(raw), self.skipped))
            self.skipped = 0
        elif self.show:
            self.skip(1, raw)

    def skip(self, count: int, line: bytes) -> None:
        self.skipped += count
        self.skipped_line = line[:LINE_LIMIT]


def shorten(raw: bytes) -> str:
    """Return at most 500 characters of a line, with a mark where it was cut."""
    text = clean(raw[:LINE_LIMIT])
    return text if len(text) <= 500 else text[:500] + " [cut]"


def last_line(path: str) -> str:
    """Return the last line of a file that is not blank, read from its end; an empty string if there is none.

    Of the stacks of a rank that hung: the line of what it was doing.
    """
    try:
        with open(open_file(path), "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LINE_LIMIT * 4))
            lines = file.read().split(b"\n")
    except OSError:
        return ""
    last = next((place for place in reversed(range(len(lines))) if lines[place].strip()), None)
    return "" if last is None else shorten(lines[innermost(lines, last)]).strip()


def innermost(lines: list[bytes], last: int) -> int:
    """Return which line says what a program was doing, if the last one is of a stack that faulthandler wrote; else it.

    The frames stand below a head, the innermost first. The stack of the thread that was asked is the last one.
    """
    above = last
    while above >= 0 and lines[above].startswith(b"  "):
        above -= 1
    return above + 1 if 0 <= above < last and STACK.match(lines[above]) else last
