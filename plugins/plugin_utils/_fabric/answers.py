# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What nodes answer about networks, probes and measurements, checked at the border. Pure."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Collection, Mapping
from typing import cast

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.probe import FASTEST
from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.probe_types import Agent
from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.unreached import UnreachedCode
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import (
    BadFrame,
    address,
    flag,
    like,
    listed,
    network,
    number,
    one_of,
    optional,
    whole,
    words,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import FabricSeat
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.node_form import NIC
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import (
    DEVICE,
    DIGEST,
    NIC_NAME,
    TOKEN,
    WORD,
    Check,
    empty_or,
    exact,
    ip,
    short,
    take,
    text_file,
    those,
)

from .fabric_types import (
    FirewallFacts,
    Measured,
    NetworkFacts,
    NicFacts,
    NodeConstraints,
    Published,
    RailMeasured,
    Reached,
)

ADDRESS = exact(
    {"address": ip, "prefix": whole(0, 128), "stable": flag, "route": empty_or(NIC_NAME)},
    {"peer": empty_or(ip)},
)
PCI_PATH = like(re.compile(r"[0-9a-fpci:./]{0,400}\Z"), "a path of PCI devices")
NIC_FACTS = exact(
    {
        "name": NIC_NAME,
        "kind": WORD,
        "mtu": whole(0, 1 << 24),
        "speed_mbit": optional(whole(1, FASTEST)),
        "up": flag,
        "carrier": flag,
        "operstate": WORD,
        "port_of": short(15),
        "addresses": listed(ADDRESS, 1000),
    },
    {"driver": WORD},
)
GID = exact(
    {
        "index": whole(0, 65535),
        "gid": lambda value: str(ipaddress.IPv6Address(ip(value))),
        "type": like(re.compile(r"[A-Za-z0-9 /]{1,20}\Z"), "a kind of GID"),
        "netdev": empty_or(NIC_NAME),
    }
)
PORT_FACTS = exact(
    {
        "device": DEVICE,
        "port": whole(1, 255),
        "active": flag,
        "link_layer": WORD,
        "rate_gbit": optional(number),
        "netdevs": those(NIC_NAME, 256),
        "gids": listed(GID, 4096),
    },
    {
        "node_type": WORD,
        "driver": WORD,
        "use": one_of("", "virtual", "nvswitch"),
        "pci": PCI_PATH,
        "board": short(64),
        "firmware": short(64),
        "width": short(16),
    },
)


def nics(value: object) -> list[NicFacts]:
    """Return the NICs of a node, without those whose names do not fit into a library's option."""
    rows = listed(lambda each: each, 4096)(value)
    fitting = [row for row in rows if not isinstance(row, Mapping) or NIC.match(str(row.get("name")))]
    return [NIC_FACTS(row) for row in fitting]


NETWORKS = exact(
    {
        "host_name": short(255),
        "host_name_addresses": those(ip, 1000),
        "arrival": empty_or(ip),
        "nics": nics,
        "rdma": listed(PORT_FACTS, 256),
        "files": exact({"fabric.json": text_file, "fabric.env": text_file}),
    },
    {"default_nic": empty_or(NIC_NAME), "gpus": listed(PCI_PATH, 256), "rdma_test": flag},
)
AGENT = exact({"port": whole(1, 65535), "token": TOKEN}, {"last_port": whole(1, 65535)})
CONSTRAINTS = exact({}, {"nic": empty_or(short(100)), "address": empty_or(short(100)), "rdma": listed(short(100), 256)})
RAIL = exact(
    {"device": DEVICE, "port": whole(1, 255), "gid_index": optional(whole(0, 65535)), "netdev": empty_or(NIC_NAME)},
    {"address": optional(address), "rate_gbit": optional(number)},
)
SEAT = exact(
    {"nic": NIC_NAME, "address": address, "network": network},
    {"speed_mbit": optional(whole(1, FASTEST)), "same_name": flag},
)
FIREWALL = exact({"kind": one_of("firewalld", "ufw", "nftables", "iptables"), "where": short()})
RAIL_NAME = like(re.compile(r"[\w.-]{1,64}:\d{1,3}\Z"), "an RDMA port")
CODE = {"code": empty_or(one_of(*UnreachedCode))}  # why a connection failed
REJECTED = exact({"nic": short(15), "address": short(64), "reason": words}, {"code": short(40)})
FABRIC = exact(
    {"nic": NIC_NAME, "address": address, "network": network},
    {
        "version": whole(1, 99),
        "mtu": whole(0, 1 << 24),
        "speed_mbit": optional(whole(1, FASTEST)),
        "same_name": flag,
        "rdma": listed(RAIL, 256),
        "rdma_off": words,
        "other_rdma": WORD,
        "nccl_gid": one_of("auto", "always", "never"),
        "why": words,
        "usable": listed(network, 256),
        "digest": DIGEST,
        "rejected": listed(REJECTED, 10_000),
        "daemons": SEAT,
    },
)


def published(text: str) -> Published:
    """Return the fabric.json of a node from its text; an empty dict if it is missing or invalid."""
    try:
        found: Published = FABRIC(json.loads(text))
    except (BadFrame, ValueError, TypeError, OverflowError, RecursionError):
        return cast(Published, {})
    seats: list[Published | FabricSeat] = [found, found["daemons"]] if "daemons" in found else [found]
    fit = all(ipaddress.ip_address(seat["address"]) in ipaddress.ip_network(seat["network"]) for seat in seats)
    return found if fit else cast(Published, {})


def networks_of(node: str, value: object) -> NetworkFacts:
    """Return the networks of a node (module fabric_facts)."""
    found: NetworkFacts = take(node, "networks", NETWORKS, value)
    return found


def agent_of(node: str, value: object) -> Agent:
    """Return port and token of the agent of a node."""
    found: Agent = take(node, "agent", AGENT, value)
    return found


def constraints_of(node: str, value: object) -> NodeConstraints:
    """Return the user's constraints for a node, as the node returned them."""
    found: NodeConstraints = take(node, "constraints", CONSTRAINTS, value or {})
    return found


def reached_of(node: str, value: object, nodes: Collection[str]) -> list[Reached]:
    """Return which of the other nodes this node reports as reached."""
    row = exact(
        {
            "node": one_of(*nodes),
            "network": network,
            "reason": short(300),
            "mtu": optional(whole(0, 1 << 24)),
        },
        CODE,
    )
    return list(take(node, "reached", listed(row, 100_000), value))


def firewalls_of(value: Mapping[str, object] | None) -> dict[str, list[FirewallFacts]]:
    """Return the firewalls of the nodes that say which they have."""
    found: dict[str, list[FirewallFacts]] = {}
    for name, rows in (value or {}).items():
        found[name] = take(name, "firewall", listed(FIREWALL, 16), rows or [])
    return found


def measured_of(node: str, value: object, nodes: Collection[str]) -> list[Measured]:
    """Return the measurements that a node reports. Rows of failed ones have no figures."""
    head = {"node": one_of(*nodes), "network": network, "error": short(300)}
    figures = {"rtt_us": from_zero(1e9), "mbit_out": from_zero(FASTEST), "mbit_in": from_zero(FASTEST)}

    def row(found: object) -> Measured:
        measured: Measured = exact(head, CODE)(found)
        return measured if measured["error"] else exact({**head, **figures}, CODE)(found)

    return list(take(node, "measured", listed(row, 100_000), value or []))


def rails_measured_of(node: str, value: object, nodes: Collection[str]) -> list[RailMeasured]:
    """Return what a node reports of its rails, to those of other nodes. Rows of failed ones have no figures."""
    head = {
        "node": one_of(*nodes),
        "rail": RAIL_NAME,
        "peer": RAIL_NAME,
        "by": one_of("rdma", "tcp"),
        "error": short(300),
        **CODE,
    }
    figures = {"mbit": from_zero(FASTEST), "mtu": optional(whole(0, 1 << 24))}

    def row(found: object) -> RailMeasured:
        measured: RailMeasured = exact(head)(found)
        return measured if measured["code"] else exact({**head, **figures})(found)

    return list(take(node, "rails", listed(row, 100_000), value or []))


def parted(value: object) -> tuple[list[object], list[object]]:
    """Return the measurements of links, and those of rails, of what a node reports."""
    rows: list[object] = value if isinstance(value, list) else []
    of_rails: list[object] = [row for row in rows if isinstance(row, Mapping) and "rail" in row]
    return [row for row in rows if not (isinstance(row, Mapping) and "rail" in row)], of_rails


def from_zero(most: float) -> Check:
    """Return a check of a number from 0 to `most`."""

    def check(value: object) -> float:
        found = number(value)
        if not 0 <= found <= most:
            raise BadFrame(f"a number from 0 to {most:g} was expected")
        return found

    return check
