# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The NICs and RDMA ports of the nodes as typed values. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from .answers import networks_of, published
from .fabric_types import NicFacts, NodeConstraints, PortFacts, Published

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


VERSION = 2  # of fabric.json: since 2 a rejection has a code
# Devices of clouds by their driver: their verbs are no InfiniBand and no RoCE.
CLOUD_DRIVERS = {"efa": "EFA", "mana": "MANA"}


SHOWN = 3  # of a long list, in a message


@dataclass(frozen=True)
class Address:
    """An address of a NIC."""

    ip: Ip
    prefix: int
    stable: bool = True
    route: str = ""  # the NIC over which the kernel sends to its subnet
    first: bool = True  # of the addresses of its NIC: gloo and NCCL use that one

    @property
    def network(self) -> Network:
        """Return its subnet."""
        return ipaddress.ip_network(f"{self.ip}/{self.prefix}", strict=False)

    def __str__(self) -> str:
        return f"{self.ip}/{self.prefix}"


@dataclass(frozen=True)
class Nic:
    """A NIC of a node."""

    name: str
    kind: str
    mtu: int
    speed_mbit: int | None
    up: bool
    carrier: bool
    operstate: str
    port_of: str
    addresses: tuple[Address, ...]
    driver: str = ""


@dataclass(frozen=True)
class Gid:
    """A used entry of the GID table of an RDMA port."""

    index: int
    ip: Ip
    kind: str
    netdev: str


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device."""

    device: str
    port: int
    active: bool
    link_layer: str
    rate_gbit: float | None
    netdevs: tuple[str, ...]
    gids: tuple[Gid, ...]
    node_type: str = "CA"
    driver: str = ""
    use: str = ""  # virtual, nvswitch, or empty
    pci: str = ""  # the way to it from the host bridge

    @property
    def name(self) -> str:
        """Return its name as NCCL and UCX write it."""
        return f"{self.device}:{self.port}"

    @property
    def kind(self) -> str:
        """Return what it is: InfiniBand, RoCE, or one that NCCL's own verbs transport cannot use."""
        if self.driver in CLOUD_DRIVERS:
            return CLOUD_DRIVERS[self.driver]
        if self.node_type == "RNIC":
            return "iWARP"
        return {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}.get(self.link_layer, "unknown")


@dataclass(frozen=True)
class NodeNet:
    """The networks of a node, and the user's constraints for it (empty: none). A worker runs ranks."""

    name: str
    nics: tuple[Nic, ...]
    ports: tuple[Port, ...] = ()
    host_name: str = ""
    host_name_addresses: tuple[str, ...] = ()
    arrival: str = ""
    required_nic: str = ""
    required_address: str = ""
    files: Mapping[str, str] | None = None
    worker: bool = True
    required_rdma: tuple[str, ...] = ()  # patterns of its rails: mlx5_[0-3], mlx5_0:1, or none
    gpus: tuple[str, ...] = ()  # where they are on PCI, as Port.pci
    rdma_test: bool = False  # whether perftest is there

    @property
    def constraints(self) -> str:
        """Return the user's constraints as host variables."""
        pairs = (("fabric_nic", self.required_nic), ("fabric_address", self.required_address))
        return ", ".join(f"{name} of {self.name} is {value}" for name, value in pairs if value)

    @property
    def published(self) -> Published:
        """Return its fabric.json; an empty one if it has none in the current format."""
        found = published((self.files or {}).get("fabric.json") or "{}")
        return found if found.get("version") == VERSION else cast(Published, {})

    def fits(self, nic: Nic, address: Address) -> bool:
        """Whether an address meets the user's constraints."""
        return self.required_nic in ("", nic.name) and self.required_address in ("", str(address.ip))


def node_net(name: str, answer: object, constraints: NodeConstraints | None = None, worker: bool = True) -> NodeNet:
    """Return the networks of a node from torchfleet.cluster.fabric_facts. Raise InputError for an invalid answer.

    `constraints`: the user's constraints for it, as constraints_of() returns them.
    """
    asked = constraints or NodeConstraints()
    facts = networks_of(name, answer)
    return NodeNet(
        name,
        tuple(read_nic(row) for row in facts["nics"]),
        tuple(read_port(row) for row in facts["rdma"]),
        facts["host_name"],
        tuple(facts["host_name_addresses"]),
        facts["arrival"],
        asked.get("nic") or "",
        asked.get("address") or "",
        facts["files"],
        worker,
        tuple(asked.get("rdma") or ()),
        tuple(facts.get("gpus", ())),
        facts.get("rdma_test", False),
    )


def read_nic(row: NicFacts) -> Nic:
    """Return a NIC of the facts."""
    addresses = tuple(
        Address(ipaddress.ip_address(entry["address"]), entry["prefix"], entry["stable"], entry["route"], number == 0)
        for number, entry in enumerate(row["addresses"])
    )
    return Nic(
        name=row["name"],
        kind=row["kind"],
        mtu=row["mtu"],
        speed_mbit=row["speed_mbit"],
        up=row["up"],
        carrier=row["carrier"],
        operstate=row["operstate"],
        port_of=row["port_of"],
        addresses=addresses,
        driver=row.get("driver", ""),
    )


def read_port(row: PortFacts) -> Port:
    """Return an RDMA port of the facts. An IPv4 address stands in a GID as ::ffff:a.b.c.d."""
    gids = []
    for entry in row["gids"]:
        ip = ipaddress.IPv6Address(entry["gid"])
        gids.append(Gid(entry["index"], ip.ipv4_mapped or ip, entry["type"], entry["netdev"]))
    return Port(
        device=row["device"],
        port=row["port"],
        active=row["active"],
        link_layer=row["link_layer"],
        rate_gbit=row["rate_gbit"],
        netdevs=tuple(row["netdevs"]),
        gids=tuple(gids),
        node_type=row.get("node_type", Port.node_type),
        driver=row.get("driver", ""),
        use=row.get("use", ""),
        pci=row.get("pci", ""),
    )


def netdevs_of(port: Port) -> set[str]:
    """Return the NICs of an RDMA port: VLANs and bonds are known by its GIDs only."""
    return {*port.netdevs, *(gid.netdev for gid in port.gids if gid.netdev)}


def all_of(nodes: Sequence[NodeNet]) -> list[tuple[NodeNet, Nic, Address]]:
    """Return every address of every node."""
    return [(node, nic, address) for node in nodes for nic in node.nics for address in nic.addresses]


def some(names: Sequence[str]) -> str:
    """Return the first few of many."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
