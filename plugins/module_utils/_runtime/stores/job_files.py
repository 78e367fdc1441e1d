# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of one job on one node: `<home>/jobs/<job id>/src`, made of what was shipped before its ranks start.

Each job has a tree of its own, of copies. Hard links into the store would be cheaper, but a program that writes into
one of its files in place (a config, a cache, an index) would write into the store and into every other job's tree.
Where the file system can share blocks until they are written (Btrfs, XFS), a copy costs nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from typing import Dict, Iterator, Tuple, Union

from ..basics.job_directory import JobDir, remove
from .file_store import DIGEST, Store, blocks

TREE = "src"  # in the job directory
LISTING = "listing.json"  # in the job directory too: path, sha256 and whether executable of each shipped file
MOST_FILES, MOST_BYTES = 10_000, 256 << 20
NAME_BYTES, PATH_BYTES, DEPTH = 255, 2000, 100  # the first is the file systems', the others are ample
# By name: the sha256 and whether executable of a file, or the same of a directory.
Tree = Dict[str, Union[Tuple[str, bool], "Tree"]]


def tree_of(listing: object) -> Tree:
    """Return a listing as a tree. ValueError for the first row that no honest sender would send."""
    if not isinstance(listing, list) or len(listing) > MOST_FILES:
        raise ValueError(f"a list of at most {MOST_FILES} files was expected")
    root: Tree = {}
    for row in listing:
        if not isinstance(row, (list, tuple)) or len(row) != 3:
            raise ValueError("path, digest and mode of each file were expected")
        path, digest, executable = row
        *folders, name = parts_of(path)
        if not isinstance(digest, str) or not DIGEST.match(digest) or not isinstance(executable, bool):
            raise ValueError(f"{path!r} has no digest and mode")
        place = root
        for folder in folders:
            below = place.setdefault(folder, {})
            if not isinstance(below, dict):
                raise ValueError(f"{path!r}: {folder!r} is a file and a directory")
            place = below
        if name in place:
            raise ValueError(f"{path!r} is there twice")
        place[name] = (digest, executable)
    return root


def parts_of(path: object) -> list[str]:
    """Return the names that a path is made of. ValueError for one that leads out of the tree, or is too long."""
    text = path if isinstance(path, str) else ""
    parts = text.split("/")
    odd = any(part in ("", ".", "..") or "\0" in part or len(os.fsencode(part)) > NAME_BYTES for part in parts)
    if odd or len(parts) > DEPTH or len(os.fsencode(text)) > PATH_BYTES:
        raise ValueError(f"{str(path)[:100]!r} is no path below a directory")
    return parts


def make_tree(job: JobDir, listing: object, store: Store) -> None:
    """Make the tree of a job. OSError; files of the store that are damaged are gone then, to be sent again."""
    root = job.at(TREE)
    os.mkdir(root, 0o700)
    damaged: list[str] = []
    fill(root, None, tree_of(listing), store, damaged)
    if damaged:
        raise OSError(f"{damaged[0]} was damaged in {store.root} and is taken away there: start the job again")
    job.write(LISTING, listing)


def fill(name: str, above: int | None, tree: Tree, store: Store, damaged: list[str]) -> None:
    """Put files into a directory that was made just now. No link is followed, nothing that is there is written."""
    here = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
    try:
        for entry, content in tree.items():
            if isinstance(content, dict):
                os.mkdir(entry, 0o700, dir_fd=here)
                fill(entry, here, content, store, damaged)
            elif not put(entry, here, content, store):
                damaged.append(entry)
    finally:
        os.close(here)


def put(name: str, above: int, content: tuple[str, bool], store: Store) -> bool:
    """Copy one file out of the store; return whether it was whole there."""
    digest, executable = content
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=above)
    try:
        os.fchmod(file, 0o700 if executable else 0o600)
        return store.copy(digest, file)
    finally:
        os.close(file)


def outputs(job: JobDir) -> tuple[int, int]:
    """Return how many files in the tree of a job are not as they were shipped, and how many bytes they have.

    Links count, and what cannot be read; Python's bytecode, sockets and FIFOs do not.
    """
    root = job.at(TREE)
    if os.path.islink(root):
        return 1, 0
    listing = job.read(LISTING)
    rows = [row for row in listing if isinstance(row, list) and len(row) == 3] if isinstance(listing, list) else []
    shipped = {str(row[0]): str(row[1]) for row in rows}
    sizes = list(written(root, shipped))
    return len(sizes), sum(sizes)


def written(root: str, shipped: dict[str, str]) -> Iterator[int]:
    """Yield the size of each file below a directory that differs from what was shipped there, by path and digest."""
    unreadable: list[OSError] = []
    for folder, _folders, names in walk(root, unreadable):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.basename(folder) == "__pycache__" and name.endswith(".pyc"):
                continue
            try:
                found = os.lstat(path)
            except OSError as error:
                unreadable.append(error)
                continue
            if stat.S_ISLNK(found.st_mode):
                yield 0
            elif stat.S_ISREG(found.st_mode) and not is_as_shipped(
                path, found.st_size, shipped.get(os.path.relpath(path, root))
            ):
                yield found.st_size
    for problem in unreadable:
        if not isinstance(problem, FileNotFoundError):  # as if nothing was shipped
            yield 0


def walk(root: str, unreadable: list[OSError]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each directory, its directories and what else it has, links among that.

    os.walk calls itself before Python 3.12: a program that makes a thousand directories in each other would end us.
    """
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        folders: list[str] = []
        names: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    (folders if entry.is_dir(follow_symlinks=False) else names).append(entry.name)
        except OSError as error:
            unreadable.append(error)
            continue
        yield folder, folders, names
        waiting += [os.path.join(folder, name) for name in folders]


def is_as_shipped(path: str, size: int, digest: str | None) -> bool:
    """Whether a file has the content that was shipped; False if that cannot be told."""
    if digest is None or size > MOST_BYTES:
        return False
    try:
        with open(path, "rb") as file:
            seen = hashlib.sha256()
            for block in blocks(file.fileno()):
                seen.update(block)
    except OSError:
        return False
    return seen.hexdigest() == digest


def remove_tree(job: JobDir) -> None:
    """Take away the tree of a job, directories that its program closed included."""
    root = job.at(TREE)
    if os.path.islink(root) or not os.path.isdir(root):
        return  # the job directory goes with it
    os.chmod(root, 0o700)
    for folder, folders, _names in walk(root, []):
        for name in folders:
            with contextlib.suppress(OSError):  # its path may be longer than the system takes
                os.chmod(os.path.join(folder, name), 0o700)
    remove(root)
