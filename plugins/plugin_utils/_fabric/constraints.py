# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The user's constraints on the network and the rails of a cluster, and what no node can meet. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .networks import Network, NodeNet, all_of
from .rails import check_rails
from .rejections import flaw


@dataclass(frozen=True)
class Constraints:
    """The user's constraints on the network of the whole cluster."""

    subnet: Network | None = None
    nccl_gid: str = "auto"


def parse_subnet(text: str) -> Network | None:
    """Return the network of fabric_subnet; None if it is empty."""
    try:
        return ipaddress.ip_network(text, strict=False) if text else None
    except ValueError:
        raise InputError("fabric_subnet", text, "give a network with its prefix, such as 10.92.0.0/24") from None


def check_constraints(nodes: Sequence[NodeNet], constraints: Constraints) -> None:
    """Raise InputError for a constraint that no node's facts can meet."""
    for node in nodes:
        check_node(node, constraints, sum(node.worker for node in nodes))


def check_node(node: NodeNet, constraints: Constraints, workers: int) -> None:
    """Raise InputError for a constraint that a node's facts cannot meet. `workers`: how many the cluster has."""
    check_nic(node)
    check_address(node)
    if node.worker or workers < 2:
        check_subnet(node, constraints.subnet)
    if node.worker:
        check_rails(node)


def check_subnet(node: NodeNet, subnet: Network | None) -> None:
    """Raise InputError if a node has no address in the required network. A head that runs no ranks needs none."""
    rows = all_of([node])
    if subnet is not None and not any(address.ip in subnet for _node, _nic, address in rows):
        has = ", ".join(f"{address} ({nic.name})" for _node, nic, address in rows if not flaw(nic, address, True))
        raise InputError("fabric_subnet", str(subnet), f"{node.name} has no address in it, only {has}")


def check_nic(node: NodeNet) -> None:
    """Raise InputError if the required NIC does not exist or is unusable."""
    nic = next((nic for nic in node.nics if nic.name == node.required_nic), None)
    if not node.required_nic:
        return
    if nic is None:
        able = sorted({nic.name for _node, nic, address in all_of([node]) if not flaw(nic, address, True)})
        name = f"fabric_nic of {node.name}"
        raise InputError(name, node.required_nic, f"there is no such NIC; give one of {', '.join(able)}")
    flaws = [flaw(nic, address, True) for address in nic.addresses]
    if all(flaws):
        why = flaws[0].text if flaws and flaws[0] else "it has no address"
        raise InputError(f"fabric_nic of {node.name}", node.required_nic, f"{why}; name another NIC or leave it out")


def check_address(node: NodeNet) -> None:
    """Raise InputError if the required address does not exist or is unusable."""
    found = [(nic, address) for _node, nic, address in all_of([node]) if str(address.ip) == node.required_address]
    if not node.required_address:
        return
    name = f"fabric_address of {node.name}"
    if not any(node.fits(nic, address) for nic, address in found):
        where = f" of {node.required_nic}" if node.required_nic else ""
        raise InputError(
            name, node.required_address, f"the node has no such address{where}: ip -brief address lists its own"
        )
    reason = flaw(*found[0], True)
    if reason:
        raise InputError(name, node.required_address, f"{reason.text}; name another address or leave it out")


def constraints_of(nodes: Sequence[NodeNet], constraints: Constraints) -> str:
    """Return the user's constraints as options on a command line."""
    subnet = [f"fabric_subnet is {constraints.subnet}"] if constraints.subnet is not None else []
    return ", ".join(subnet + [node.constraints for node in nodes if node.constraints])
