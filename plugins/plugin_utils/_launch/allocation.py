# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The allocation: which workers run which ranks, by slots and order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import NodeFacts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node, slots_of

from .launcher_options import (
    LauncherOptions,
)
from .request import Request


@dataclass(frozen=True)
class Place:
    """Where one rank runs."""

    rank: int
    local_rank: int
    host: str


@dataclass(frozen=True)
class Allocation:
    """Which workers run the ranks of a job."""

    workers: tuple[Node, ...]  # those with ranks, in rank order
    slots: Mapping[str, int]  # of every worker, by name
    placement: tuple[Place, ...]
    np_reason: str
    np_source: str  # user or inventory

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the workers with ranks."""
        return tuple(node.name for node in self.workers)

    @property
    def ranks(self) -> Counter[str]:
        """Return the number of ranks of each node, by name: 0 for one without."""
        return ranks_of(self.placement)


def allocate(request: Request, cluster: Cluster, facts: Mapping[str, NodeFacts], gpu_each: str = "") -> Allocation:
    """Return which workers run how many ranks. InputError if there are fewer slots than ranks.

    `gpu_each`: the backend, if it needs a GPU for each rank. A node has no more slots than GPUs then.
    """
    slots = slots_of(cluster.workers, facts, request.ranks_per_node)
    gpus = {name: sum(facts[name]["accelerators"].values()) for name in slots}
    limited = gpu_each if any(gpus[name] < count for name, count in slots.items()) else ""
    if limited:
        slots = {name: min(count, gpus[name]) for name, count in slots.items()}
    world_size, reason, source = count_ranks(request, slots, limited)
    workers = in_order(request.options, cluster.workers, facts)
    placement = place_ranks({node.name: slots[node.name] for node in workers}, world_size, request.options.map_by)
    used = {place.host for place in placement}
    return Allocation(tuple(node for node in workers if node.name in used), slots, placement, reason, source)


def place_ranks(slots: Mapping[str, int], count: int, map_by: str = "slot") -> tuple[Place, ...]:
    """Return the placement: by slot fills each node before the next, by node takes those in turn that have room."""
    seats = [(host, number) for host, room in slots.items() for number in range(room)]
    if map_by == "node":
        seats.sort(key=lambda seat: seat[1])
    return tuple(Place(rank, number, host) for rank, (host, number) in enumerate(seats[:count]))


def ranks_of(placement: Sequence[Place]) -> Counter[str]:
    """Return the number of ranks of each node that has some."""
    return Counter(place.host for place in placement)


def count_ranks(request: Request, slots: Mapping[str, int], limited_by: str = "") -> tuple[int, str, str]:
    """Return the world size, why, and where that comes from. InputError if there are fewer slots.

    `limited_by`: the backend for which nodes have fewer slots than they were given: it needs a GPU for each rank.
    """
    total = sum(slots.values())
    if request.np is None:
        why = f"a rank for each GPU, which {limited_by} needs" if limited_by else "all slots of the workers"
        return total, why, "inventory"
    if request.np > total:
        each = ", ".join(f"{host} has {count}" for host, count in slots.items())
        if limited_by:
            raise InputError("np", request.np, f"{limited_by} needs a GPU for each rank ({each}): use -e np={total}")
        raise InputError("np", request.np, f"there are {total} slots ({each}): use -e np={total} or raise slots")
    return request.np, "asked for", "user"


def in_order(options: LauncherOptions, nodes: Sequence[Node], facts: Mapping[str, NodeFacts]) -> tuple[Node, ...]:
    """Return the workers in rank order: of the inventory, or as torchrun's c10d rendezvous sorts them."""
    if options.rendezvous == "static":
        return tuple(nodes)
    return tuple(sorted(nodes, key=lambda node: address_of(node, facts[node.name])))


def address_of(node: Node, fact: NodeFacts) -> str:
    """Return the address of a node in the proven network, else that of the inventory."""
    return fact["fabric"]["address"] if fact["fabric"] else node.address
