# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Limits of this session, and the memory of this node.

Functions that read below /proc, /sys, /etc and /usr take another `root`, so that tests can give them a tree.
"""

from __future__ import annotations

import os
import re
import resource

from .reading import text_of


def limits() -> dict[str, int | None]:
    """Return the limits of this session, the soft ones; None means unlimited.

    The limit of open files is the hard one: programs may raise theirs to it, and the soft one is mostly 1024.
    """
    kinds = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    found = {name: resource.getrlimit(kind)[name == "nofile"] for name, kind in kinds.items()}
    return {name: None if value == resource.RLIM_INFINITY else value for name, value in found.items()}


def memory(root: str = "/") -> dict[str, int | None]:
    """Return total, available and swap of the machine, and the least limit of our control groups (None: no limit)."""
    rows = re.findall(r"^(\w+):\s+(\d+) kB", text_of(os.path.join(root, "proc/meminfo")), re.MULTILINE)
    sizes = {name: int(size) << 10 for name, size in rows}
    return {
        "total": sizes.get("MemTotal", 0),
        "available": sizes.get("MemAvailable", 0),
        "swap": sizes.get("SwapTotal", 0),
        "limit": memory_limit(root),
    }


def memory_limit(root: str = "/") -> int | None:
    """Return the least memory limit from our control group up to the top (v2: memory.max, v1: limit_in_bytes)."""
    found = []
    for line in text_of(os.path.join(root, "proc/self/cgroup")).splitlines():
        _number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1):  # the top too: in a container it has the limit of that
            text = text_of(os.path.join(root, "sys/fs/cgroup", top, *parts[:depth], name)).strip()
            found += [int(text)] if text.isdigit() and int(text) < 1 << 60 else []
    return min(found, default=None)
