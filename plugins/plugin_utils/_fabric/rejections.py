# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why a NIC, an address or a network was rejected: every code, its sentence, and what shows them. Pure.

What is wrong with one address by itself is decided here (flaw(), of_host_name()). What depends on other nodes, on tests
or on what the user asked for is decided in choice.py.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.codes import Code
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import RejectedNic

from .fabric_types import RejectedAddress
from .networks import Address, Nic, NodeNet, some


class RejectionCode(Code):
    """Why an address was not taken. Codes stay what they are: fabric.json has them, and jobs decide by them."""

    LOOPBACK = "loopback"
    LINK_LOCAL = "link-local"
    TUNNEL = "tunnel"
    NO_SUBNET = "no-subnet"
    DOWN = "down"
    NO_CARRIER = "no-carrier"
    UNSTABLE = "unstable"
    OWN_NAME = "own-name"
    TWIN = "twin"
    NOT_EVERYWHERE = "not-everywhere"
    OTHER_NIC = "other-nic"
    NOT_REACHED = "not-reached"
    NOT_PREFERRED = "not-preferred"
    ASKED_OTHERWISE = "asked-otherwise"


# What people read. docs/nics.md lists the codes in other words.
SENTENCES: Mapping[RejectionCode, str] = {
    RejectionCode.LOOPBACK: "loopback: reaches only this node",
    RejectionCode.LINK_LOCAL: "link-local: no subnet of its own, and not routed",
    RejectionCode.TUNNEL: "a VPN or tunnel (point-to-point): encrypts or encapsulates packets",
    RejectionCode.NO_SUBNET: "/{prefix}: an address without a subnet, as of VPNs and floating addresses",
    RejectionCode.DOWN: "the NIC is down",
    RejectionCode.NO_CARRIER: "no carrier: nothing is connected to the NIC",
    RejectionCode.UNSTABLE: "a temporary or unconfirmed IPv6 address",
    RejectionCode.OWN_NAME: (
        "/etc/hosts maps {host_name} to this address: reaches only this node, and gloo would announce it"
    ),
    RejectionCode.TWIN: "another node has the same address: a network inside each node, like docker0",
    RejectionCode.NOT_EVERYWHERE: "no usable address in {network} on {nodes}{near}",
    RejectionCode.OTHER_NIC: "this node sends to {network} over {nic}",
    RejectionCode.NOT_REACHED: "{pairs}",
    RejectionCode.NOT_PREFERRED: "usable; {network} is preferred: {criterion}",
    RejectionCode.ASKED_OTHERWISE: "{constraint}",
}
# Rejections without a flaw: a job may use such a NIC if it names it.
WITHOUT_FLAW = (RejectionCode.NOT_PREFERRED, RejectionCode.ASKED_OTHERWISE)


class Reason(NamedTuple):
    """Why an address was not taken: a code for programs and a sentence for people."""

    code: RejectionCode
    text: str


@dataclass(frozen=True)
class Rejection:
    """A rejected address, and the reason."""

    node: str
    nic: str
    address: str
    reason: Reason


def because(code: RejectionCode, **values: object) -> Reason:
    """Return a reason, with the values that its sentence has. KeyError if one is missing: that is a bug."""
    return Reason(code, SENTENCES[code].format(**values))


def flaw(nic: Nic, address: Address, required: bool) -> Reason | None:
    """Return why an address is unusable, or None. An address that the user requires may be on a tunnel."""
    checks = (
        (nic.kind == "loopback" or address.ip.is_loopback, RejectionCode.LOOPBACK),
        (address.ip.is_link_local, RejectionCode.LINK_LOCAL),
        (not required and nic.kind == "tunnel", RejectionCode.TUNNEL),
        (not required and address.prefix == address.ip.max_prefixlen, RejectionCode.NO_SUBNET),
        (not nic.up, RejectionCode.DOWN),
        (not nic.carrier or nic.operstate not in ("up", "unknown"), RejectionCode.NO_CARRIER),
        (not address.stable, RejectionCode.UNSTABLE),
    )
    return next((because(code, prefix=address.prefix) for failed, code in checks if failed), None)


def of_host_name(node: NodeNet) -> list[Rejection]:
    """Return the loopback addresses that /etc/hosts gives the node's own name (127.0.1.1 on Debian)."""
    rows = [text for text in node.host_name_addresses if ipaddress.ip_address(text).is_loopback]
    reason = because(RejectionCode.OWN_NAME, host_name=node.host_name)
    return [Rejection(node.name, "lo", address, reason) for address in rows]


def worth_a_line(nic: Nic, address: Address) -> bool:
    """Whether a rejection is worth showing: every IPv6 NIC has a link-local address, bridge ports come and go."""
    alone = address.ip.version == 6 and address.ip.is_link_local and len(nic.addresses) > 1
    return not alone and not (nic.port_of and address.ip.is_link_local)


def rejected_of(rejections: Iterable[Rejection], name: str) -> list[RejectedNic]:
    """Return every rejected address of a node as rows of its fabric.json, with the reason as code and text."""
    rows = [(row.nic, row.address, row.reason) for row in rejections if row.node == name]
    return [
        RejectedAddress(nic=nic, address=address, code=code.value, reason=text)
        for nic, address, (code, text) in sorted(rows)
    ]


def without_network(rejections: Sequence[Rejection]) -> list[str]:
    """Return the rejections of addresses other than loopback, one for each reason."""
    first: dict[str, list[Rejection]] = defaultdict(list)
    for row in rejections:
        if not ipaddress.ip_interface(row.address).is_loopback:
            first[row.reason.text].append(row)
    names = {reason: [f"{row.address} ({row.nic} of {row.node})" for row in rows] for reason, rows in first.items()}
    return [f"{some(rows)}: {reason}" for reason, rows in names.items()]
