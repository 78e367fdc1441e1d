# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The test of every rail between every two nodes: which rails face each other, how each is tested, and when. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.probe_types import (
    Agent,
    FullLinkStep,
    LinkStep,
    RailStep,
    RailTest,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Fabric
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Port as Rail

from .fabric_types import RailMeasured
from .link_matrix import rounds
from .networks import Ip, NodeNet
from .publication import rails_in_use

SECONDS = 0.1  # of a measurement by TCP
ROUND_SECONDS = {"rdma": 3.0, "tcp": 1.0}  # of one direction of all rails of a pair: two programs on either side each
BUDGET = 240.0  # seconds for all rounds: where there are more nodes, each is tested with some others only


@dataclass(frozen=True)
class Seat:
    """A published rail of a node: its port, whether the node can test RDMA, and its place in TCP if it has one.

    `nic` is empty if TCP does not go over it, and `why` says why.
    """

    rail: str
    port: Mapping[str, str | int | None]
    tool: bool
    nic: str = ""
    address: Ip | None = None
    mtu: int = 0
    why: str = ""


class Untested(NamedTuple):
    """Two rails that nothing tests: node and rail of both, and why."""

    node: str
    rail: str
    other: str
    peer: str
    why: str


class Plan(NamedTuple):
    """The steps of each node, pairs of rails without a test, and pairs of nodes that there is no time for."""

    steps: dict[str, list[RailStep]]
    untested: tuple[Untested, ...]
    left_out: int


def seats_of(fabric: Fabric, net: NodeNet) -> list[Seat]:
    """Return the rails that a job on a node uses."""
    return [seat_of(row, net) for row in rails_in_use(fabric)]


def seat_of(row: Rail, net: NodeNet) -> Seat:
    """Return a rail of fabric.json beside what the node has now."""
    port: dict[str, str | int | None] = {"device": row["device"], "port": row["port"], "gid_index": row["gid_index"]}
    rail = f"{row['device']}:{row['port']}"
    nic = next((each for each in net.nics if each.name == row["netdev"]), None)
    own = [address for address in (nic.addresses if nic else ()) if not address.ip.is_link_local and address.stable]
    chosen = next((address for address in own if str(address.ip) == row.get("address")), next(iter(own), None))
    if nic is None or chosen is None:
        return Seat(rail, port, net.rdma_test, why="it has no address")
    # That of a NIC without a link may be another one. It is tested all the same, and said to be cut.
    if chosen.route not in ("", nic.name) and nic.up and nic.carrier:
        why = f"the kernel sends to its subnet by {chosen.route}"
        return Seat(rail, port, net.rdma_test, why=why)
    return Seat(rail, port, net.rdma_test, nic.name, chosen.ip, nic.mtu)


def facing(one: Sequence[Seat], other: Sequence[Seat]) -> list[tuple[Seat, Seat]]:
    """Return the rails of two nodes that face each other: those of one name, then the others in their order."""
    names = {seat.rail: seat for seat in other}
    same = [(seat, names[seat.rail]) for seat in one if seat.rail in names]
    taken = {seat.rail for seat, _other in same}
    rest = [[seat for seat in seats if seat.rail not in taken] for seats in (one, other)]
    return [*same, *zip(*rest, strict=False)]


def how(one: Seat, other: Seat, control: str) -> tuple[str, str]:
    """Return rdma or tcp, or an empty text and why neither is possible."""
    if one.tool and other.tool and ipaddress.ip_address(control).version == 4:  # perftest finds its server by IPv4
        return "rdma", ""
    if one.address and other.address and one.address.version == other.address.version:
        return "tcp", ""
    why = one.why or other.why or "their addresses are of different families"
    return "", f"{why}, and perftest (ib_write_bw) is not on both nodes"


def order_of(one: Seat, other: Seat, by: str) -> RailTest:
    """Return the test of a rail from `one` to `other`, as module_utils/_fabric/rail_probe.py takes it."""
    names: RailTest = {"rail": one.rail, "peer": other.rail, "by": by}
    if by == "rdma":
        return {**names, "own": dict(one.port), "other": dict(other.port)}
    mtu = min(one.mtu, other.mtu)
    return {**names, "nic": one.nic, "source": str(one.address), "address": str(other.address), "mtu": mtu}


def directions(names: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield the rounds: all pairs of a round in one direction, then in the other."""
    for pairs in rounds(names):
        yield pairs
        yield [(two, one) for one, two in pairs]


def plan_rails(
    seats: Mapping[str, Sequence[Seat]],
    addresses: Mapping[str, str],
    agents: Mapping[str, Agent],
    begin: int = 0,
) -> Plan:
    """Return the test of the rails of these nodes. `addresses`: where their agents are; `begin`: the first round."""
    names = [name for name in addresses if seats.get(name)]
    steps: dict[str, list[RailStep]] = {name: [] for name in names}
    untested: dict[Untested, None] = {}
    spent, number, left_out = 0.0, begin, 0
    for pairs in directions(names):
        tests = {}
        for client, server in pairs:
            tests[client, server] = tests_of(client, server, seats, addresses[server], untested)
        cost = max((ROUND_SECONDS[row["by"]] for rows in tests.values() for row in rows), default=0.0)
        if cost and spent + cost > BUDGET:
            left_out += len(pairs)
            continue
        spent += cost
        for (client, server), rails in tests.items():
            if rails:
                steps[client].append(
                    {
                        "round": number,
                        "seconds": SECONDS,
                        "rails": rails,
                        "role": "client",
                        "node": server,
                        "address": addresses[server],
                        **agents[server],
                    }
                )
                steps[server].append(
                    {"round": number, "seconds": SECONDS, "rails": rails, "role": "server", "node": client}
                )
        number += 1
    return Plan({name: own for name, own in steps.items() if own}, tuple(untested), left_out)


def tests_of(
    client: str, server: str, seats: Mapping[str, Sequence[Seat]], control: str, untested: dict[Untested, None]
) -> list[RailTest]:
    """Return the tests of all rails from a node to another. Those that nothing tests are added to `untested`, once."""
    rows = []
    for one, other in facing(seats[client], seats[server]):
        by, why = how(one, other, control)
        known = Untested(server, other.rail, client, one.rail, why)
        if by:
            rows.append(order_of(one, other, by))
        elif known not in untested:
            untested[Untested(client, one.rail, server, other.rail, why)] = None
    return rows


def unreported(
    steps: Mapping[str, Sequence[LinkStep | FullLinkStep | RailStep]], measured: Mapping[str, Sequence[RailMeasured]]
) -> tuple[Untested, ...]:
    """Return the planned tests of which a node reported nothing: silence proves nothing. `measured`: by node."""
    told = {(name, row["rail"], row["node"], row["peer"]) for name, rows in measured.items() for row in rows}
    wanted = [
        Untested(name, rail["rail"], step["node"], rail["peer"], f"{name} reported no result")
        for name, own in steps.items()
        for step in own
        if step["role"] == "client" and "rails" in step
        for rail in step["rails"]
    ]
    return tuple(each for each in wanted if each[:4] not in told)
