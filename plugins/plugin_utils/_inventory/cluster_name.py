# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The name of a cluster whose inventory gives it none: made of the inventory's path once, and kept when that moves.

The cluster's directory of SSH authorities has the name, the nodes, and where the inventory lay at the last setup
(`nodes.json`, written by _ssh/authority.py). An inventory that was moved, here or to another controller with that
directory, is known by its nodes. What a node says is not asked: it could claim another cluster of the same user.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .hostvars import to_plain

AUTHORITIES = "~/.torchfleet/ca"
OF_A_PATH = re.compile(r".*-[0-9a-f]{8}\Z")  # other names were given by people, and are for the inventories with them


class Known(NamedTuple):
    """A cluster that was set up. `nodes`: the address of each node, by name.

    `inventory`: the directory of its inventory, "" if the inventory gives the name, None if an older version did not
    note it.
    """

    name: str
    inventory: str | None
    nodes: Mapping[str, str]

    @property
    def is_free(self) -> bool:
        """Whether another inventory can be its own, moved: it has no name by people, and is not where it was."""
        is_gone = self.inventory is None or (self.inventory != "" and not os.path.isdir(self.inventory))
        return is_gone and bool(OF_A_PATH.match(self.name))

    def shares(self, nodes: Mapping[str, str]) -> bool:
        """Whether one of these nodes has the name or the address of one of its own. One without nodes shares all."""
        own = {*self.nodes, *self.nodes.values()} - {""}
        return not self.nodes or bool(own & {*nodes, *nodes.values()})

    def has(self, nodes: Mapping[str, str]) -> bool:
        """Whether these are its nodes: one set is within the other. An empty address is not known.

        If it is not known that its inventory is gone, none of its nodes may be missing: setup would shut that out.
        """
        both = [(address, nodes[name]) for name, address in self.nodes.items() if name in nodes]
        alike = all(not mine or mine == theirs for theirs, mine in both)
        all_of = (len(self.nodes),) if self.inventory is None else (len(nodes), len(self.nodes))
        return bool(both) and alike and len(both) in all_of


def cluster_name(groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Mapping[str, object]]) -> str:
    """Return the name of an inventory's cluster: torchfleet_cluster, else unnamed()."""
    return text_of(hostvars[groups["head"][0]], "torchfleet_cluster") or unnamed(groups, hostvars)


def unnamed(
    groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Mapping[str, object]], without: str = ""
) -> str:
    """Return the name that an inventory's cluster has by itself. InputError if it can be one of several.

    `without`: the directory that counts where there is no inventory in a file.
    """
    head = hostvars[groups["head"][0]]
    directory = text_of(head, "inventory_dir") or without
    own = text_of(head, "ssh_mesh_directory")
    places = [Path(own)] if own else sorted(Path(AUTHORITIES).expanduser().glob("*"))
    names = dict.fromkeys(name for group in ("head", "workers") for name in groups.get(group, ()))
    return found_name(directory, {name: address_of(name, hostvars[name]) for name in names}, places, bool(own))


def text_of(variables: Mapping[str, object], name: str) -> str:
    """Return a variable as text; "" for one that is not there, or is made of others that are not."""
    try:
        return str(to_plain(variables.get(name)) or "")
    except Exception:  # whatever Ansible raises while it templates: roles have variables that are not known here
        return ""


def address_of(name: str, variables: Mapping[str, object]) -> str:
    """Return the address at which the mesh reaches a node, as far as the inventory has it: that of member_from()."""
    given = text_of(variables, "ssh_mesh_address") or text_of(variables, "ansible_host")
    return given or ("" if text_of(variables, "ansible_connection") == "local" else name)


def found_name(directory: str, nodes: Mapping[str, str], places: Sequence[Path], own: bool = False) -> str:
    """Return the name of the cluster whose inventory is in a directory.

    `places`: where clusters may be known; `own`: the only one is the cluster's own, whatever its nodes are.
    """
    of_path = name_of_path(directory)
    first = [place for place in places if place.name == of_path]
    known = [*clusters_in(first), *clusters_in([place for place in places if place not in first])]
    for cluster in known:
        if cluster.inventory == directory and (own or cluster.shares(nodes)):  # else it is that of another file there
            return cluster.name
    free = [cluster for cluster in known if cluster.is_free]
    if any(cluster.name == of_path for cluster in free):
        return of_path
    moved = sorted({cluster.name for cluster in free if cluster.has(nodes)})
    if len(moved) > 1:
        which = f"these nodes are those of {' and '.join(moved)}: say which of them this is, in the inventory"
        raise InputError("torchfleet_cluster", "", which)
    if moved:
        return moved[0]
    return next(name for name in names_of_path(directory) if name not in {cluster.name for cluster in known})


def name_of_path(directory: str) -> str:
    """Return the name that a directory makes."""
    return next(names_of_path(directory))


def names_of_path(directory: str) -> Iterator[str]:
    """Yield the names that a directory makes: the first may be that of a cluster whose inventory moved away."""
    seen = directory
    while True:
        yield f"{os.path.basename(directory)}-{hashlib.sha256(seen.encode()).hexdigest()[:8]}"
        seen += "/"


def clusters_in(places: Sequence[Path]) -> Iterator[Known]:
    """Yield the clusters that these directories have. A file that cannot be read is none: setup tells of it."""
    for place in places:
        try:
            there = json.loads((place.expanduser() / "nodes.json").read_text())
            nodes = {str(name): str(node["address"]) for name, node in there["nodes"].items()}
            yield Known(str(there["cluster"]), str(there["inventory"]) if "inventory" in there else None, nodes)
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            continue
