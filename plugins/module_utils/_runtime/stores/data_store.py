# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The data sets on this node: `<home>/data/<name>`, shared by all jobs that read them.

`files/` has the files (0444, directories 0555), `manifest.json` what they must be, `journal` what was checked: a row
for each file that is whole, and last one for the directories. Whoever writes into a file changes its times or its
inode, and is noticed by them: then the file is read again, and sent again if it is another one. A data set without the
last row is not used.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from typing import Iterator, NamedTuple, Sequence, Tuple

from ..basics.file_locks import try_lock
from ..basics.job_directory import field, jobs, open_file, remove, unique
from ..types.records import DataFacts
from .data_manifest import MOST_BYTES, NAME, Manifest, known_manifest, name_of
from .job_files import walk

DATA = "data"  # below a torchfleet home
FILES, MANIFEST, JOURNAL, CLAIM = "files", "manifest.json", "journal", "claim-"
GONE = ".gone-"  # what a data set is called while it is removed
SEALED = 0o555  # the mode of its directories when all is there
UNKNOWN = -1  # bytes that a node is missing, before it has the list
JOURNAL_BYTES = 256 << 20
Mark = Tuple[int, int, int]  # mtime and ctime in ns, inode


class Journal(NamedTuple):
    """What was checked: the mark of each whole file by its number, of each directory if all of them are."""

    files: dict[int, Mark]
    folders: dict[str, Mark] | None


def place_of(home: str, name: str) -> str:
    """Return the directory of a data set."""
    return os.path.join(home, DATA, name)


def root_of(home: str, name: str) -> str:
    """Return where the files of a data set lie."""
    return os.path.join(place_of(home, name), FILES)


def mark_of(found: os.stat_result) -> Mark:
    """Return by what a change of a file is noticed."""
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def free_bytes(path: str) -> int:
    """Return the bytes this user can still write where `path` is or would be."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def look(home: str, name: str) -> DataFacts | None:
    """Return what of a data set is on this node; None where none is asked for. Changes nothing."""
    if not NAME.match(name):
        return None
    place = place_of(home, name)
    facts: DataFacts = {"whole": False, "missing": UNKNOWN, "free": free_bytes(place)}
    manifest = manifest_at(place)
    if manifest:
        journal = read_journal(place)
        changed = changed_files(place, manifest, journal)
        facts["whole"] = not changed and folders_are(place, manifest, journal)
        facts["missing"] = sum(missing_bytes(place, manifest, file) for file in changed)
    return facts


def manifest_at(place: str) -> Manifest | None:
    """Return the list of a data set; None if there is none of that name."""
    try:
        with open(open_file(os.path.join(place, MANIFEST)), "rb") as file:
            text = file.read(MOST_BYTES + 1)
        return known_manifest(text) if name_of(text) == os.path.basename(place) else None
    except (OSError, ValueError):
        return None


def read_journal(place: str) -> Journal:
    """Return which files were checked before. Anyone may have written the journal: reading stops at a bad row."""
    found: dict[int, Mark] = {}
    folders: dict[str, Mark] | None = None
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        with open(open_file(os.path.join(place, JOURNAL)), "rb") as file:
            lines = file.read(JOURNAL_BYTES).splitlines()
        for line in lines:
            row = json.loads(line)
            if isinstance(row, dict):
                folders = {path: mark_in(mark) for path, mark in row.items()}
                break
            number, *mark = row
            found[int(number)] = mark_in(mark)
    return Journal(found, folders)


def mark_in(row: Sequence[object]) -> Mark:
    """Return a mark of a journal. ValueError, TypeError."""
    mtime, ctime, inode = row
    if not (isinstance(mtime, int) and isinstance(ctime, int) and isinstance(inode, int)):
        raise ValueError("no mark")
    return mtime, ctime, inode


def is_as_marked(path: str, size: int, mark: Mark | None) -> bool:
    """Whether a file is what it was when it was checked."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size and mark_of(found) == mark


def changed_files(place: str, manifest: Manifest, journal: Journal) -> list[int]:
    """Return the numbers of the files that are not there, or that are not as they were when they were checked."""
    root = os.path.join(place, FILES)
    return [
        number
        for number, row in enumerate(manifest.rows)
        if not is_as_marked(os.path.join(root, row.path), row.size, journal.files.get(number))
    ]


def folders_are(place: str, manifest: Manifest, journal: Journal) -> bool:
    """Whether no directory was changed or replaced by a link since the journal was written."""
    return journal.folders is not None and journal.folders == marks_of_folders(place, manifest)


def marks_of_folders(place: str, manifest: Manifest) -> dict[str, Mark]:
    """Return the marks of all directories that are there, the root as an empty path."""
    found = {}
    for path in ("", *manifest.folders()):
        with contextlib.suppress(OSError):
            state = os.lstat(os.path.join(place, FILES, path))
            if stat.S_ISDIR(state.st_mode):
                found[path] = mark_of(state)
    return found


def missing_bytes(place: str, manifest: Manifest, file: int) -> int:
    """Return how much a file that is not whole may still grow."""
    row = manifest.rows[file]
    try:
        found = os.lstat(os.path.join(place, FILES, row.path))
    except OSError:
        return row.size
    return max(0, row.size - found.st_size) if stat.S_ISREG(found.st_mode) else row.size


def is_whole(place: str) -> bool:
    """Whether all of a data set is there and as it was checked."""
    manifest, journal = manifest_at(place), read_journal(place)
    return bool(manifest and folders_are(place, manifest, journal) and not changed_files(place, manifest, journal))


# --- jobs that use them, and those that nobody does -------------------------------------------------------------------


@contextlib.contextmanager
def locked(home: str, how: int) -> Iterator[None]:
    """Hold the lock of all data sets of a home. OSError."""
    os.makedirs(os.path.join(home, DATA), mode=0o700, exist_ok=True)
    descriptor = os.open(os.path.join(home, DATA, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def used_by(order: object) -> str:
    """Return the name of the data set that a job reads on this node; empty if it reads none of ours.

    `order`: what lies in order.json, which an earlier version may have written.
    """
    return field(order, "data", str) or ""


def note_use(order: object) -> None:
    """Note that a job whose order is written uses its data set. OSError if that was removed since the survey."""
    name, home = used_by(order), field(order, "home", str)
    if not name or home is None:
        return
    with locked(home, fcntl.LOCK_SH):
        if not is_sealed(root_of(home, name)):
            place = place_of(home, name)
            raise OSError(errno.ENOENT, f"{place} was removed just now, or is written: start the job again")
        os.utime(place_of(home, name))


def is_sealed(root: str) -> bool:
    """Whether the directory of a data set is closed to writing, as the last step of laying it does."""
    try:
        found = os.lstat(root)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == SEALED


def remove_old(home: str, keep: int, name: str) -> list[str]:
    """Remove all data sets but `name` and those used last, `keep` in all (0 keeps all). Return the names of the others.

    None goes that a running job reads, or that is being laid.
    """
    gone = []
    with locked(home, fcntl.LOCK_EX):
        used = {used_by(job.read_order()) for job in jobs(home) if job.running()} if keep else set()
        others = [other for other in by_use(home) if other != name]
        for other in others[keep - 1 :] if keep else []:
            lock = None if other in used else lock_of(home, other)
            if lock is not None:
                os.rename(place_of(home, other), os.path.join(home, DATA, f"{GONE}{unique()}-{other}"))
                os.unlink(f"{place_of(home, other)}.lock")
                os.close(lock)
                gone.append(other)
    for left in os.listdir(os.path.join(home, DATA)):
        if left.startswith(GONE):
            make_removable(os.path.join(home, DATA, left))
            remove(os.path.join(home, DATA, left))
    return gone


def by_use(home: str) -> list[str]:
    """Return the names of the data sets of a home, those first that were used last."""
    found = []
    with os.scandir(os.path.join(home, DATA)) as entries:
        for entry in entries:
            if NAME.match(entry.name) and entry.is_dir(follow_symlinks=False):
                found.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
    return [name for _time, name in sorted(found, reverse=True)]


def lock_of(home: str, name: str) -> int | None:
    """Return a descriptor that holds the lock of one data set, None if somebody lays it just now. OSError."""
    return try_lock(f"{place_of(home, name)}.lock", fcntl.LOCK_EX)


def make_removable(path: str) -> None:
    """Let the owner take away what is in the directories below a path: those of a data set are closed to writing."""
    if os.path.islink(path) or not os.path.isdir(path):
        return
    os.chmod(path, 0o700)
    for folder, folders, _names in walk(path, []):
        for name in folders:
            with contextlib.suppress(OSError):
                os.chmod(os.path.join(folder, name), 0o700)
