# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What nodes answer about Python environments, checked at the border. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JOB_ID
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import (
    flag,
    like,
    listed,
    mapped,
    optional,
    plain,
    words,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import versions
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import (
    DIGEST,
    WORD,
    empty_or,
    exact,
    short,
    take,
)

PLACE = like(re.compile(r"[^\x00-\x1f\x7f]{1,1000}\Z"), "a path")
VERSION = like(versions.NAME, "the name of a version")
RECEIPT = optional(mapped(short(), plain, 100))


class Look(TypedDict):
    """What a node saw of an environment: module python_environment documents it."""

    refusals: list[str]
    ready: bool
    receipt: dict[str, object] | None
    proven: bool
    kind: str
    place: str
    version: str
    used: str
    adopts: bool
    mesh: bool
    python: str
    libc: str
    machine: str
    os: str
    missing_tools: list[str]
    needs_pip: bool


LOOK: Callable[[object], Look] = exact(
    {
        "refusals": listed(short(2000), 32),
        "ready": flag,
        "receipt": RECEIPT,
        "proven": flag,
        "kind": empty_or(DIGEST),
        "place": PLACE,
        "version": empty_or(VERSION),
        "used": empty_or(VERSION),
        "adopts": flag,
        "mesh": flag,
        "python": like(re.compile(r"\d{1,3}\.\d{1,3}\Z"), "the version of Python"),
        "libc": empty_or(like(re.compile(r"[0-9]{1,2}\.[0-9]{1,3}(\.[0-9]{1,5})?\Z"), "the version of glibc")),
        "machine": WORD,
        "os": WORD,
        "missing_tools": listed(like(re.compile(r"[A-Za-z0-9_.+-]{1,64}\Z"), "the name of a program"), 64),
        "needs_pip": flag,
    }
)
UNSENT = mapped(short(300), words, 100_000)
SEEN = exact(
    {"used": empty_or(VERSION), "before": empty_or(VERSION), "job": empty_or(like(JOB_ID, "the name of a job"))}
)


def versions_seen(node: str, parts: Iterable[str], value: object) -> dict[str, dict[str, str]]:
    """Return what module environment_version saw on a node, by part."""
    return dict(take(node, "look", exact(dict.fromkeys(parts, SEEN)), value))


def versions_before(node: str, parts: Iterable[str], value: object) -> dict[str, str]:
    """Return which versions were in use on a node before module environment_version changed them, by part."""
    return dict(take(node, "use", exact({}, dict.fromkeys(parts, empty_or(VERSION))), value))


def look_of(node: str, value: object) -> Look:
    """Return what module python_environment answered on a node with state look. InputError."""
    return take(node, "look", LOOK, value)


def unsent_of(node: str, value: object) -> dict[str, str]:
    """Return, by receiver, why the module did not send it there with state send, or an empty text. InputError."""
    return take(node, "send", UNSENT, value)
