# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How many files a process may have open: a supervisor as many as it can, what it starts as many as without it."""

from __future__ import annotations

import contextlib
import resource

BEFORE: list[tuple[int, int]] = []  # the limits that this process had at its start


def raise_files() -> None:
    """Raise the soft limit of open files to the hard one: a supervisor has three for each other node."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    BEFORE[:] = [(soft, hard)]
    with contextlib.suppress(OSError, ValueError):  # the kernel's own limit (fs.nr_open) may be below the hard one now
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def restore_files() -> None:
    """Give a new process the limit that it would have had: programs that use select() count on 1,024."""
    for limits in BEFORE:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
