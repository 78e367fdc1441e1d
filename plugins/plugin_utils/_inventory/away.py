# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The nodes of an inventory that a run is about: those of `head` and `workers`, without those that are away. Pure.

Those are away that variable `away` names (-e away=n7,n9), and those of group `away`: machines that are broken, or not
there yet. Nothing waits for them, and nothing is changed on them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import parse_flag

from .hostvars import to_plain

Groups = Mapping[str, Sequence[str]]


def every_node(groups: Groups) -> list[str]:
    """Return the nodes of head and workers, each once."""
    return list(dict.fromkeys([*groups.get("head", ()), *groups.get("workers", ())]))


def names_in(title: str, value: object, groups: Groups) -> list[str]:
    """Return the node names in a text with commas, or in a list of such. Raise InputError for one that is no node."""
    plain = to_plain(value)
    words = plain.split(",") if isinstance(plain, str) else []
    names = [word.strip() for word in words if word.strip()]
    known = every_node(groups)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(title, unknown[0], f"there is no such node: give some of {', '.join(known)}")
    if not isinstance(plain, (str, list)) and plain is not None:
        raise InputError(title, plain, f"give names of nodes: {title}={','.join(known[:2])}")
    more = [name for item in (plain if isinstance(plain, list) else ()) for name in names_in(title, item, groups)]
    return list(dict.fromkeys([*names, *more]))


def without_away(groups: Groups, away: object) -> dict[str, list[str]]:
    """Return the groups without the nodes that are away; `away`: the variable. Raise InputError if the head is."""
    gone = {*names_in("away", away, groups), *groups.get("away", ())}
    heads = [name for name in groups.get("head", ()) if name in gone]
    if heads:
        raise InputError("away", heads[0], "nothing works without the head: name another machine in group head")
    return without(groups, gone)


def without(groups: Groups, gone: Collection[str]) -> dict[str, list[str]]:
    """Return the groups without some nodes."""
    return {name: [node for node in nodes if node not in gone] for name, nodes in groups.items()}


def removed(groups: Groups, nodes: object, away: object) -> list[str]:
    """Return the nodes that remove.yml removes: `nodes`, else all that are not away.

    Raise InputError if the head is among some of the nodes.
    """
    named = names_in("nodes", nodes, groups)
    heads = [name for name in groups.get("head", ()) if name in named]
    if heads and set(named) != set(every_node(groups)):
        raise InputError("nodes", heads[0], "the others need the head: remove all (no -e nodes=...), or other nodes")
    return named or every_node(without_away(groups, away))


def asked(groups: Groups, nodes: object, away: object, shut_out: object) -> list[str]:
    """Return the nodes that remove.yml asks, and changes: those that it removes, but none that is shut out.

    Raise InputError for anything but true or false, and where it does not say which nodes.
    """
    going = removed(groups, nodes, away)
    if not parse_flag("shut_out", to_plain(shut_out)):
        return going
    if not names_in("nodes", nodes, groups) or not staying(groups, nodes, away):
        raise InputError("shut_out", True, "say which nodes the others shut out: -e nodes=n3")
    return []


def staying(groups: Groups, nodes: object, away: object) -> list[str]:
    """Return the nodes that stay where remove.yml removes `nodes`; none if it removes all."""
    named = removed(groups, nodes, away)
    if not names_in("nodes", nodes, groups):
        return []
    return [name for name in every_node(without_away(groups, away)) if name not in named]


def groups_of(variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the groups of a task without the nodes that are away. Raise InputError if the head is."""
    away = variables["hostvars"][variables["inventory_hostname"]].get("away")
    return without_away(to_plain(variables["groups"]), away)
