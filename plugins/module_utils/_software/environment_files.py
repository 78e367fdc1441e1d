# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The directory of an environment, as files: its lock, replacing it as a whole, and programs that work on it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from .build_errors import errors_in

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


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of an environment, which lies beside it; programs started meanwhile hold it too.

    A playbook that is killed may leave an installation running: the next one waits for it, and finds the work done.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(path.name + ".lock")
    with lock.open("w") as stream:
        os.set_inheritable(stream.fileno(), True)
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NotMadeError(f"another installation has held {lock} for {LOCK_SECONDS} s") from None
                time.sleep(0.2)
        yield


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[None]:
    """Put what is there aside while something new is made in its place. If that fails, it comes back."""
    aside = path.with_name(path.name + ".old")
    if aside.is_dir() and not (path / RECEIPT).exists():  # who made it was killed: what lies aside is the good one
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
        if full:  # which few programs say plainly
            raise NotMadeError(f"no space is left in {path.parent}") from None
        raise
    remove(aside)


def run(argv: Sequence[str], what: str, cwd: str | None = None, environment: Mapping[str, str] | None = None) -> None:
    """Run a program to its end. NotMadeError with what it says of errors if it fails; `what` failed then."""
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
        errors = errors_in([line for line in done.stdout.decode(errors="replace").splitlines() if line.strip()])
        raise NotMadeError(f"{what}: {'; '.join(errors) or f'exit status {done.returncode}'}")
