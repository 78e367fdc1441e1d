# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Addresses and routes from the kernel itself (rtnetlink(7)): no iproute2, no root, IPv4 and IPv6."""

from __future__ import annotations

import os
import socket
import struct
from typing import Iterator, TypedDict

RTM_NEWADDR, RTM_GETADDR, RTM_NEWROUTE, RTM_GETROUTE, RTM_NEWNEIGH, RTM_GETNEIGH = 20, 22, 24, 26, 28, 30
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
IFA_ADDRESS, IFA_LOCAL, IFA_FLAGS = 1, 2, 8
RTA_DST, RTA_OIF, RTA_PREFSRC = 1, 4, 7
NDA_DST, NDA_CACHEINFO = 1, 3
USER_HZ = 100  # of times that the kernel tells programs, on every architecture that it runs on here
NEIGHBOUR_IN_DOUBT, NEIGHBOUR_GONE = 0x08 | 0x10, 0x01 | 0x20  # delay, probe; incomplete, failed
# An IPv6 address with one of these flags is not stable: temporary, duplicate, deprecated, tentative.
UNSTABLE_IPV6 = 0x01 | 0x08 | 0x20 | 0x40
HEADER, ADDRESS, ROUTE = struct.Struct("=LHHLL"), struct.Struct("=BBBBL"), struct.Struct("=BBBBBBBBL")
ATTRIBUTE, NEIGHBOUR = struct.Struct("=HH"), struct.Struct("=BBHlHBB")


class Address(TypedDict):
    """An address of this node. `index`: of its NIC; `peer`: at the other end of a link of two, else empty."""

    index: int
    address: str
    prefix: int
    peer: str
    stable: bool


def addresses() -> list[Address]:
    """Return the addresses of this node, in the kernel's order."""
    rows = []
    for message in ask(RTM_GETADDR, NLM_F_DUMP, ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0), RTM_NEWADDR):
        row = parse_address(message)
        if row:
            rows.append(row)
    return rows


def parse_address(message: bytes) -> Address | None:
    """Return one address from the payload of an RTM_NEWADDR; None if it is of another family than IPv4 and IPv6."""
    family, prefix, flags, _scope, index = ADDRESS.unpack_from(message)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    found = dict(attributes(message[ADDRESS.size :]))
    local = found.get(IFA_LOCAL, found.get(IFA_ADDRESS, b""))
    peer = found.get(IFA_ADDRESS, local)
    if IFA_FLAGS in found:
        flags = struct.unpack("=L", found[IFA_FLAGS])[0]
    return {
        "index": index,
        "address": socket.inet_ntop(family, local),
        "prefix": prefix,
        "peer": "" if peer == local else socket.inet_ntop(family, peer),
        "stable": family == socket.AF_INET or not flags & UNSTABLE_IPV6,
    }


def route_to(address: str) -> tuple[str, str]:
    """Return the NIC and the source address by which the kernel would send to an address; empty if it has no route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    request = ROUTE.pack(family, 8 * len(packed), 0, 0, 0, 0, 0, 0, 0)
    request += ATTRIBUTE.pack(ATTRIBUTE.size + len(packed), RTA_DST) + packed
    try:
        message = next(ask(RTM_GETROUTE, 0, request, RTM_NEWROUTE))
        found = dict(attributes(message[ROUTE.size :]))
        nic = socket.if_indextoname(struct.unpack("=L", found[RTA_OIF])[0])
    except (OSError, KeyError, StopIteration):
        return "", ""
    return nic, socket.inet_ntop(family, found[RTA_PREFSRC]) if RTA_PREFSRC in found else ""


def neighbour(address: str) -> int | None:
    """Return the state of an address on the link (NUD_*, linux/neighbour.h); None if it is not on one of ours."""
    entry = neighbour_entry(address)
    return entry[0] if entry else None


def neighbour_entry(address: str) -> tuple[int, float] | None:
    """Return the state of an address on the link, and how many seconds ago the machine was last known to be there.

    None if it is not on a link of this node.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    wanted = socket.inet_pton(family, address)
    try:
        for message in ask(RTM_GETNEIGH, NLM_F_DUMP, NEIGHBOUR.pack(family, 0, 0, 0, 0, 0, 0), RTM_NEWNEIGH):
            found = dict(attributes(message[NEIGHBOUR.size :]))
            if found.get(NDA_DST) == wanted:
                confirmed = struct.unpack_from("=L", found[NDA_CACHEINFO])[0] if NDA_CACHEINFO in found else 0
                return int(NEIGHBOUR.unpack_from(message)[4]), confirmed / USER_HZ
    except OSError:
        pass
    return None


def ask(kind: int, flags: int, payload: bytes, answer: int) -> Iterator[bytes]:
    """Send a request and yield the payloads of the answers of a kind. OSError if the kernel refuses."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as channel:
        channel.settimeout(5)
        channel.bind((0, 0))
        channel.send(HEADER.pack(HEADER.size + len(payload), kind, NLM_F_REQUEST | flags, 1, 0) + payload)
        while True:
            for found, message in messages(channel.recv(1 << 17)):
                if found == NLMSG_ERROR:
                    number = -struct.unpack_from("=l", message)[0]
                    raise OSError(number, os.strerror(number))
                if found == NLMSG_DONE:
                    return
                if found == answer:
                    yield message
            if not flags & NLM_F_DUMP:
                return


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and payload of each message in what a netlink socket gave."""
    at = 0
    while at + HEADER.size <= len(data):
        length, kind = HEADER.unpack_from(data, at)[:2]
        if length < HEADER.size:
            return
        yield kind, data[at + HEADER.size : at + length]
        at += (length + 3) & ~3


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and value of each attribute behind the fixed part of a message."""
    at = 0
    while at + ATTRIBUTE.size <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, at)
        if length < ATTRIBUTE.size:
            return
        yield kind, data[at + ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
