# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A data set on its way to this node: which pieces are missing, each checked as it is written, and the end of it.

What was written stays when it is interrupted, so the next start asks for the rest alone. Nodes that share a home agree
by a file which of them writes: the first to make it, with the token of this start in its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from typing import Iterator

from ..basics.job_directory import remove, unique
from ..stores.data_manifest import Manifest, Piece, name_of, read_manifest
from ..stores.data_store import (
    CLAIM,
    FILES,
    JOURNAL,
    MANIFEST,
    SEALED,
    Journal,
    Mark,
    changed_files,
    is_whole,
    lock_of,
    make_removable,
    mark_of,
    marks_of_folders,
    place_of,
    read_journal,
    remove_old,
)
from ..stores.file_store import BLOCK, write_all
from ..types.file_messages import File

SHARED_SECONDS = 60.0  # for what another node wrote to be seen through a network's file system
LOOK_SECONDS = 0.2


class Laying:
    """The pieces of one data set for this node. `reason`: why it cannot be used, or an empty text."""

    def __init__(self, home: str, name: str, text: bytes, token: str, keep: int) -> None:
        """`text`: the list of files; `token`: of this start; `keep`: how many data sets stay here."""
        self.home, self.name, self.keep = home, name, keep
        self.place = place_of(home, name)
        self.reason, self.shared, self.sealed = "", False, False  # sealed: all was there
        self.manifest = Manifest(())
        self.wanted: set[int] = set()  # pieces that did not arrive yet
        self.lock = self.file = self.root = -1
        self.number = self.written = 0  # of the file that is open; of the piece that comes, -1 for none
        self.piece = -1
        self.seen = hashlib.sha256()
        try:
            self.begin(text, token)
        except (OSError, ValueError) as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Keep the first reason."""
        self.reason = self.reason or str(getattr(error, "strerror", None) or error)

    def begin(self, text: bytes, token: str) -> None:
        """Find out what is missing. OSError, ValueError."""
        if name_of(text) != self.name:
            raise ValueError("the list of files was damaged on the way: start again")
        self.manifest = read_manifest(text)
        for folder in (os.path.dirname(self.place), self.place):  # the mode is that of the last one alone
            os.makedirs(folder, mode=0o700, exist_ok=True)
        if not self.claims(token):
            self.shared = True
            return
        lock = lock_of(self.home, self.name)
        if lock is None:
            raise ValueError(f"another start is laying the same data set, {self.place}: try again when it is done")
        self.lock = lock
        self.drop_claims(token)
        self.sealed = is_whole(self.place)
        if not self.sealed:
            self.tidy()
        self.root = os.open(os.path.join(self.place, FILES), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        if not self.sealed:
            self.find_missing(text)

    def find_missing(self, text: bytes) -> None:
        """Write the list, start a journal of the files that are there unchanged, and check the others. OSError."""
        write_whole(os.path.join(self.place, MANIFEST), text)
        journal = read_journal(self.place)
        changed = changed_files(self.place, self.manifest, journal)
        self.start_journal(journal, changed)
        for number in changed:
            self.look_at(number)

    def claims(self, token: str) -> bool:
        """Whether this node is the one that writes. OSError."""
        try:
            os.close(os.open(os.path.join(self.place, CLAIM + token), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def drop_claims(self, token: str) -> None:
        """Take away the claims of starts that are over. OSError."""
        for left in os.listdir(self.place):
            if left.startswith(CLAIM) and left != CLAIM + token:
                os.unlink(os.path.join(self.place, left))

    def tidy(self) -> None:
        """Make the directories, open them for writing, and take away what does not belong there. OSError."""
        root = os.path.join(self.place, FILES)
        folders = ["", *self.manifest.folders()]
        known = {*folders, *(row.path for row in self.manifest.rows)}
        for path in folders:
            here = os.path.join(root, path) if path else root
            if os.path.islink(here) or not os.path.isdir(here):
                clear_away(here)
                os.mkdir(here, 0o700)
            os.chmod(here, 0o700)
            above = f"{path}/" if path else ""
            with os.scandir(here) as entries:
                strange = [entry.path for entry in entries if above + entry.name not in known]
            for entry in strange:
                clear_away(entry)

    def start_journal(self, journal: Journal, changed: list[int]) -> None:
        """Begin a journal with the files that are whole. OSError."""
        gone = set(changed)
        rows = [row_of(number, mark) for number, mark in sorted(journal.files.items()) if number not in gone]
        write_whole(os.path.join(self.place, JOURNAL), "".join(rows).encode())
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
        self.journal = os.fdopen(os.open(os.path.join(self.place, JOURNAL), flags), "w")  # closed in close()

    def look_at(self, number: int) -> None:
        """Note which pieces of a file are missing. One that is whole is noted as that. OSError."""
        pieces = self.manifest.pieces_of(number)
        missing = set(pieces)
        with contextlib.suppress(OSError), self.opened(number, os.O_RDONLY) as file:
            found = os.fstat(file)
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                missing = {piece for piece in pieces if not is_piece(file, self.manifest.piece(piece))}
        if missing == set(pieces) or not pieces:
            self.drop(number)
        self.wanted |= missing
        if not missing:
            with self.opened(number, os.O_WRONLY | os.O_CREAT) as file:
                self.close_file(number, file)

    def drop(self, number: int) -> None:
        """Take away what lies in the place of a file. OSError."""
        clear_away(os.path.join(self.place, FILES, self.manifest.rows[number].path))

    @contextlib.contextmanager
    def opened(self, number: int, flags: int) -> Iterator[int]:
        """Open a file of the set, through no link. OSError."""
        file = self.open_file(number, flags)
        try:
            yield file
        finally:
            os.close(file)

    def open_file(self, number: int, flags: int) -> int:
        """Return a descriptor of a file of the set, reached through no link. OSError."""
        *folders, name = self.manifest.rows[number].path.split("/")
        here = os.dup(self.root)
        try:
            for folder in folders:
                below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                os.close(here)
                here = below
            if flags & os.O_WRONLY:
                with contextlib.suppress(FileNotFoundError):  # one that was whole once is closed to writing
                    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here)
                    os.fchmod(file, 0o600)
                    os.close(file)
            return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=here)
        finally:
            os.close(here)

    # --- what arrives -------------------------------------------------------------------------------------------------

    def take(self, frame: File) -> None:
        """Take one block of a piece. An error is kept in `reason` until finish()."""
        if self.reason or self.shared:
            return
        try:
            number = int(frame["name"])
            if frame["first"]:
                self.start_piece(number)
            if number != self.piece:
                raise ValueError("a piece came that was not requested")
            self.write(self.manifest.piece(number), frame["data"])
        except (OSError, ValueError) as error:
            self.fail(error)

    def start_piece(self, number: int) -> None:
        """Go to where a piece begins. ValueError, OSError."""
        if number not in self.wanted:
            raise ValueError("a piece came that was not requested")
        piece = self.manifest.piece(number)
        if self.file < 0 or self.number != piece.file:
            self.leave_file()
            self.file, self.number = self.open_file(piece.file, os.O_WRONLY | os.O_CREAT), piece.file
        os.lseek(self.file, piece.offset, os.SEEK_SET)
        self.piece, self.written, self.seen = number, 0, hashlib.sha256()

    def write(self, piece: Piece, data: bytes) -> None:
        """Write a block, and check the piece if it is the last one. ValueError, OSError."""
        self.written += len(data)
        if self.written > piece.size:
            raise ValueError("more came than was announced")
        self.seen.update(data)
        write_all(self.file, data)
        if self.written < piece.size:
            return
        if self.seen.hexdigest() != piece.digest:
            path = self.manifest.rows[piece.file].path
            raise ValueError(f"{path!r} changed while it was sent, or was damaged on the way: start again")
        self.wanted.discard(self.piece)
        self.piece = -1
        if not self.wanted.intersection(self.manifest.pieces_of(piece.file)):
            self.close_file(piece.file, self.file)

    def close_file(self, number: int, file: int) -> None:
        """Close a file that is whole to writing, and note what it is. OSError."""
        os.ftruncate(file, self.manifest.rows[number].size)
        os.fchmod(file, 0o444)
        self.journal.write(row_of(number, mark_of(os.fstat(file))))

    def leave_file(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    # --- for other nodes ----------------------------------------------------------------------------------------------

    def has(self, number: int) -> bool:
        """Whether this node has a piece, and so can send it to others."""
        return not self.reason and not self.shared and number not in self.wanted

    def read(self, number: int) -> Iterator[bytes]:
        """Yield a piece in blocks. OSError."""
        piece = self.manifest.piece(number)
        with self.opened(piece.file, os.O_RDONLY) as file:
            yield from blocks_of(file, piece)

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> str:
        """Return why the data set cannot be used on this node, or an empty text."""
        try:
            if not self.reason and self.shared:
                self.wait_for_other()
            elif not self.reason and self.wanted:
                path = self.manifest.rows[self.manifest.piece(min(self.wanted)).file].path
                self.reason = f"{path!r} did not arrive"
            elif not self.reason:
                self.leave_file()
                if not self.sealed:
                    self.seal()
                os.utime(self.place)
                remove_old(self.home, self.keep, self.name)
        except (OSError, ValueError) as error:
            self.fail(error)
        self.close()
        return self.reason

    def wait_for_other(self) -> None:
        """Wait until what another node wrote into the home that we share is seen here. ValueError."""
        deadline = time.monotonic() + SHARED_SECONDS
        while not is_whole(self.place):
            if time.monotonic() > deadline:
                shared = f"{self.place} is on a file system that nodes share"
                raise ValueError(f"{shared}; another node's copy was not whole after {SHARED_SECONDS:.0f} s")
            time.sleep(LOOK_SECONDS)

    def seal(self) -> None:
        """Close the directories to writing, and note that all is there. OSError."""
        root = os.path.join(self.place, FILES)
        for path in ["", *self.manifest.folders()]:
            os.chmod(os.path.join(root, path), SEALED)
        self.journal.write(json.dumps(marks_of_folders(self.place, self.manifest)) + "\n")
        self.journal.flush()
        os.fsync(self.journal.fileno())

    def close(self) -> None:
        """Close all files. Whole pieces stay, and the next start goes on from them."""
        self.leave_file()
        with contextlib.suppress(OSError, AttributeError):  # it may not be begun
            self.journal.close()
        for descriptor in (self.root, self.lock):
            if descriptor >= 0:
                os.close(descriptor)
        self.root = self.lock = -1


def row_of(number: int, mark: Mark) -> str:
    """Return a row of the journal."""
    return json.dumps([number, *mark]) + "\n"


def write_whole(path: str, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the whole new one. OSError."""
    part = f"{path}.{unique()}.tmp"
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        write_all(file, content)
    finally:
        os.close(file)
    os.replace(part, path)


def clear_away(path: str) -> None:
    """Take away a file, a link or a directory, if it is there. OSError."""
    if os.path.isdir(path) and not os.path.islink(path):
        make_removable(path)
        remove(path)
    elif os.path.lexists(path):
        os.unlink(path)


def blocks_of(file: int, piece: Piece) -> Iterator[bytes]:
    """Yield a piece of an open file in blocks, as far as it goes. OSError."""
    end, at = piece.offset + piece.size, piece.offset
    while at < end:
        block = os.pread(file, min(BLOCK, end - at), at)
        if not block:
            return
        yield block
        at += len(block)


def is_piece(file: int, piece: Piece) -> bool:
    """Whether a piece of an open file has its content. OSError."""
    seen = hashlib.sha256()
    for block in blocks_of(file, piece):
        seen.update(block)
    return seen.hexdigest() == piece.digest
