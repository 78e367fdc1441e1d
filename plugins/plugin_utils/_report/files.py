# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files of a run directory, read with care: some of them came from nodes. Bounded, typed, and no link is followed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import open_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import printable
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.frames import refuse_constant

JSON_BYTES = 16 << 20  # of one file: a plan has some 8 KB for each node
VALUES_MOST = 500_000  # of one file: a line of empty lists takes thirty times its length in memory
TEXT_MOST = 400  # letters of one text
TAKEN_BYTES, TAKEN_PIECES = 4 << 20, 32  # of a file that is sampled: some 40,000 rows, in half a second


class Unreadable(Exception):
    """A file that is not what it must be; the message says why."""


class Absent(Unreadable):
    """A file that is not there."""


class Fields:
    """An object of JSON, whatever it is: each look at a field says which type it wants and returns that, or nothing."""

    def __init__(self, value: object) -> None:
        self.value: dict[str, object] = value if isinstance(value, dict) else {}

    def text(self, name: str, most: int = TEXT_MOST) -> str:
        """Return a printable text of at most so many letters; empty if there is none."""
        return text_of(self.value.get(name), most)

    def number(self, name: str, least: float = -math.inf) -> float | None:
        """Return a finite number that is not less, or None."""
        found = finite(self.value.get(name))
        return found if found is not None and found >= least else None

    def whole(self, name: str) -> int | None:
        """Return a whole number of at most 18 digits, or None."""
        found = self.value.get(name)
        return found if type(found) is int and abs(found) < 10**18 else None

    def of(self, name: str) -> Fields:
        """Return the object in a field, empty if there is none."""
        return Fields(self.value.get(name))

    def rows(self, name: str, most: int = 10_000) -> list[Fields]:
        """Return the objects of the list in a field."""
        return [Fields(row) for row in self.items(name, most) if isinstance(row, dict)]

    def items(self, name: str, most: int = 10_000) -> list[object]:
        """Return the list in a field, its first so many elements."""
        found = self.value.get(name)
        return found[:most] if isinstance(found, list) else []

    def words(self, name: str, most: int = 1000) -> tuple[str, ...]:
        """Return the texts of the list in a field."""
        return tuple(text_of(item) for item in self.items(name, most) if isinstance(item, str))


def text_of(value: object, most: int = TEXT_MOST) -> str:
    """Return a value as a printable text of at most so many letters; empty if it is no text."""
    if not isinstance(value, str):
        return ""
    return printable(value[:most]) + ("…" if len(value) > most else "")


def finite(value: object) -> float | None:
    """Return a number that one can count with, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:  # a whole number of thousands of digits
        return None
    return found if math.isfinite(found) else None


def read_json(path: Path, most: int = JSON_BYTES) -> Fields:
    """Return the object in a file of at most so many bytes. Unreadable with the reason if there is none."""
    try:
        with open(open_file(str(path)), "rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        raise Absent("not there") from None
    except OSError as error:
        raise Unreadable(error.strerror or "not readable") from None
    if len(data) > most or sum(map(data.count, (b",", b"[", b"{"))) > VALUES_MOST:
        raise Unreadable("too large to be read")
    try:
        found = json.loads(data, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise Unreadable("no JSON") from None
    if not isinstance(found, dict):
        raise Unreadable("no object of JSON")
    return Fields(found)


def read_lines(path: Path, most: int) -> tuple[str, ...]:
    """Return the first lines of a text, made printable; nothing if it cannot be read."""
    try:
        with open(open_file(str(path)), "rb") as file:
            data = file.read(most * TEXT_MOST)
    except OSError:
        return ()
    return tuple(text_of(line) for line in data.decode(errors="replace").splitlines()[:most])


def read_end(path: Path, most: int) -> str:
    """Return the last so many bytes of a text, whole lines of it; nothing if it cannot be read."""
    try:
        with open(open_file(str(path)), "rb") as file:
            left_out = max(0, os.fstat(file.fileno()).st_size - most)
            data = os.pread(file.fileno(), most, left_out)
    except OSError:
        return ""
    return (data.partition(b"\n")[2] if left_out else data).decode(errors="replace")


def sampled_rows(path: Path) -> tuple[Iterator[Fields], bool]:
    """Return the rows of a file of JSON lines, and whether they are only some: of a large file, evenly spread pieces.

    Unreadable if there is no such file.
    """
    try:
        with open(open_file(str(path)), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            whole = size <= TAKEN_BYTES
            pieces = (
                [file.read(TAKEN_BYTES)] if whole else [piece_at(file.fileno(), size, n) for n in range(TAKEN_PIECES)]
            )
    except FileNotFoundError:
        raise Absent("not there") from None
    except OSError as error:
        raise Unreadable(error.strerror or "not readable") from None
    return (row for piece in pieces for row in rows_in(piece)), not whole


def piece_at(descriptor: int, size: int, number: int) -> bytes:
    """Return the whole lines of one of the pieces of a large file; the first and the last hold its ends. OSError."""
    length = TAKEN_BYTES // TAKEN_PIECES
    start = (size - length) * number // (TAKEN_PIECES - 1)
    data = os.pread(descriptor, length, start)
    return data if start == 0 else data.partition(b"\n")[2]


def rows_in(piece: bytes) -> Iterator[Fields]:
    """Yield the objects of whole lines; what is none is left out."""
    for line in piece.split(b"\n"):
        try:
            found = json.loads(line, parse_constant=refuse_constant) if line else None
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield Fields(found)
