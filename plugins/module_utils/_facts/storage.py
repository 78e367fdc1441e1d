# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Directories of this node: free space, permissions, the file system, and which ones other users can replace."""

from __future__ import annotations

import os
import re
import stat

from .reading import text_of


def place(path: str) -> dict[str, object]:
    """Return free space, permissions and file system of the place where `path` is or would be."""
    near = os.path.realpath(path)
    while not os.path.isdir(near) and near != "/":
        near = os.path.dirname(near)
    status = os.statvfs(near)
    source, kind = mount_of(near, text_of("/proc/self/mounts"))
    return {
        "near": near,
        "free": status.f_bavail * status.f_frsize,
        "size": status.f_blocks * status.f_frsize,
        "free_inodes": status.f_favail if status.f_files else None,  # None: this file system does not count them
        "writable": os.access(near, os.W_OK | os.X_OK),
        "read_only": bool(status.f_flag & os.ST_RDONLY),
        "noexec": bool(status.f_flag & os.ST_NOEXEC),
        "source": source,
        "kind": kind,
    }


def loose(path: str) -> list[dict[str, str]]:
    """Return the directories, from / down to a path, that other users can replace: path, and why.

    `owner`: it belongs to another user than us and root. `everybody`: all users may rename its entries.
    """
    trusted = {0, os.getuid(), os.stat("/").st_uid}  # in a container / may belong to nobody
    found = []
    for each in with_parents(path):
        try:
            status = os.lstat(each)
        except OSError:  # it is not there yet
            continue
        if status.st_uid not in ({os.getuid()} if each == path else trusted):
            found.append({"path": each, "why": "owner"})
        elif not stat.S_ISLNK(status.st_mode) and status.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            found.append({"path": each, "why": "everybody"})
    return found


def with_parents(path: str) -> list[str]:
    """Return a path with all its parents, also those of the target of each link."""
    found = []
    for each in (path, os.path.realpath(path)):
        parts = each.rstrip("/").split("/")
        found += ["/".join(parts[:count]) or "/" for count in range(1, len(parts) + 1)]
    return sorted(set(found), key=len)


def mount_of(path: str, mounts: str) -> tuple[str, str]:
    """Return source and type of the file system that holds a path, from the text of /proc/self/mounts."""
    best, found = "", ("", "")
    for line in mounts.splitlines():
        # The kernel writes a space in a name as \040 (proc_pid_mounts(5)).
        words = [re.sub(r"\\([0-7]{3})", lambda part: chr(int(part.group(1), 8)), word) for word in line.split()[:3]]
        if len(words) == 3 and len(words[1]) >= len(best) and (path + "/").startswith(words[1].rstrip("/") + "/"):
            best, found = words[1], (words[0], words[2])
    return found
