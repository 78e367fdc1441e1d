# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Looks up in the book why a rank, or the launcher, failed. Pure: texts and codes in, an entry and its line out.

What a rank printed is hostile, and it may have logged errors that it got over. So only its end is looked at, and there
only what ended the program: the last traceback with those that it came of, if the program stops there; else the last
lines. The lines of code in a traceback do not count, nor do warnings of C++ that come after it. Of a program that a
signal ended no traceback counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import RankError

from .book import Entry

LOOKED_AT = 1 << 16  # bytes of the end of a stream
LINES = 2000  # of them at most, each of LINE characters
LINE = 2000
LAST_LINES = 10  # that count without a traceback
AFTER_LINES = 40  # that may come after a traceback that ended the program
ABORT = 6  # SIGABRT, by which C++ ends a program after an exception
PREFIX = re.compile(r"\[rank[0-9]{1,7}\]: ?")  # of PyTorch, before each line of a traceback
TRACEBACK = "Traceback (most recent call last):"
CAME_OF = ("During handling of the above exception", "The above exception was the direct cause")
CPP = "terminate called"
WARNING = re.compile(r"\[?[IW][0-9]* ")  # of PyTorch's and glog's log: "[W1126 10:00:00.000 socket.cpp:755] ..."


class Ended(NamedTuple):
    """How a rank ended."""

    text: str = ""  # the end of a stream
    rc: int | None = None
    signal: int | None = None
    code: RankError = RankError.NONE


class Match(NamedTuple):
    """An entry, and the line that says so; empty if a code or a signal does."""

    entry: Entry
    line: str


def by_code(entries: Iterable[Entry], code: RankError) -> Match | None:
    """Return the entry for an error in the record of a rank."""
    return next((Match(entry, "") for entry in entries if code and code in entry.codes), None)


def by_state(entries: Iterable[Entry], state: str) -> Match | None:
    """Return the entry for the state of a job."""
    return next((Match(entry, "") for entry in entries if state in entry.states), None)


def by_signal(entries: Iterable[Entry], ended: Ended) -> Match | None:
    """Return the entry for the signal that ended a rank."""
    number = signal_of(ended)
    return next((Match(entry, "") for entry in entries if number in entry.signals), None)


def by_text(entries: Sequence[Entry], ended: Ended) -> Match | None:
    """Return the first entry with a sign in what ended a rank; one that only follows another failure comes last."""
    everything = lines_of(ended.text)
    last = what_ended(everything, signal_of(ended))
    found = (search(entry, everything if entry.native else last) for entry in entries if fits(entry, ended))
    return first(found)


def by_launcher(entries: Iterable[Entry], text: str) -> Match | None:
    """Return the first entry with a sign in what a launcher wrote."""
    lines = lines_of(text)
    return first(search(entry, lines) for entry in entries if entry.launcher)


def first(found: Iterable[Match | None]) -> Match | None:
    """Return the first match, of those that follow another failure only if there is no other."""
    matches = [match for match in found if match]
    return min(matches, key=lambda match: match.entry.follows, default=None)


def fits(entry: Entry, ended: Ended) -> bool:
    """Whether a rank with this exit status can have that cause."""
    return not entry.statuses or ended.rc in entry.statuses


def search(entry: Entry, lines: Sequence[str]) -> Match | None:
    """Return the last line with a sign of an entry, if there is one."""
    for line in reversed(lines):
        if any(all(part in line for part in sign) for sign in entry.signs):
            return Match(entry, line.strip())
    return None


def signal_of(ended: Ended) -> int:
    """Return the signal that ended a rank, or the program below its shell script; 0 if none did."""
    return ended.signal or (ended.rc - 128 if ended.rc and 128 < ended.rc <= 128 + 64 else 0)


def lines_of(text: str) -> list[str]:
    """Return the last lines of a text, without what PyTorch puts before them."""
    return [PREFIX.sub("", line[:LINE], count=1) for line in text[-LOOKED_AT:].splitlines()[-LINES:]]


def what_ended(lines: Sequence[str], signal: int) -> Sequence[str]:
    """Return the lines that tell what ended a program."""
    if signal:
        start = next((place for place in range(len(lines)) if lines[place].startswith(CPP)), len(lines))
        return lines[start:] if signal == ABORT else ()
    start = traceback_start(lines)
    if start < 0:
        return lines[-LAST_LINES:]
    return exceptions(lines[start:]) if len(lines) - traceback_end(lines) <= AFTER_LINES else lines[-LAST_LINES:]


def exceptions(lines: Sequence[str]) -> list[str]:
    """Return what tracebacks say, without the frames of each and their code, and without warnings."""
    found, in_frames = [], False
    for line in lines:
        in_frames = TRACEBACK in line or (in_frames and line.startswith(" "))
        if not in_frames and not WARNING.match(line):
            found.append(line)
    return found


def traceback_start(lines: Sequence[str]) -> int:
    """Return where the last traceback begins, with those that it came of; -1 if there is none."""
    start = -1
    for place in heads(lines):
        if start >= 0 and not any(line.startswith(CAME_OF) for line in lines[start - 2 : start]):
            break
        start = place
    return start


def traceback_end(lines: Sequence[str]) -> int:
    """Return which line has the exception of the last traceback."""
    place = next(heads(lines)) + 1
    while place < len(lines) and lines[place].startswith(" "):
        place += 1
    return place


def heads(lines: Sequence[str]) -> Iterator[int]:
    """Yield where tracebacks begin, the last first."""
    return (place for place in reversed(range(len(lines))) if lines[place].startswith(TRACEBACK))
