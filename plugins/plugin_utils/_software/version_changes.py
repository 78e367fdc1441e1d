# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Changing versions on all nodes or on none: what each goes back to, and why nobody does. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.running_jobs import wait_for_end
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

Versions = dict[str, dict[str, str]]  # by node and part
Looks = Mapping[str, Mapping[str, Mapping[str, str]]]  # by node and part: used, before, job


class NowhereError(Exception):
    """No node is changed. The text is one line."""


def parts_in(given: object, known: Iterable[str]) -> list[str]:
    """Return the parts that a user named: a list, or names with commas between. InputError for another one."""
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    known = list(known)
    if isinstance(names, list) and all(name in known for name in names):
        return list(dict.fromkeys(names))
    raise InputError("parts", given, f"give some of {', '.join(known)}: -e parts={known[0]}")


def back(looks: Looks, parts: Sequence[str]) -> Versions:
    """Return the version that each node goes back to, by part. NowhereError if one node cannot.

    `parts`: those to take back; if empty, all that any node has a version before the present one of.
    """
    for node, look in looks.items():
        job = next((each["job"] for each in look.values() if each["job"]), "")
        if job:
            raise NowhereError(wait_for_end(job, where=f"on {node}"))
    there = dict.fromkeys(part for look in looks.values() for part, each in look.items() if each["before"])
    if not (parts or there):
        raise NowhereError("there is no version before the present one of anything, so there is nothing to go back to")
    found: Versions = {node: {} for node in looks}
    for part in parts or list(there):
        for node, name in back_of(part, looks).items():
            found[node][part] = name
    return found


def back_of(part: str, looks: Looks) -> dict[str, str]:
    """Return the version of a part that each node that has it goes back to. NowhereError."""
    having = {node: look[part] for node, look in looks.items() if part in look and look[part]["used"]}
    if not having:
        raise NowhereError(f"{part} is not installed, so there is nothing to go back to")
    lacking = [f"{node} ({each['used']})" for node, each in having.items() if not each["before"]]
    if lacking:
        raise NowhereError(f"there is no version of {part} before that in use on {', '.join(lacking[:8])}")
    names = {node: each["before"] for node, each in having.items()}
    if len({label(name) for name in names.values()}) > 1:
        shown = ", ".join(f"{name} on {node}" for node, name in names.items())
        raise NowhereError(f"{part} would not be one version on all nodes: {shown}; set the version: setup.yml")
    return names


def label(name: str) -> str:
    """Return the version that people know, of the name of a version, whatever its build (+cpu)."""
    return name.rpartition("-")[0].partition("+")[0]


def failures(nodes: Sequence[str], registered: Mapping[str, Mapping[str, object]], field: str = "") -> dict[str, str]:
    """Return why a task failed, by the node on which it did. It succeeded where it returned `field`."""
    wrong = {}
    for node in nodes:
        result = registered.get(node) or {}
        lost = result.get("failed") or result.get("unreachable") or "changed" not in result
        if lost or (field and field not in result):
            wrong[node] = str(result.get("why") or result.get("msg") or "it failed before")
    return wrong


def difference(paths: Mapping[str, str], was: Mapping[str, str], now: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what --diff shows of the paths that lead to another version."""
    changed = {path: (was[part] and f"{was[part]}\n", f"{now[part]}\n") for part, path in paths.items() if part in was}
    return [
        {"before_header": path, "after_header": path, "before": before, "after": after}
        for path, (before, after) in changed.items()
    ]


def told(was: Mapping[str, str], now: Mapping[str, str], check: bool) -> str:
    """Return a sentence for what changed on a node."""
    pairs = [f"{part} {now[part]} instead of {old}" if old else f"{part} {now[part]}" for part, old in was.items()]
    return ("would use: " if check else "uses: ") + ", ".join(pairs) if pairs else ""
