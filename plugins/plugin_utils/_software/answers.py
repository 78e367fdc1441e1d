# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What nodes answer about Python environments, checked at the border. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.forms import (
    flag,
    like,
    listed,
    mapped,
    optional,
    plain,
    words,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import (
    DIGEST,
    WORD,
    empty_or,
    exact,
    short,
    take,
)

Json = Any

RECEIPT = optional(mapped(short(), plain, 100))
ANSWERS: Mapping[str, Callable[[Json], Json]] = {
    "look": exact(
        {
            "refusals": listed(short(2000), 32),
            "ready": flag,
            "receipt": RECEIPT,
            "proven": flag,
            "kind": empty_or(DIGEST),
            "mesh": flag,
            "python": like(re.compile(r"\d{1,3}\.\d{1,3}\Z"), "the version of Python"),
            "libc": empty_or(like(re.compile(r"[0-9]{1,2}\.[0-9]{1,3}(\.[0-9]{1,5})?\Z"), "the version of glibc")),
            "machine": WORD,
            "os": WORD,
            "missing_tools": listed(like(re.compile(r"[A-Za-z0-9_.+-]{1,64}\Z"), "the name of a program"), 64),
            "needs_pip": flag,
        }
    ),
    "send": mapped(short(300), words, 100_000),
}


def environment_answer(node: str, state: str, value: Json) -> dict[str, Json]:
    """Return what module python_environment answered on a node with a state, look or send."""
    return dict(take(node, state, ANSWERS[state], value))
