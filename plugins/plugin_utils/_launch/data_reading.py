# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of a data set on this machine, and their digests. A file that did not change is not read a second time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import open_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.data_manifest import (
    MOST_FILES,
    PIECE,
    Manifest,
    Row,
    pieces_in,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.file_store import DIGEST, write_all
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.job_files import parts_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.frames import MOST_PIECES
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .progress import Progress, Say, silent

SHELF = Path(".torchfleet", "data-lists")  # below the user's home
KEPT_LISTS = 20
SETTLED_NS = 2 * 10**9  # a file that was written since may be written again without another time (NFS, FAT)
BLOCK = 1 << 20
PACK = "pack small files into archives (tar, Parquet), which ranks read faster as well"


class State(NamedTuple):
    """By what a change of a file is noticed. Times in nanoseconds since the epoch."""

    size: int
    mtime: int
    ctime: int
    inode: int


@dataclass
class Found:
    """What lies in a data set: the state of each file by its path; what is left out, though it is there."""

    root: str
    files: dict[str, State] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def state_of(found: os.stat_result) -> State:
    return State(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def find_files(path: str) -> Found:
    """Return what a folder or a file has. InputError for what cannot be a data set."""
    try:
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode):
            folder, name = os.path.split(path)
            return checked(Found(folder, {name: state_of(found)}), path)
        if not stat.S_ISDIR(found.st_mode):
            raise InputError("data", path, "it is neither a folder nor a file: give the one that has the data")
        if os.path.realpath(path) in (os.path.realpath(Path.home()), "/"):
            raise InputError("data", path, "all of it would be sent to the nodes: give the folder of the data set")
        whole = Found(path)
        for name, state in walk(whole):
            whole.files[name] = state
            if len(whole.files) > MOST_FILES:
                raise InputError("data", path, f"it has more than {MOST_FILES:,} files: {PACK}")
    except OSError as error:
        raise unreadable(path, error) from None
    return checked(whole, path)


def unreadable(path: str, error: OSError) -> InputError:
    """Return the error for a data set that is not there, or of which something cannot be read."""
    what = error.strerror or str(error)
    where = f"{what}: {error.filename}" if error.filename not in (None, path) else what
    return InputError("data", path, f"cannot be read ({where}): give a folder or a file on this machine")


def checked(found: Found, path: str) -> Found:
    """Return what was found. InputError if it is nothing, too much, or has names that no node takes."""
    if not found.files or not any(state.size for state in found.files.values()):
        raise InputError("data", path, "there is nothing in it: give a folder or a file with data")
    if sum(pieces_in(state.size) for state in found.files.values()) > MOST_PIECES:
        raise InputError("data", path, f"it is larger than {MOST_PIECES * PIECE >> 40} TiB: send it in several folders")
    for name in found.files:
        try:
            parts_of(name)
        except ValueError as error:
            raise InputError("data", path, str(error)) from None
    return found


def walk(found: Found) -> Iterator[tuple[str, State]]:
    """Yield path and state of each file, those that links inside the folder lead to as well. OSError.

    Left out, as of a script's folder: links that lead out or nowhere, links to directories, what is neither file nor
    directory, and directories without a file.
    """
    root, waiting = os.path.realpath(found.root), [""]
    while waiting:
        above = waiting.pop()
        with os.scandir(os.path.join(found.root, above)) as entries:
            rows = list(entries)
        if not rows and above:
            found.left_out.append(above.rstrip("/"))
        for entry in rows:
            name = above + entry.name
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{name}/")
            elif entry.is_file(follow_symlinks=False):
                yield name, state_of(entry.stat(follow_symlinks=False))
            elif entry.is_symlink() and entry.is_file() and os.path.realpath(entry.path).startswith(f"{root}/"):
                yield name, state_of(os.stat(entry.path))
            else:
                found.left_out.append(name)


def read_files(found: Found, path: str, say: Say = silent, shelf: Path | None = None) -> Manifest:
    """Return the list of a data set, with the digests of its pieces. InputError for one that changes meanwhile.

    `say` shows how far it is. `shelf`: where the digests are kept; it is in the user's home unless it is given.
    """
    shelf = shelf or Path.home() / SHELF
    place = shelf / f"{hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]}.json"
    known = read_known(place)
    kept, rows, now = dict[str, list[object]](), list[Row](), time.time_ns()
    old = {name: known[name][1] for name, state in found.files.items() if name in known and known[name][0] == state}
    unread = sum(state.size for name, state in found.files.items() if name not in old)
    progress = Progress(f"data {path}", "read", unread, say)
    try:
        for name, state in sorted(found.files.items()):
            digests = old[name] if name in old else digests_of(found, name, path, progress)
            rows.append(Row(name, state.size, digests))
            if max(state.mtime, state.ctime) < now - SETTLED_NS:
                kept[name] = [*state, digests]
    except OSError as error:
        raise unreadable(path, error) from None
    finally:
        keep_known(place, kept, known)
    return Manifest(rows, single=os.path.join(found.root, rows[0].path) == path)


def digests_of(found: Found, name: str, path: str, progress: Progress) -> list[str]:
    """Return the digests of the pieces of a file. OSError, InputError if it changes meanwhile."""
    digests = []
    with open(os.open(os.path.join(found.root, name), os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
        for offset in range(0, found.files[name].size, PIECE):
            seen = hashlib.sha256()
            for block in piece_of(file.fileno(), offset, min(PIECE, found.files[name].size - offset)):
                seen.update(block)
                progress.add(len(block))
            digests.append(seen.hexdigest())
        if state_of(os.fstat(file.fileno())) != found.files[name]:
            raise changed(path, name)
    return digests


def piece_of(file: int, offset: int, size: int) -> Iterator[bytes]:
    """Yield some bytes of a file in blocks, as far as it goes. OSError."""
    while size:
        block = os.pread(file, min(BLOCK, size), offset)
        if not block:
            return
        yield block
        offset, size = offset + len(block), size - len(block)


def changed(path: str, name: str) -> InputError:
    """Return the error for a data set that does not stay as it is."""
    return InputError("data", path, f"{name!r} changed while it was read: wait until nobody writes there, start again")


# --- what is known of a data set from before --------------------------------------------------------------------------


def read_known(place: Path) -> dict[str, tuple[State, list[str]]]:
    """Return state and digests of the files of a data set as they were read last; nothing if that is not known."""
    try:
        with open(open_file(str(place)), "rb") as file:
            rows = json.loads(file.read())
        return {str(name): known_row(row) for name, row in rows.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def known_row(row: list[object]) -> tuple[State, list[str]]:
    """Return one row of that. ValueError, TypeError."""
    size, mtime, ctime, inode, digests = row
    numbers = [number for number in (size, mtime, ctime, inode) if isinstance(number, int)]
    if len(numbers) != 4 or not isinstance(digests, list) or not all(DIGEST.match(one) for one in digests):
        raise ValueError("no row of ours")
    state = State(*numbers)
    if len(digests) != pieces_in(state.size):
        raise ValueError("no row of ours")
    return state, digests


def keep_known(place: Path, kept: dict[str, list[object]], known: dict[str, tuple[State, list[str]]]) -> None:
    """Keep what is known now, readable by its owner alone. A home that takes no file is no reason to fail."""
    if kept == {name: [*state, digests] for name, (state, digests) in known.items()}:
        return
    part = place.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            write_all(file, json.dumps(kept).encode())
        finally:
            os.close(file)
        os.replace(part, place)
        lists = sorted(place.parent.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in lists[KEPT_LISTS:]:
            old.unlink()
