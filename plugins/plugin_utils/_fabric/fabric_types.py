# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The types of what nodes report about their networks, of fabric.json, and of what is sent to the probe.

answers.py checks what comes from nodes: it has the form of each field.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import (
    Fabric,
    FabricSeat,
    RejectedNic,
)

# --- facts of a node (module fabric_facts) --------------------------------------------------------------------------


class AddressFacts(TypedDict):
    """An address of a NIC."""

    address: str
    prefix: int
    stable: bool
    route: str
    peer: NotRequired[str]


class NicFacts(TypedDict):
    """A NIC. `speed_mbit`: Mbit/s, None where the kernel does not know it."""

    name: str
    kind: str
    mtu: int
    speed_mbit: int | None
    up: bool
    carrier: bool
    operstate: str
    port_of: str
    addresses: list[AddressFacts]
    driver: NotRequired[str]


class GidFacts(TypedDict):
    """An entry of the GID table of an RDMA port."""

    index: int
    gid: str
    type: str
    netdev: str


class PortFacts(TypedDict):
    """A port of an RDMA device. `rate_gbit`: Gbit/s, None where the kernel does not know it."""

    device: str
    port: int
    active: bool
    link_layer: str
    rate_gbit: float | None
    netdevs: list[str]
    gids: list[GidFacts]
    node_type: NotRequired[str]
    driver: NotRequired[str]
    use: NotRequired[str]
    pci: NotRequired[str]
    board: NotRequired[str]
    firmware: NotRequired[str]
    width: NotRequired[str]


class NetworkFacts(TypedDict):
    """The networks of a node. `files`: fabric.json and fabric.env, as text."""

    host_name: str
    host_name_addresses: list[str]
    arrival: str
    nics: list[NicFacts]
    rdma: list[PortFacts]
    files: dict[str, str]
    default_nic: NotRequired[str]
    gpus: NotRequired[list[str]]
    rdma_test: NotRequired[bool]


class NodeConstraints(TypedDict, total=False):
    """The user's constraints for a node."""

    nic: str
    address: str
    rdma: list[str]


class FirewallFacts(TypedDict):
    """A firewall that a node has."""

    kind: str
    where: str


# --- fabric.json ----------------------------------------------------------------------------------------------------


class NetworkSeat(FabricSeat, total=False):
    """NIC and address of a node in a network. `speed_mbit`: Mbit/s, None where the kernel does not know it."""

    speed_mbit: int | None


class RejectedAddress(RejectedNic):
    """An address that was not taken, and why."""

    address: str


class Published(Fabric, total=False):
    """The whole fabric.json; jobs read less of it. `mtu`: bytes."""

    version: int
    speed_mbit: int | None
    same_name: bool
    mtu: int
    why: str
    usable: list[str]
    digest: str


# --- the probe (module fabric_probe) --------------------------------------------------------------------------------


class Reached(TypedDict):
    """What a node says of the way to another: `mtu` in bytes, and why it failed."""

    node: str
    network: str
    reason: str
    mtu: int | None
    code: NotRequired[str]


class Measured(TypedDict):
    """What a node measured with another: microseconds, Mbit/s. Failed ones have an error and no figures."""

    node: str
    network: str
    error: str
    code: NotRequired[str]
    rtt_us: NotRequired[float]
    mbit_out: NotRequired[float]
    mbit_in: NotRequired[float]


class RailMeasured(TypedDict):
    """What a node measured of one of its rails: Mbit/s. Failed ones have a code and an error and no figures."""

    node: str
    rail: str
    peer: str
    by: str
    error: str
    code: str
    mbit: NotRequired[float]
    mtu: NotRequired[int | None]
