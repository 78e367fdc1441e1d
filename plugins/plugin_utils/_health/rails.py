# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""verify.yml: findings about the rails and addresses of the workers, from what the nodes say now. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.choice import daemons_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.networks import NodeNet
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.rails import (
    RailCode,
    check_rails,
    gid_of,
    rails_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .findings import Finding, Rule, found

FABRIC = "ansible-playbook setup.yml --tags fabric"
FEWER = "an all-reduce waits for the node with the fewest and the slowest rails"
SAY_SO = "or, if this is intended, name the rails in the inventory: fabric_rdma: [...]"

RULES: Mapping[str, Rule] = {
    "TF-RDMA-OFF": Rule(
        "error",
        "RDMA is off, because not all workers have it",
        "training over TCP is many times slower",
        "NCCL and UCX need it on all nodes of a job",
        f"repair it, or set fabric_rdma: [none] for all nodes if that is meant; then {FABRIC}",
    ),
    "TF-RDMA-MIXED": Rule(
        "error",
        "the workers have rails that do not fit together",
        "InfiniBand and RoCE do not reach each other",
        "two link layers",
        f"name the rails, fabric_rdma: [mlx5_0, mlx5_1]; then {FABRIC}",
    ),
    "TF-RAIL-DOWN": Rule(
        "error",
        "a rail that other nodes have does not work",
        FEWER,
        "compared with the other workers",
        f"check cable, switch and firmware of that port; {SAY_SO}; then {FABRIC}",
    ),
    "TF-RAIL-MISSING": Rule(
        "error",
        "a rail that other nodes have is not there",
        FEWER,
        "compared with the other workers",
        f"check the card and its driver: dmesg | grep mlx5; {SAY_SO}; then {FABRIC}",
    ),
    "TF-RAIL-SLOW": Rule(
        "warning",
        "a rail is slower than those of the other nodes",
        FEWER,
        "compared with the other workers",
        "check cable and switch port: ibstat, or ethtool <NIC>",
    ),
    "TF-RAIL-COUNT": Rule(
        "warning",
        "fabric_rdma names fewer or more rails than other nodes have",
        FEWER,
        "compared with the other workers",
        "name as many on each node",
    ),
    "TF-RAIL-CHANGED": Rule(
        "error",
        "the rails are not those that role fabric published",
        "NCCL would be told a device or an address that is no longer there",
        "fabric.json, compared with the node",
        FABRIC,
    ),
    "TF-RDMA-LEFT-OUT": Rule(
        "info",
        "RDMA devices that are not used as rails",
        "they may have been left out by mistake",
        "docs/nics.md",
        SAY_SO,
    ),
    "TF-RDMA-OTHER": Rule(
        "info",
        "a device that is neither InfiniBand nor RoCE",
        "NCCL needs a plugin for it, or uses TCP",
        "the device's driver",
        "install what its cloud says for NCCL, or nothing if TCP is enough",
    ),
    "TF-VERIFY-ADDRESS": Rule(
        "error",
        "a node no longer has the address that was chosen",
        "a job would wait for it until its timeout",
        "fabric.json, compared with the node: a reboot or DHCP changed it",
        "ansible-playbook setup.yml --tags ssh_mesh,fabric,hostfile",
    ),
}
OF_CODES = {
    RailCode.RDMA_OFF: "TF-RDMA-OFF",
    RailCode.RAIL_DOWN: "TF-RAIL-DOWN",
    RailCode.RAIL_MISSING: "TF-RAIL-MISSING",
    RailCode.RAIL_SLOW: "TF-RAIL-SLOW",
    RailCode.RAIL_COUNT: "TF-RAIL-COUNT",
    RailCode.LEFT_OUT: "TF-RDMA-LEFT-OUT",
    RailCode.OTHER_RDMA: "TF-RDMA-OTHER",
}


def judge_rails(nets: Sequence[NodeNet]) -> Iterator[Finding]:
    """Yield the findings about the rails of the workers, and about addresses of all nodes."""
    for node in nets:
        gone = missing_address(node)
        if gone:
            yield found(RULES, "TF-VERIFY-ADDRESS", [node.name], gone)
    workers = [node for node in nets if node.worker]
    for node in workers:
        try:
            check_rails(node)
        except InputError as error:
            yield found(RULES, "TF-RAIL-MISSING", [node.name], str(error))
            return
        for text in changed_rails(node):
            yield found(RULES, "TF-RAIL-CHANGED", [node.name], text)
    try:
        rails = rails_of(workers)
    except InputError as error:
        yield found(RULES, "TF-RDMA-MIXED", [], str(error))
        return
    for note in rails.notes:
        yield found(RULES, OF_CODES[note.code], note.nodes, note.text)


def missing_address(node: NodeNet) -> str:
    """Return which published address a node no longer has, and what its NIC has instead; empty if it has all."""
    here = {str(address.ip): nic.name for nic in node.nics for address in nic.addresses}
    fabric = node.published
    for seat in (fabric, daemons_of(fabric)) if fabric else ():
        if seat["address"] not in here:
            now = ", ".join(ip for ip, name in here.items() if name == seat["nic"]) or "none"
            return f"{seat['address']} on {seat['nic']} is gone; that NIC has {now}"
    return ""


def changed_rails(node: NodeNet) -> Iterator[str]:
    """Yield which published rails a node no longer has as they were published."""
    ports = {port.name: port for port in node.ports}
    for row in node.published.get("rdma", []):
        port = ports.get(f"{row['device']}:{row['port']}")
        if port is None:
            yield f"{row['device']}:{row['port']} is not there"
        elif row["gid_index"] is not None:
            gid = next((gid for gid in port.gids if gid.index == row["gid_index"]), None)
            if gid is None or row.get("address") not in (None, str(gid.ip)):
                now = gid_of(port)
                has = f"has {now.ip} at {now.index}" if now else "has no address"
                yield f"{port.name} {has}, not {row.get('address')} at {row['gid_index']}"
