# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Preflight of what is asked of role fabric: a network, NICs, addresses and rails that the nodes do not have. Pure.

The rules are those of role fabric, which comes after packages, keys and firewalls were changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.answers import constraints_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.constraints import (
    Constraints,
    check_node,
    parse_subnet,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.networks import NodeNet, node_net
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.rails import rails_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .facts_types import Facts
from .findings import Finding, found
from .preflight_rules import RULES
from .preflight_types import Target


def network_findings(
    targets: Sequence[Target], facts: Mapping[str, Facts], asked: Mapping[str, object], subnet: str
) -> Iterator[Finding]:
    """Yield what role fabric would refuse of what it is asked for. `facts` of the nodes that answered, as `asked`.

    `asked`: as hostvars.asked_of_fabric() returns it. `subnet`: fabric_subnet.
    """
    workers = [target.name for target in targets if target.worker]
    nodes = []
    try:
        constraints = Constraints(parse_subnet(subnet))
    except InputError as error:
        yield asked_for([], error)
        return
    for name, fact in facts.items():
        networks = fact.get("networks")
        if networks is None:
            continue
        try:
            nodes.append(node_net(name, networks, constraints_of(name, asked[name]), name in workers))
            check_node(nodes[-1], constraints, len(workers))
        except InputError as error:
            yield asked_for([name], error)
    if 1 < len(nodes) == len(targets):  # role fabric needs all
        yield from mixed_rails(nodes)


def mixed_rails(nodes: Sequence[NodeNet]) -> Iterator[Finding]:
    """Yield why the rails of the workers cannot be chosen, if they cannot."""
    try:
        rails_of(nodes)
    except InputError as error:
        yield asked_for([node.name for node in nodes if node.worker], error)


def asked_for(names: Sequence[str], error: InputError) -> Finding:
    """Return the finding for what role fabric would say."""
    return found(RULES, "TF-FABRIC-ASKED", names, str(error))
