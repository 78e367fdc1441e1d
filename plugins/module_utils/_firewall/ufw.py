# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""ufw: its own rules, with a comment, before all others. It keeps them itself."""

from __future__ import annotations

import re
import shlex
from typing import Iterator, Sequence

from .rules import Change, Command, Found, Grant, each

DENIES = ("deny", "reject")


def active(status: str) -> bool:
    """Return whether `ufw status verbose` says that ufw filters."""
    return bool(re.search(r"^Status: active", status, re.MULTILINE))


def denied(status: str) -> tuple[str, ...]:
    """Return the directions that `ufw status verbose` says are closed by default: incoming, outgoing."""
    line = re.search(r"^Default: (.*)", status, re.MULTILINE)
    rows = re.findall(r"(\w+) \((\w+)\)", line.group(1)) if line else []
    return tuple(way for what, way in rows if what in DENIES and way in ("incoming", "outgoing"))


def found(status: str) -> list[Found]:
    """Return whether ufw drops what it does not know."""
    ways = denied(status) if active(status) else ()
    return [Found("ufw", f"default: deny ({', '.join(ways)})")] if ways else []


def plan(status: str, added: str, grants: Sequence[Grant], mark: str) -> Change:
    """Return the change. `added`: of `ufw show added`, which lists the rules as they were typed."""
    rows = [shlex.split(line)[1:] for line in added.splitlines() if line.startswith("ufw ")]
    ours = sorted(" ".join(row[:-2]) for row in rows if row[-2:] == ["comment", mark])
    theirs = {" ".join(row[: row.index("comment")] if "comment" in row else row) for row in rows} - set(ours)
    wanted = sorted({text for text in texts(denied(status), grants) if active(status)} - theirs)
    gone = [Command(("ufw", "delete", *text.split())) for text in ours if text not in wanted]
    new = [Command(("ufw", "prepend", *text.split(), "comment", mark)) for text in wanted if text not in ours]
    return Change([f"ufw {text}" for text in ours], [f"ufw {text}" for text in wanted], [*gone, *new])


def texts(ways: Sequence[str], grants: Sequence[Grant]) -> Iterator[str]:
    """Yield the rules, as `ufw show added` prints them."""
    for _version, block, port in each(grants):
        if "incoming" in ways:
            yield f"allow from {block}" + (f" to any port {port} proto tcp" if port else "")
        if "outgoing" in ways:
            yield f"allow out to {block}" + (f" from any port {port} proto tcp" if port else "")
