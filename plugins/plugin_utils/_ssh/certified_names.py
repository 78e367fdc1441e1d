# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The names that host keys had certificates for. Pure.

A machine that got another name keeps its key, which is not revoked, and its old certificate. Once another machine has
the old name, the first could pose as it for as long as that certificate is valid.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.keys import (
    KeyFailed,
    read_certificate,
    strict_key,
)

from .mesh import Mesh

LAST_SECOND = 253402300799  # of the year 9999
Certified = dict[str, dict[str, int]]  # by host key and name: until when a certificate is valid, in seconds since 1970


def certified_from(found: object) -> Certified:
    """Return what a file says. Raise TypeError, ValueError or KeyFailed for another form."""
    if not isinstance(found, dict) or not all(isinstance(names, dict) for names in found.values()):
        raise TypeError("names by keys were expected")
    return {strict_key(key): {str(name): int(until) for name, until in names.items()} for key, names in found.items()}


def valid_at(now: float, certified: Certified) -> Certified:
    """Return those whose time is not over."""
    left = {key: {name: until for name, until in names.items() if until > now} for key, names in certified.items()}
    return {key: names for key, names in left.items() if names}


def with_issued(certified: Certified, mesh: Mesh, issued: Mapping[str, str]) -> Certified:
    """Return them with the certificates that the members have from now on; those of check mode are none."""
    found = {key: dict(names) for key, names in certified.items()}
    for member in mesh.members:
        try:
            there = read_certificate(issued.get(f"{member.name}-host", ""))
        except KeyFailed:
            continue
        names = found.setdefault(there.key, {})
        names[member.name] = max(there.valid_before, names.get(member.name, 0))
    return found


def could_pose(mesh: Mesh, certified: Certified) -> list[str]:
    """Return a line for each node with a certificate for the name of another one, which shows certificates too."""
    believed = {member.name for member in mesh.members if mesh.certifies(member)}
    return [
        f"{member.name} was called {name} before, has a certificate for that name until {day(until)}, and could pose "
        "as the machine that has it now: add -e ssh_mesh_rotate=true, which makes all earlier certificates worthless"
        for member in mesh.members
        for key in member.host_keys
        for name, until in certified.get(key, {}).items()
        if name != member.name and name in believed
    ]


def day(seconds: int) -> str:
    """Return the day of a time, the last one that has four digits if it is later."""
    return time.strftime("%Y-%m-%d", time.gmtime(min(seconds, LAST_SECOND)))
