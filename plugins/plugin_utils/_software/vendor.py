# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node answers about packages of a vendor, checked: only packages that were asked for are named in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import (
    flag,
    like,
    listed,
    mapped,
    one_of,
    printable,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.vendor import Request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import exact, take, text_file

VERSION = like(re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~_^-]{0,127}\Z"), "the version of a package")
HEADERS = like(
    re.compile(r"(linux-headers|linux-modules-extra|kernel-devel)-[A-Za-z0-9.+~_-]{1,128}\Z"),
    "a package of the running kernel",
)


class Answer(TypedDict):
    """What module vendor_packages answers: what is installed, and what is left to do."""

    changed: bool
    headers: list[str]
    versions: dict[str, str]
    missing: list[str]
    wrong_version: list[str]  # as name=version
    not_held: list[str]
    diff: list[dict[str, str]]


def answer_of(node: str, request: Request, value: object) -> Answer:
    """Return what module vendor_packages answered to a request. InputError, which names the node, if it cannot be."""
    return take(node, "packages", form_of(request), value)


def form_of(request: Request) -> Callable[[object], Answer]:
    """Return the check of an answer to a request."""
    same = request["same_version"]
    named = one_of(*request["first"], *request["packages"], *same, *same.values())
    exactly = re.compile("(?:" + "|".join(map(re.escape, same)) + r")=[A-Za-z0-9.+:~*_^-]{1,128}\Z")
    return exact(
        {
            "changed": flag,
            "headers": listed(HEADERS, 4),
            "versions": mapped(named, VERSION, 100),
            "missing": listed(named, 100),
            "wrong_version": listed(like(exactly, "a package in the version of another one"), 100),
            "not_held": listed(named, 100),
            "diff": listed(exact(dict.fromkeys(("before_header", "after_header", "before", "after"), lines)), 20),
        }
    )


def lines(value: object) -> str:
    """Return a text of several lines, each made printable."""
    return "\n".join(map(printable, text_file(value).split("\n")))


def announcement(answer: Answer) -> str:
    """Return what --check says of an answer."""
    coming = [*answer["headers"], *answer["missing"], *answer["wrong_version"]]
    held = [name for name in answer["not_held"] if name not in coming]
    parts = [f"install {', '.join(coming)}"] if coming else []
    parts += [f"hold {', '.join(held)}"] if held else []
    return f"would {' and '.join(parts or ['write the repositories again'])}"
