# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a data set is: its files with their sizes and the SHA-256 of each piece. Its name is the digest of that list.

A piece is what is sent, checked and sent again if it did not arrive: a whole file, or PIECE bytes of a large one.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import re
from typing import Iterable, NamedTuple, Sequence, Tuple

from ..wire.frames import MOST_PIECES
from .file_store import DIGEST
from .job_files import parts_of

PIECE = 64 << 20  # bytes
MOST_FILES = 200_000  # so the list stays below some 50 MB, and what a node needs to read it below 200
MOST_BYTES = 128 << 20  # of the list itself
NAME_LETTERS = 32  # of the digest, in paths
NAME = re.compile(r"[0-9a-f]{32}\Z")
Range = Tuple[int, int]  # first and last number of some pieces


class Row(NamedTuple):
    """One file: path below the root, bytes, and the digests of its pieces (an empty file has none)."""

    path: str
    size: int
    digests: list[str]


class Piece(NamedTuple):
    """Where a piece lies: the number of its file, and bytes in that."""

    file: int
    offset: int
    size: int
    digest: str


class Manifest:
    """The files of a data set in the order of their paths. `single`: it is one file, not a folder."""

    def __init__(self, rows: Sequence[Row], single: bool = False) -> None:
        self.rows, self.single = rows, single
        self.bytes = sum(row.size for row in rows)
        self.firsts: list[int] = []  # the number of the first piece of each file
        self.pieces = 0
        for row in rows:
            self.firsts.append(self.pieces)
            self.pieces += len(row.digests)

    @property
    def text(self) -> bytes:
        """Return the list as it is sent and kept."""
        return json.dumps([self.single, self.rows], separators=(",", ":")).encode()

    def pieces_of(self, file: int) -> range:
        """Return the numbers of the pieces of a file."""
        return range(self.firsts[file], self.firsts[file] + len(self.rows[file].digests))

    def piece(self, number: int) -> Piece:
        """Return a piece by its number."""
        file = bisect.bisect_right(self.firsts, number) - 1
        while not self.rows[file].digests:  # empty files share the number of the next piece
            file -= 1
        offset = (number - self.firsts[file]) * PIECE
        row = self.rows[file]
        return Piece(file, offset, min(PIECE, row.size - offset), row.digests[number - self.firsts[file]])

    def folders(self) -> list[str]:
        """Return the directories below the root, each after the one that it lies in."""
        found: set[str] = set()
        for row in self.rows:
            above = row.path.rpartition("/")[0]
            while above and above not in found:
                found.add(above)
                above = above.rpartition("/")[0]
        return sorted(found)


def name_of(text: bytes) -> str:
    """Return the name of the data set that a list describes."""
    return hashlib.sha256(text).hexdigest()[:NAME_LETTERS]


def pieces_in(size: int) -> int:
    """Return how many pieces a file of so many bytes has."""
    return -(-size // PIECE)


def read_manifest(text: bytes) -> Manifest:
    """Return what a list says. ValueError for the first thing in it that no honest sender would send."""
    try:
        found = json.loads(text)
    except RecursionError:
        found = None
    if not isinstance(found, list) or len(found) != 2 or not isinstance(found[0], bool):
        raise ValueError("no list of a data set")
    rows = found[1]
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST_FILES or (found[0] and len(rows) != 1):
        raise ValueError(f"a list of 1 to {MOST_FILES} files was expected")
    manifest = Manifest([row_of(row) for row in rows], found[0])
    paths = [row.path for row in manifest.rows]
    if manifest.pieces > MOST_PIECES or paths != sorted(set(paths)):
        raise ValueError(f"at most {MOST_PIECES} pieces of files in order were expected")
    both = set(paths).intersection(manifest.folders())
    if both or (manifest.single and "/" in paths[0]):
        raise ValueError(f"{min(both or paths)!r} is a file and a directory")
    return manifest


def known_manifest(text: bytes) -> Manifest:
    """Return what a list says that was checked before: its name, which is its digest, is the one that was asked for."""
    single, rows = json.loads(text)
    return Manifest([Row(*row) for row in rows], single)


def row_of(row: object) -> Row:
    """Return one row of a list. ValueError."""
    if not isinstance(row, list) or len(row) != 3:
        raise ValueError("path, size and digests of each file were expected")
    path, size, digests = row
    parts_of(path)
    if type(size) is not int or not 0 <= size < 1 << 60 or not isinstance(digests, list):
        raise ValueError(f"{path!r} has no size")
    if len(digests) != pieces_in(size) or not all(isinstance(one, str) and DIGEST.match(one) for one in digests):
        raise ValueError(f"{path!r} has no digests of its pieces")
    return Row(path, size, digests)


def ranges_of(numbers: Iterable[int]) -> list[Range]:
    """Return whole numbers as ranges, in order."""
    found: list[Range] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def numbers_in(ranges: Sequence[Sequence[int]], most: int) -> set[int]:
    """Return the numbers in ranges. ValueError unless they are in order and below `most`."""
    found: set[int] = set()
    least = 0
    for first, last in ranges:
        if not least <= first <= last < most:
            raise ValueError("pieces were asked for that are not there")
        found.update(range(first, last + 1))
        least = last + 1
    return found
