# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ranks wrote and `collect` asks for: found below their working directory when the job is over, and sent home.

Only regular files that the job wrote come home. No link is followed. A node that has more than it may send sends none:
half a checkpoint is useless.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import stat
import time
from typing import Collection, Iterable, Iterator, Tuple

from ..basics.job_directory import JobDir
from ..stores.earlier_attempts import first_staging
from ..stores.file_store import blocks
from ..stores.job_files import DEPTH, LISTING, PATH_BYTES, TREE, is_as_shipped
from ..types.forms import printable
from ..types.orders import Order
from ..types.records import Artifact, Artifacts
from .artifact_border import FOLDER, ArtifactChannel, Limits

PATTERNS_MOST, PATTERN_CHARACTERS = 100, 500
LOOKED_MOST = 1_000_000  # entries of directories
PREFIX = ("artifacts", "host")  # what a name begins with on its way
APART_SECONDS = 1.0  # between the two looks at each file of a job that runs
OPEN_MOST = 200  # files that are looked at twice: so many stay open in between
SLACK_SECONDS = 2.0  # file systems keep times that are coarser than those of the clock
NO_DIGEST = "0" * 64  # of a file that changed or could not be read to its end: it counts as damaged
TOO_MANY, TOO_LARGE, TOO_WIDE, NO_FOLDER = "too_many", "too_large", "too_wide", "no_folder"
REFUSALS = ("", TOO_MANY, TOO_LARGE, TOO_WIDE, NO_FOLDER)
LINK, SPECIAL, UNREADABLE, NAME = "link", "special", "unreadable", "name"
LEFT_OUT = (LINK, SPECIAL, UNREADABLE, NAME)
GONE = (errno.ENOENT, errno.ESTALE)  # since a file was found; ESTALE: on a file system of the network
State = Tuple[int, Tuple[str, ...]]  # number of a pattern, and what of it is not matched yet


class Refused(Exception):
    """The node sends nothing. The argument is one of REFUSALS."""


def pattern_parts(pattern: object) -> tuple[str, ...]:
    """Return the parts of a glob. ValueError for one that is absolute, leads up, or is too long."""
    if not isinstance(pattern, str) or not pattern or len(pattern) > PATTERN_CHARACTERS or "\0" in pattern:
        raise ValueError(f"give a glob of 1 to {PATTERN_CHARACTERS} characters")
    parts = tuple(part for part in pattern.split("/") if part not in ("", "."))
    if pattern.startswith("/") or ".." in parts or not parts:
        raise ValueError("it is relative to the program's working directory, and does not lead out of it")
    return (*parts, "*") if parts[-1] == "**" else parts


def patterns_of(order: Order) -> list[str]:
    """Return the globs of an order, whoever wrote it: at most PATTERNS_MOST that are such."""
    found = order.get("collect")
    patterns = []
    for pattern in found[:PATTERNS_MOST] if isinstance(found, list) else []:
        try:
            pattern_parts(pattern)
        except ValueError:
            continue
        patterns.append(pattern)
    return patterns


def closed(states: Iterable[State]) -> set[State]:
    """Return the states with those that a `**` which matches no directory leads to."""
    found = set(states)
    for number, parts in states:
        ahead = 0
        while parts[ahead : ahead + 1] == ("**",):
            ahead += 1
            found.add((number, parts[ahead:]))
    return found


def step(states: Iterable[State], name: str) -> set[State]:
    """Return what is left of the patterns after an entry of this name. As in a shell, `*` takes no hidden names."""
    found: set[State] = set()
    for number, parts in closed(states):
        hidden = name.startswith(".") and not parts[0].startswith(".")
        if parts[0] == "**" and not hidden:
            found.add((number, parts))
        elif parts[0] != "**" and not hidden and fnmatch.fnmatchcase(name, parts[0]):
            found.add((number, parts[1:]))
    return found


class Search:
    """One look through a directory for what patterns match. A directory that one matches is taken with all in it."""

    def __init__(self, patterns: Collection[str], excluded: Collection[str] = ()) -> None:
        """`excluded`: real paths of directories that are not looked into."""
        self.states = {(number, pattern_parts(pattern)) for number, pattern in enumerate(patterns)}
        self.excluded = excluded
        self.left_out: dict[str, int] = {}
        self.matched: set[int] = set()
        self.looked = 0

    def below(self, root: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield path and state of each regular file that matches. Refused, OSError."""
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield from self.walk(descriptor, root, "", self.states, set())
        finally:
            os.close(descriptor)

    def walk(
        self, folder: int, root: str, above: str, states: set[State], whole: set[int]
    ) -> Iterator[tuple[str, os.stat_result]]:
        """`whole`: the numbers of the patterns that match all in this directory."""
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
        for name in names:
            self.looked += 1
            if self.looked > LOOKED_MOST:
                raise Refused(TOO_WIDE)
            left = step(states, name)
            taken = whole | {number for number, parts in left if not parts}
            states_below = {state for state in left if state[1]}
            if name == "__pycache__" or not (taken or states_below):
                continue
            path = f"{above}{name}"
            found = self.state_of(name, folder)
            if found is None:
                continue
            if stat.S_ISDIR(found.st_mode):
                yield from self.enter(folder, name, root, path, states_below, taken)
            elif taken and self.is_fit(path, found):
                self.matched |= taken
                yield path, found

    def state_of(self, name: str, folder: int) -> os.stat_result | None:
        """Return the state of an entry, None for one that is gone (others may work here) or that cannot be read."""
        try:
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError:  # the directory was closed
            self.leave_out(UNREADABLE)
            return None

    def enter(
        self, folder: int, name: str, root: str, path: str, states: set[State], whole: set[int]
    ) -> Iterator[tuple[str, os.stat_result]]:
        if os.path.realpath(os.path.join(root, path)) in self.excluded:
            return
        if path.count("/") + 1 > DEPTH - len(PREFIX):  # no file in it fits, and walking has its own depth
            self.leave_out(NAME)
            return
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        except OSError:
            self.leave_out(UNREADABLE)
            return
        try:
            yield from self.walk(below, root, f"{path}/", states, whole)
        finally:
            os.close(below)

    def is_fit(self, path: str, found: os.stat_result) -> bool:
        """Whether a file that matches may be sent; if not, that is counted."""
        if stat.S_ISLNK(found.st_mode):
            return self.leave_out(LINK)
        if not stat.S_ISREG(found.st_mode):
            return self.leave_out(SPECIAL)
        if printable(path) != path or len(os.fsencode(path)) > PATH_BYTES // 2 or path.count("/") > DEPTH - len(PREFIX):
            return self.leave_out(NAME)
        return True

    def leave_out(self, code: str) -> bool:
        self.left_out[code] = self.left_out.get(code, 0) + 1
        return False


def written_files(job: JobDir, order: Order, search: Search, limits: Limits) -> list[str]:
    """Return the paths of the files that match and that the job wrote. Refused, OSError."""
    root = order["cwd"]
    shipped, since = shipped_to(job, root), 0.0
    if shipped is None:
        staging = first_staging(job)
        since = staging["started"] - SLACK_SECONDS if staging else 0.0
    elif os.path.islink(root):
        raise Refused(NO_FOLDER)
    paths, size = [], 0
    for path, found in search.below(root):
        if found.st_ctime < since or (
            shipped is not None and is_as_shipped(os.path.join(root, path), found.st_size, shipped.get(path))
        ):
            continue
        paths.append(path)
        size += found.st_size
        if len(paths) > limits.files:
            raise Refused(TOO_MANY)
        if size > limits.bytes:
            raise Refused(TOO_LARGE)
    return paths


def shipped_to(job: JobDir, root: str) -> dict[str, str] | None:
    """Return the digests of what was shipped into a job's own tree by path, None if the job has no tree there."""
    if root != job.at(TREE):
        return None
    listing = job.read(LISTING)
    rows = [row for row in listing if isinstance(row, list) and len(row) == 3] if isinstance(listing, list) else []
    return {str(row[0]): str(row[1]) for row in rows}


def send_artifacts(channel: ArtifactChannel, job: JobDir, order: Order, limits: Limits) -> None:
    """Send what the job wrote on this node and was asked for: each file, then what there is to say of them."""
    patterns = patterns_of(order)
    if not patterns or not order["ranks"] or not isinstance(order.get("cwd"), str):
        return
    excluded = {os.path.realpath(path) for path in (order["home"], os.path.dirname(order["run_dir"])) if path}
    excluded -= {os.path.realpath(order["cwd"])}
    search, refused = Search(patterns, excluded), ""
    paths: list[str] = []
    try:
        paths = written_files(job, order, search, limits)
    except Refused as error:
        refused = str(error)
    except OSError:
        refused = NO_FOLDER
    with Looks(0 if job.is_over() else OPEN_MOST) as looks:
        sent = [row for row in (send_one(channel, order, path, search, looks) for path in paths) if row]
        files = looks.again(sent)
    unmatched = [pattern for number, pattern in enumerate(patterns) if number not in search.matched and not refused]
    report: Artifacts = {"files": files, "left_out": search.left_out, "unmatched": unmatched, "refused": refused}
    channel.send({"kind": "artifacts", "host": order["host"], **report})


class Looks:
    """Two looks at each file that is sent of a job that runs, so far apart that one which is being written has changed.

    They stay open in between. Else a file that is renamed over one of them could have its inode, and look like it. Of
    several files none may be replaced or removed: those that were read before that belong to another state than the
    others, as half of the shards of a checkpoint would.
    """

    def __init__(self, most: int) -> None:
        """`most`: files that stay open; of the others a change is seen only while they are read. 0: the job is over."""
        self.most, self.began = most, time.monotonic()
        self.open: dict[str, tuple[int, os.stat_result]] = {}

    def __enter__(self) -> Looks:
        return self

    def __exit__(self, *_error: object) -> None:
        for descriptor, _before in self.open.values():
            os.close(descriptor)

    def leave(self, path: str, descriptor: int, before: os.stat_result | None) -> None:
        """Keep a file open that was read, or close it. `before`: None if it has no state."""
        if before is not None and len(self.open) < self.most:
            self.open[path] = descriptor, before
        else:
            os.close(descriptor)

    def again(self, rows: list[Artifact]) -> list[Artifact]:
        """Return the rows of the files, with NO_DIGEST for each that has changed since it was opened."""
        if self.open:
            time.sleep(max(0.0, self.began + APART_SECONDS - time.monotonic()))
        single = len(rows) == 1
        changed = {path for path, (file, before) in self.open.items() if is_replaced(before, file, single)}
        return [{**row, "sha256": NO_DIGEST} if row["path"] in changed else row for row in rows]


def send_one(channel: ArtifactChannel, order: Order, path: str, search: Search, looks: Looks) -> Artifact | None:
    """Send one file; return its path, size and digest as they were sent, or None if it cannot be read."""
    name, first, seen, size = f"{FOLDER}/{order['host']}/{path}", True, hashlib.sha256(), 0
    try:
        descriptor = open_below(order["cwd"], path)
    except OSError as error:
        return send_nothing(channel, name, path, search, error)
    before = None
    try:
        before = os.fstat(descriptor)
        for block in blocks(descriptor):
            channel.send({"kind": "file", "name": name, "first": first, "data": block})
            seen.update(block)
            first, size = False, size + len(block)
        if first:
            channel.send({"kind": "file", "name": name, "first": True, "data": b""})
        if is_changed(before, os.fstat(descriptor)):  # the job runs
            return {"path": path, "bytes": size, "sha256": NO_DIGEST}
    except OSError as error:  # the disk, or a file system of the network
        if first:
            return send_nothing(channel, name, path, search, error)
        return {"path": path, "bytes": size, "sha256": NO_DIGEST}
    finally:
        looks.leave(path, descriptor, before)
    return {"path": path, "bytes": size, "sha256": seen.hexdigest()}


def send_nothing(channel: ArtifactChannel, name: str, path: str, search: Search, error: OSError) -> Artifact | None:
    """Return the row of a file of which nothing can be read: NO_DIGEST if it is gone since it was found, else None."""
    if error.errno in GONE:
        channel.send({"kind": "file", "name": name, "first": True, "data": b""})
        return {"path": path, "bytes": 0, "sha256": NO_DIGEST}
    search.leave_out(UNREADABLE)
    return None


def is_replaced(before: os.stat_result, file: int, single: bool) -> bool:
    """Whether an open file has changed, or is gone, or, unless it is a `single` one, was removed or replaced."""
    try:
        now = os.fstat(file)
    except OSError:  # a file system of the network
        return True
    return is_changed(before, now) or not (now.st_nlink or single)


def is_changed(before: os.stat_result, now: os.stat_result) -> bool:
    """Whether a file was written between two looks at it."""
    return (before.st_size, before.st_mtime_ns) != (now.st_size, now.st_mtime_ns)


def open_below(root: str, path: str) -> int:
    """Open a regular file below a directory, through no link. OSError."""
    *folders, name = path.split("/")
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=here)
    finally:
        os.close(here)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise OSError(f"{path} is no regular file")
    except OSError:
        os.close(found)
        raise
    return found
