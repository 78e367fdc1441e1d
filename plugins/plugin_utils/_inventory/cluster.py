# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The machines of an inventory as plain values, and the checks of a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Seat
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.containers import NO_CONTAINER, ContainerSetting
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

Facts = Seat
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?\Z")


@dataclass(frozen=True)
class Node:
    """A machine of the inventory. Empty texts and None mean that the node's own value is used."""

    name: str
    address: str
    local: bool = False
    slots: int | None = None
    home: str = ""
    python: str = ""
    launcher_paths: Mapping[str, str] = field(default_factory=dict)
    interpreter: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    vaulted: frozenset[str] = frozenset()  # names in env whose values come from a vault
    container: ContainerSetting = NO_CONTAINER  # the image that ranks run in


@dataclass(frozen=True)
class Cluster:
    """The nodes of a job: the head runs the launcher, the workers run ranks."""

    head: Node
    workers: tuple[Node, ...]

    @property
    def local(self) -> bool:
        """Whether this machine is the whole cluster."""
        return self.head.local and all(node.name == self.head.name for node in self.workers)

    @property
    def has_images(self) -> bool:
        """Whether ranks of any node run in an image."""
        return any(node.container.image for node in (self.head, *self.workers))


def check_cluster(cluster: Cluster) -> None:
    """Raise InputError for invalid or duplicate hosts and addresses."""
    seen: dict[str, str] = {}
    for node in (cluster.head, *cluster.workers):
        if not HOST_NAME.match(node.name):
            raise InputError("inventory", node.name, "a host name consists of letters, digits, '.', '-' and '_'")
        if not ADDRESS.match(node.address):
            raise InputError(
                f"ansible_host of {node.name}", node.address, "give a host name or an address, without user or options"
            )
        if seen.setdefault(node.address, node.name) != node.name:
            both = f"{seen[node.address]} and {node.name} both have {node.address}"
            raise InputError("inventory", both, "list each machine once; set its slots for several ranks")


def slots_of(nodes: Sequence[Node], facts: Mapping[str, Facts], most: int | None = None) -> dict[str, int]:
    """Return the slots of each worker, at most `most`: from the inventory, else its accelerators, else its cores."""
    slots = {
        node.name: node.slots or sum(facts[node.name]["accelerators"].values()) or facts[node.name]["cores"]
        for node in nodes
    }
    return {name: min(count, most or count) for name, count in slots.items()}
