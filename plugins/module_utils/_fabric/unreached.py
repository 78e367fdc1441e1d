# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why another node is not reached, as a code and in words: a firewall is told from a cut link."""

from __future__ import annotations

import errno
import socket
import struct
import time

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.codes import Code

from .netlink import NEIGHBOUR_GONE, NEIGHBOUR_IN_DOUBT, neighbour, neighbour_entry

KNOWN_SECONDS = 60.0  # after which it no longer believes, without asking, that one is there: 45, and the 8 below
LINK_SECONDS = 10.0  # in which the kernel finds out whether a neighbour is still there: 5 of delay, 3 of probes


class UnreachedCode(Code):
    """Why a node is not reached, or a rail not tried. Nodes send codes, findings follow from them: they stay."""

    REFUSED = "refused"
    NO_ROUTE = "no-route"
    REJECTED = "rejected"
    OWN_FIREWALL = "own-firewall"
    DROPPED = "dropped"
    NO_NEIGHBOUR = "no-neighbour"
    NO_HOST = "no-host"
    SILENT = "silent"
    NO_CARRIER = "no-carrier"
    OTHER_NIC = "other-nic"
    OTHER_ADDRESS = "other-address"
    NOT_UNIQUE = "not-unique"
    REWRITTEN = "rewritten"
    SMALL_MTU = "small-mtu"
    FAILED = "failed"
    NOT_READY = "not-ready"
    NO_TOOL = "no-tool"
    RDMA_LOST = "rdma-lost"


# Of what a firewall stopped.
BY_FIREWALL = (UnreachedCode.REJECTED, UnreachedCode.DROPPED, UnreachedCode.OWN_FIREWALL)
# By the error of a connection: a code, and what it means.
CODES = {
    errno.ECONNREFUSED: (UnreachedCode.REFUSED, "refused: a firewall rejects it, or another machine has the address"),
    errno.ENETUNREACH: (UnreachedCode.NO_ROUTE, "no route to that network"),
    errno.EACCES: (UnreachedCode.REJECTED, "a firewall rejects it (permission denied)"),
    errno.EPERM: (UnreachedCode.OWN_FIREWALL, "this node's own firewall drops what it sends (operation not permitted)"),
}
# An ICMP error of a firewall (RFC 1812, 5.2.7.1) and a neighbour that is not there are the same error to a program.
ON_THE_LINK = "though the machine answers on the link"
UNREACHABLE = {
    True: (UnreachedCode.REJECTED, f"a firewall rejects it (no route to host, {ON_THE_LINK})"),
    False: (UnreachedCode.NO_NEIGHBOUR, "no answer on the link (no route to host)"),
    None: (UnreachedCode.REJECTED, "a firewall or a router rejects it (no route to host)"),
}
# What a router says by ICMP when it asked for the machine on its link and got no answer (RFC 1812, 5.2.7.1). A firewall
# says that it is prohibited, with other codes.
NO_HOST = 1
NOBODY = (UnreachedCode.NO_HOST, "a router finds no machine with that address: a cut link, or a machine that is off")
RECVERR, EXTENDED_ERROR = 11, struct.Struct("=LBBBBLL")  # ip(7): IP_RECVERR, struct sock_extended_err
OF_ICMP = 2  # its origin
DISCARD = 9  # the port of no service (RFC 863)
SILENT = {
    True: (UnreachedCode.DROPPED, f"{ON_THE_LINK}: a firewall drops it"),
    False: (UnreachedCode.NO_NEIGHBOUR, "nor on the link: a cut link, or a machine that is off"),
    None: (UnreachedCode.SILENT, "a firewall, a cut link, or another network with the same addresses"),
}


class Unreached(Exception):
    """A peer failed the test: a code, and the reason."""

    def __init__(self, code: UnreachedCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class FromRouter(OSError):
    """A connection that failed because of an ICMP error: its code."""

    def __init__(self, error: OSError, icmp: int) -> None:
        super().__init__(error.errno, error.strerror)
        self.icmp = icmp


def connect(address: str, port: int, seconds: float, source: str = "") -> socket.socket:
    """Return a connection. Raise OSError, FromRouter if a router or the machine itself refused it by ICMP (IPv4)."""
    connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_IP, RECVERR, 1)
        connection.settimeout(seconds)
        if source:
            connection.bind((source, 0))
        connection.connect((address, port))
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_IP, RECVERR, 0)  # later errors are TCP's matter
        return connection
    except OSError as error:
        # With a timeout Python asks an empty queue until that is over, for poll(2) finds a socket with an error ready.
        connection.setblocking(False)
        icmp = None if isinstance(error, socket.timeout) else icmp_code(connection)
        connection.close()
        raise (error if icmp is None else FromRouter(error, icmp)) from None


def icmp_code(connection: socket.socket) -> int | None:
    """Return the code of the ICMP error (destination unreachable) that ended a connection; None if there was none.

    Linux 5.9 and newer tell it of TCP.
    """
    try:
        _data, ancillary, _flags, _address = connection.recvmsg(1, 1024, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
    except OSError:
        return None
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, RECVERR) and len(data) >= EXTENDED_ERROR.size:
            _errno, origin, _type, code, *_rest = EXTENDED_ERROR.unpack_from(data)
            return int(code) if origin == OF_ICMP else None
    return None


def in_words(error: Exception, seconds: float, address: str) -> tuple[UnreachedCode, str]:
    """Return a code and the reason why a connection failed."""
    if isinstance(error, socket.timeout):
        return no_answer(seconds, on_link(address) if address else None)
    if isinstance(error, OSError) and error.errno == errno.EHOSTUNREACH:
        there = on_link(address)
        is_router = there is None and isinstance(error, FromRouter) and error.icmp == NO_HOST
        return NOBODY if is_router else UNREACHABLE[there]
    if isinstance(error, OSError):
        return CODES.get(error.errno or 0, (UnreachedCode.FAILED, error.strerror or str(error)))
    return UnreachedCode.NOT_UNIQUE, "another program answers at this address: the address is not unique"


def no_answer(seconds: float, there: bool | None) -> tuple[UnreachedCode, str]:
    """Return a code and the reason of a connection that got no answer. `there`: whether the machine is on the link."""
    code, why = SILENT[there]
    joined = ", " if code in (UnreachedCode.DROPPED, UnreachedCode.NO_NEIGHBOUR) else ": "
    return code, f"no answer within {seconds:g} s{joined}{why}"


def on_link(address: str, seconds: float = LINK_SECONDS) -> bool | None:
    """Return whether the machine answers the kernel's own questions for it, which no firewall drops (ARP, NDP).

    None if it is not on a link of this node. The kernel believes for some seconds what it knew: as soon as it has
    doubts, this waits for the result.
    """
    end = time.monotonic() + seconds
    state = neighbour(address)
    while state and state & NEIGHBOUR_IN_DOUBT and time.monotonic() < end:
        time.sleep(0.2)
        state = neighbour(address)
    return None if state is None else not state & NEIGHBOUR_GONE


def is_there(address: str, since: float, seconds: float = KNOWN_SECONDS) -> bool | None:
    """Return whether a machine answers on the link now: whether the kernel heard of it after `since` (monotonic).

    Soon after a cut the kernel believes what it knew: it does not ask again for half a minute. As long as something is
    sent to the address, it asks when that is over. None if the address is not on a link of this node.
    """
    end = time.monotonic() + seconds
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as nudge:
        nudge.setblocking(False)
        while True:
            entry = neighbour_entry(address)
            if entry is None or entry[0] & NEIGHBOUR_GONE:
                return None if entry is None else False
            if entry[1] < time.monotonic() - since or time.monotonic() > end:
                return True
            try:
                nudge.sendto(b"", (address, DISCARD))
            except OSError:
                pass
            time.sleep(0.5)
