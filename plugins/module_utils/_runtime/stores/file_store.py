# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What was shipped to this node, by its content: `<home>/store/<first two digits of the sha256>/<sha256>`.

A file lies here once, whoever shipped it and whatever it was called. Programs never see it: each job has copies of its
own (see job_files). So nothing here is ever written again, and whatever no job has asked for in some days may go.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
import time
from typing import Iterator

from ..basics.file_locks import try_lock, wait_for_lock
from ..basics.job_directory import unique

DIGEST = re.compile(r"[0-9a-f]{64}\Z")
KEPT_DAYS = 14.0  # since a job asked for it last
BUSY_SECONDS = 60.0  # for a clean.yml that empties the store just now
BLOCK = 1 << 20
FICLONE = 0x40049409  # linux/fs.h: both files have the same blocks until one of them is written (Btrfs, XFS, bcachefs)


class Store:
    """The store below a torchfleet home."""

    def __init__(self, home: str) -> None:
        self.root = os.path.join(home, "store")
        self.arriving = os.path.join(self.root, "arriving")

    def path(self, digest: str) -> str:
        return os.path.join(self.root, digest[:2], digest)

    def use(self) -> int:
        """Return a descriptor; until it is closed nothing goes away. OSError (TimeoutError: it is being cleaned)."""
        os.makedirs(self.arriving, mode=0o700, exist_ok=True)
        found = wait_for_lock(self.lock_path, fcntl.LOCK_SH, BUSY_SECONDS)
        if found is None:
            raise TimeoutError(errno.ETIMEDOUT, f"{self.root} has been cleaned for {BUSY_SECONDS:.0f} s")
        return found

    @property
    def lock_path(self) -> str:
        return os.path.join(self.root, "lock")

    def lock(self, how: int) -> int | None:
        """Return a descriptor that holds the store's lock, None if others hold it. OSError."""
        return try_lock(self.lock_path, how)

    def has(self, digest: str) -> bool:
        """Whether a file with this content is here; if so it was asked for now."""
        try:
            if not stat.S_ISREG(os.lstat(self.path(digest)).st_mode):
                return False
            os.utime(self.path(digest), follow_symlinks=False)
        except OSError:
            return False
        return True

    def copy(self, digest: str, target: int) -> bool:
        """Write the content into an empty file that is open for reading and writing. OSError.

        False if what lies here is damaged (by a power cut, or by somebody): then it goes away, to be sent again.
        """
        source = os.open(self.path(digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            cloned = clone(source, target)
            seen = hashlib.sha256()
            for block in blocks(target if cloned else source):
                seen.update(block)
                if not cloned:
                    write_all(target, block)
        finally:
            os.close(source)
        if seen.hexdigest() == digest:
            return True
        os.unlink(self.path(digest))
        return False

    def clear(self, days: float = KEPT_DAYS, dry_run: bool = False) -> tuple[int, int]:
        """Take away what no job asked for in so many days; return how many files, and their bytes.

        Nothing while a job is being shipped.
        """
        if not os.path.isdir(self.root):
            return 0, 0
        lock = self.lock(fcntl.LOCK_EX)
        if lock is None:
            return 0, 0
        try:
            rows = list(self.unused(time.time() - days * 86400))
            for path, _size in [] if dry_run else rows:
                os.unlink(path)
        finally:
            os.close(lock)
        return len(rows), sum(size for _path, size in rows)

    def unused(self, since: float) -> Iterator[tuple[str, int]]:
        """Yield path and size of the files that were used before a time last."""
        for folder, _folders, names in os.walk(self.root):
            for name in names if folder != self.root else ():
                found = os.lstat(os.path.join(folder, name))
                if found.st_mtime < since:
                    yield os.path.join(folder, name), found.st_size


class Arrival:
    """A file on its way into the store: it is there when its content is what was announced, and not before."""

    def __init__(self, store: Store, digest: str) -> None:
        """Begin. OSError."""
        self.store, self.digest = store, digest
        self.path = os.path.join(store.arriving, unique())
        self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        self.seen = hashlib.sha256()

    def take(self, data: bytes) -> None:
        """Take the next block. OSError."""
        self.seen.update(data)
        write_all(self.file, data)

    def finish(self) -> bool:
        """Put the file in its place; return whether it is what was announced. OSError."""
        right = self.seen.hexdigest() == self.digest
        try:
            if right:
                os.fchmod(self.file, 0o400)
                os.makedirs(os.path.dirname(self.store.path(self.digest)), mode=0o700, exist_ok=True)
                os.replace(self.path, self.store.path(self.digest))
        finally:
            self.drop()
        return right

    def drop(self) -> None:
        """Let go of the file, and take away what is not in its place."""
        os.close(self.file)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def clone(source: int, target: int) -> bool:
    """Let an empty file share the blocks of another; False where the file system cannot."""
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError:
        return False
    return True


def blocks(descriptor: int) -> Iterator[bytes]:
    """Yield the content of a file from where it is read."""
    while True:
        block = os.read(descriptor, BLOCK)
        if not block:
            return
        yield block


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data. OSError."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
