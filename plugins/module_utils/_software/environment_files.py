# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The directory of an environment, as files: its lock, replacing it as a whole, and programs that work on it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from .build_errors import TRUST, errors_in

LINK = "torchfleet-linked.pth"  # names the packages of another environment
RECEIPT = "torchfleet-receipt.json"
LOCK_SECONDS = 900
FULL_MB = 5


class NotMadeError(Exception):
    """The environment could not be made. The text is one line."""


def free_mb(path: Path) -> int:
    """Return how much can be written in a directory."""
    return shutil.disk_usage(str(path)).free // 10**6


def nearest_directory(path: Path) -> Path:
    """Return path, or the closest directory above it that exists."""
    while not os.path.isdir(path) and path != path.parent:  # also below one that may not be entered
        path = path.parent
    return path


def remove(path: Path) -> None:
    """Remove a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(str(path))


def brought_file(path: Path) -> str:
    """Return where the controller puts what an environment is made of: wheels and sources, in one file."""
    return f"{path}.brought.tar"


def work_directory(path: Path, purpose: str) -> tempfile.TemporaryDirectory[str]:
    """Return a directory beside an environment, on the same disk, which goes with the `with` block."""
    return tempfile.TemporaryDirectory(prefix=f".{path.name}.{purpose}-", dir=str(path.parent))


def remove_leftovers(path: Path, brought: str = "") -> None:
    """Remove what interrupted installations left beside an environment, but not the file `brought` for this one.

    Whoever calls this holds the lock, so nobody else uses any of it.
    """
    for purpose in ("brought", "build"):
        for left in path.parent.glob(f".{glob.escape(path.name)}.{purpose}-*"):
            remove(left)
    if brought != brought_file(path) and os.path.lexists(brought_file(path)):
        os.unlink(brought_file(path))


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[int]:
    """Open a lock file, which is made if it is not there. OSError for a link, and for what is no file of this user.

    Nothing is written. Root may lock the file of any user: on some servers root's own files belong to nobody.
    """
    refusal = OSError(f"{path} is not a lock file of this user: remove it")
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        descriptor = os.open(str(path), flags, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES):
            raise refusal from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or (os.geteuid() and status.st_uid != os.geteuid()):
            raise refusal
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of an environment, which lies beside it; programs started meanwhile hold it too.

    A playbook that is killed may leave an installation running: the next one waits for it, and finds the work done.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(path.name + ".lock")
    with lock_file(lock) as descriptor:
        os.set_inheritable(descriptor, True)
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NotMadeError(f"another installation has held {lock} for {LOCK_SECONDS} s") from None
                time.sleep(0.2)
        yield


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[None]:
    """Rename the present environment to NAME.old while a new one is made. If that fails, rename it back."""
    aside = path.with_name(path.name + ".old")
    if aside.is_dir() and not (path / RECEIPT).exists():  # that installation was killed: NAME.old is the last good one
        remove(path)
    if path.is_dir():
        remove(aside)
        path.rename(aside)
    try:
        yield
    except BaseException:
        full = free_mb(path.parent) < FULL_MB
        remove(path)
        if aside.is_dir():
            aside.rename(path)
        if full:  # few programs report that clearly
            raise NotMadeError(f"no space is left in {path.parent}") from None
        raise
    remove(aside)


def run(
    argv: Sequence[str],
    what: str,
    cwd: str | None = None,
    environment: Mapping[str, str] | None = None,
    trust: str = TRUST,
) -> None:
    """Run a program to its end. Raise NotMadeError with `what` failed and the lines that explain it (errors_in())."""
    done = subprocess.run(
        argv,
        cwd=cwd,
        env={**os.environ, "PIP_USER": "0", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        close_fds=False,  # it holds the lock too
        check=False,
    )
    if done.returncode != 0:
        errors = errors_in([line for line in done.stdout.decode(errors="replace").splitlines() if line.strip()], trust)
        raise NotMadeError(f"{what}: {'; '.join(errors) or f'exit status {done.returncode}'}")
