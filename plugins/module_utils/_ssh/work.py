# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ssh_mesh_apply does on a node, as plugin_utils/_ssh/files.py plans it, and what it leaves for later runs."""

from __future__ import annotations

from typing import Literal, TypedDict


class ServiceLate(TypedDict, total=False):
    port: int
    program: str
    unit_text: str


class Service(ServiceLate):
    """An sshd of the user's own. The fields of ServiceLate are there unless `kind` is none."""

    kind: str  # plain, user or system: what starts it; none: there is to be none
    config: str
    unit: str


class AuthorizedKeys(TypedDict):
    path: str  # empty: the user's list stays as it is
    lines: list[str]


class UserStep(TypedDict):
    """What is done as the user. `files`: texts by path."""

    by: Literal["user"]
    files: dict[str, str]
    promote: list[str]
    absent: list[str]
    authorized_keys: AuthorizedKeys
    sshd: Service


class RootStep(TypedDict):
    by: Literal["root"]
    files: dict[str, str]
    absent: list[str]
    sshd: Service


class Work(TypedDict):
    """The work on one node."""

    user: str
    record: str  # where it is remembered; empty: nowhere
    steps: list[UserStep | RootStep]


class Part(TypedDict):
    """What one cluster needs of the system's sshd."""

    user: str
    user_ca: str
    principals: list[str]
    host_certificate: str
    startups: int
    sessions: int
    exempt: list[str]
