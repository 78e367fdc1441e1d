# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The addresses that the firewalls of a cluster let in. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.choice import (
    candidates,
    daemons_of,
    refusal,
    standing,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.constraints import (
    Constraints,
    check_constraints,
    parse_subnet,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.networks import NodeNet
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.ranking import Candidate
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.steps import read_nodes


class Admitted(NamedTuple):
    """Addresses that the firewall of a node lets in at all ports, and others of the nodes, which may log in."""

    addresses: list[str]
    ssh_addresses: list[str]


class Admission(NamedTuple):
    """The addresses that the firewall of each node lets in. `settled`: they are of a network that was chosen."""

    admitted: dict[str, Admitted]
    settled: bool


def admission(
    names: Sequence[str],
    seen: Mapping[str, Mapping[str, object]],
    subnet: str,
    nccl_gid: str,
    workers: Collection[str] | None = None,
) -> Admission:
    """Return the addresses that may connect. InputError if no network could be chosen. `workers`: None for all nodes.

    Single addresses, one of each node in each network: a node cannot have the others let in a whole network. Before the
    choice, all networks have to be open that role fabric is going to test.
    """
    constraints = Constraints(parse_subnet(subnet), nccl_gid)
    nodes = read_nodes(names, seen, names if workers is None else workers)
    if len(nodes) == 1:
        return Admission({}, True)
    check_constraints(nodes, constraints)
    found, rejections = candidates(nodes, constraints)
    if not found:
        raise refusal(nodes, constraints, {}, rejections)
    chosen = chosen_before(nodes, constraints) if standing(nodes, constraints) else {}
    if len(chosen) == len(nodes):
        return Admission(chosen, True)
    every = admitted(nodes, found)
    return Admission(dict.fromkeys(names, every), False)


def chosen_admission(
    names: Sequence[str],
    seen: Mapping[str, Mapping[str, object]],
    subnet: str,
    nccl_gid: str,
    workers: Collection[str] | None = None,
) -> Admission:
    """Return whom to let in by what the nodes have published, be it of now or of an earlier run. Arguments as above."""
    nodes = read_nodes(names, seen, names if workers is None else workers)
    chosen = chosen_before(nodes, Constraints(parse_subnet(subnet), nccl_gid))
    return Admission(chosen, len(chosen) == len(nodes))


def chosen_before(nodes: Sequence[NodeNet], constraints: Constraints) -> dict[str, Admitted]:
    """Return, for each node that shares a published network with another, whom it lets in.

    A published address proves nothing, for a node writes what it likes: it counts if it is in a network that all who
    have published it are in.
    """
    found: dict[str, list[Candidate]] = {}
    for network in sorted({network for node in nodes for network in published_by(node)}):
        members = [node for node in nodes if network in published_by(node)]
        shared = candidates(members, constraints)[0] if len(members) > 1 else []
        for candidate in shared:
            for node in members if str(candidate.network) == network else ():
                found.setdefault(node.name, []).append(candidate)
    members = [node for node in nodes if node.name in found]
    return {name: admitted(members, networks) for name, networks in found.items()}


def published_by(node: NodeNet) -> set[str]:
    """Return the networks that a node has published: that of its ranks, and that of the daemons if it is another."""
    fabric = node.published
    return {str(seat["network"]) for seat in (fabric, daemons_of(fabric)) if seat}


def admitted(nodes: Sequence[NodeNet], networks: Sequence[Candidate]) -> Admitted:
    """Return the addresses of all seats in some networks, and by which others the nodes are reached."""
    addresses = {seat.address.ip for network in networks for seat in network.seats.values()}
    texts = [str(address) for address in sorted(addresses, key=lambda each: (each.version, int(each)))]
    return Admitted(texts, sorted({node.arrival for node in nodes if node.arrival} - set(texts)))
