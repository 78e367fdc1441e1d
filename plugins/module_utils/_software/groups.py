# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Groups of the system that own devices, and the users in them. What is added is noted in the ledger. Needs root."""

from __future__ import annotations

import grp
import pwd
from typing import NamedTuple, Sequence

from . import ledger
from .packages import PackageError, change


class Lacking(NamedTuple):
    """Groups that are not there, and `group:user` for each user who is not in a group."""

    groups: list[str]
    members: list[str]

    def __bool__(self) -> bool:
        return bool(self.groups or self.members)


def lacking(names: Sequence[str], users: Sequence[str]) -> Lacking:
    """Return what is missing of these groups. PackageError for a user that the machine does not know."""
    unknown = [user for user in users if not is_user(user)]
    if unknown:
        raise PackageError(f"there is no user {unknown[0]} on this machine")
    groups = {group.gr_name: group for group in grp.getgrall()}
    pairs = [(name, user) for name in names for user in users]
    return Lacking(
        groups=[name for name in names if name not in groups],
        members=[f"{name}:{user}" for name, user in pairs if name not in groups or not is_in(user, groups[name])],
    )


def is_user(name: str) -> bool:
    """Whether the machine knows a user."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def is_in(user: str, group: grp.struct_group) -> bool:
    """Whether a user is in a group, also as the user's first one."""
    return user in group.gr_mem or pwd.getpwnam(user).pw_gid == group.gr_gid


def add(role: str, wanted: Lacking) -> None:
    """Add what is missing. PackageError."""
    for name in wanted.groups:
        change("groupadd", "--system", name, what=f"group {name} could not be created")
        ledger.note(role, "groups", [name])
    for pair in wanted.members:
        group, _colon, user = pair.partition(":")
        change("gpasswd", "--add", user, group, what=f"{user} could not be added to group {group}")
        ledger.note(role, "members", [pair])
