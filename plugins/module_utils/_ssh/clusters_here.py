# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The clusters that have this machine as a node: what root installed for one of them serves all.

What the SSH mesh leaves on a node tells: the part of sshd's drop-in, the block in authorized_keys, the note of the last
work in the usual home. Those of other users can be read by root only. A machine alone has no mesh, and tells nothing.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
from typing import Iterator, NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import json_in, open_file

from .shared import PLACE

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")  # as plugin_utils/_ssh/answers.py has it
BLOCK = re.compile(r"^# BEGIN torchfleet (\S{1,64})$", re.MULTILINE)
MOST_BYTES = 1 << 20  # of a file that a user wrote and root reads
MOST_USERS = 10000


class Cluster(NamedTuple):
    """A cluster of one user of this machine. Two users may have given theirs the same name."""

    name: str
    user: str

    @property
    def text(self) -> str:
        """What it is called in messages, and in option `mine` of module uninstall."""
        return f"{self.name} of {self.user}"


def clusters_in(home: str) -> set[Cluster]:
    """Return the clusters of this process's user that have torchfleet's home in this directory: one, or none."""
    user = pwd.getpwuid(os.getuid()).pw_name
    return {Cluster(name, user) for name in noted_in(home)}


def clusters_here() -> set[Cluster]:
    """Return all that can be seen."""
    found = set(parts_of_sshd())
    for user in pwd.getpwall()[:MOST_USERS]:
        names = [*noted_in(os.path.join(user.pw_dir, ".torchfleet")), *let_in_by(user.pw_dir)]
        found.update(Cluster(name, user.pw_name) for name in names)
    return found


def noted_in(home: str) -> Iterator[str]:
    """Yield the names that the SSH mesh noted in a home."""
    for path in sorted(glob.glob(os.path.join(glob.escape(home), "ssh", "applied-*.json"))):
        found = json_in(path, MOST_BYTES)
        if isinstance(found, dict):
            yield from good([found.get("cluster")])


def let_in_by(directory: str) -> Iterator[str]:
    """Yield the names of the clusters whose keys a user's authorized_keys has."""
    try:
        with open(open_file(os.path.join(directory, ".ssh", "authorized_keys")), "rb") as file:
            text = file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return
    yield from good(BLOCK.findall(text))


def parts_of_sshd() -> Iterator[Cluster]:
    """Yield the clusters that have a part in the drop-in of the system's sshd, with the user of each."""
    for path in sorted(glob.glob(os.path.join(PLACE, "clusters", "*.json"))):
        found = json_in(path, MOST_BYTES)
        user = found.get("user") if isinstance(found, dict) else None
        if isinstance(user, str):
            yield from (Cluster(name, user) for name in good([os.path.basename(path)[: -len(".json")]]))


def good(names: list[object]) -> Iterator[str]:
    """Yield those that are names of clusters: users write these files, and the names are shown."""
    for name in names:
        if isinstance(name, str) and NAME.match(name):
            yield name
