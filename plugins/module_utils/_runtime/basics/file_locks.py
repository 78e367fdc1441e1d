# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Locks between processes: files, which the kernel unlocks when the process that holds them is gone."""

from __future__ import annotations

import errno
import fcntl
import os
import time

PAUSE_SECONDS = 0.01


def try_lock(path: str, how: int) -> int | None:
    """Return a descriptor that holds the lock of a file, which is made; None if others hold it. OSError.

    `how`: fcntl.LOCK_EX, or fcntl.LOCK_SH for one that several may hold.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno != errno.EWOULDBLOCK:
            raise
        return None
    return descriptor


def wait_for_lock(path: str, how: int, seconds: float) -> int | None:
    """Return what try_lock() does; None if others have held the lock for so many seconds. OSError."""
    deadline = time.monotonic() + seconds
    while True:
        found = try_lock(path, how)
        if found is not None or time.monotonic() > deadline:
            return found
        time.sleep(PAUSE_SECONDS)


def try_lock_open(descriptor: int) -> bool:
    """Lock an open file or directory until it is closed. Return whether we have the lock: False if another has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without such locks
        return True
    return True
