# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whom the firewalls of a cluster let in. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.choice import candidates, refusal, standing
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.constraints import (
    Constraints,
    check_constraints,
    parse_subnet,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.networks import NodeNet
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.ranking import Candidate
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.steps import read_nodes


class Admission(NamedTuple):
    """Addresses of nodes, which reach all ports; others of theirs, which may log in; whether a network was chosen."""

    addresses: list[str]
    ssh_addresses: list[str]
    settled: bool


def admission(
    names: Sequence[str],
    seen: Mapping[str, Mapping[str, Any]],
    subnet: str,
    nccl_gid: str,
    workers: Collection[str] | None = None,
) -> Admission:
    """Return whom to let in. InputError if no network could be chosen. `workers`: who runs ranks; None for all.

    Single addresses, one of each node in each network: a node cannot have the others let in a whole network. Before the
    choice, all networks have to be open that role fabric is going to test.
    """
    constraints = Constraints(parse_subnet(subnet), nccl_gid)
    nodes = read_nodes(names, seen, names if workers is None else workers)
    if len(nodes) == 1:
        return Admission([], [], True)
    check_constraints(nodes, constraints)
    found, rejections = candidates(nodes, constraints)
    if not found:
        raise refusal(nodes, constraints, {}, rejections)
    chosen = chosen_of(found, nodes) if standing(nodes, constraints) else []
    addresses = {seat.address.ip for candidate in chosen or found for seat in candidate.seats.values()}
    texts = [str(address) for address in sorted(addresses, key=lambda each: (each.version, int(each)))]
    arrivals = sorted({node.arrival for node in nodes if node.arrival} - set(texts))
    return Admission(texts, arrivals, bool(chosen))


def chosen_of(found: Sequence[Candidate], nodes: Sequence[NodeNet]) -> list[Candidate]:
    """Return the network that all nodes have published, if it is one of those that could be chosen."""
    published = {str(node.published.get("network")) for node in nodes}
    return [candidate for candidate in found if {str(candidate.network)} == published]
