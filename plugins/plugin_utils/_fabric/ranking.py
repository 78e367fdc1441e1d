# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Networks that join nodes, and which of them is better. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .constraints import Constraints, constraints_of
from .fabric_types import Reached
from .networks import Address, Network, Nic, NodeNet, netdevs_of

Rows = Mapping[str, Sequence[Reached]]  # each node's results about the others

SLOW = 4.0  # this many times slower is another class: 1 and 10 Gbit/s are, 40 and 100 in one Python stream are not
MEASURED = "faster, as measured"
# The order in which usable networks are compared, in words.
CRITERIA = (
    "IPv4 (gloo and Open MPI prefer it)",
    "the first address of its NICs (gloo and NCCL use no other)",
    "RDMA on every worker",
    MEASURED,
    "faster NICs",
    "larger MTU",
    "the head is in it too",
    "Ansible reaches the nodes by it",
    "the lower address",
)
LEVEL = CRITERIA.index(MEASURED)  # networks that are equal up to here are measured


@dataclass(frozen=True)
class Seat:
    """The NIC and address of one node in a network."""

    nic: Nic
    address: Address


@dataclass(frozen=True)
class Candidate:
    """A network in which every node has a seat, or every worker: a head that runs no ranks may be elsewhere."""

    network: Network
    seats: Mapping[str, Seat]
    for_ranks: bool = True  # not, if the user asked for another one: the head reaches the workers by it


def judged(nodes: Sequence[NodeNet]) -> list[NodeNet]:
    """Return the nodes whose links carry the ranks: the workers, or all where one worker has no other to reach."""
    workers = [node for node in nodes if node.worker]
    return workers if len(workers) > 1 else list(nodes)


class Ranking:
    """Compares usable networks; smaller is better. The NICs of a head that runs no ranks count for nothing."""

    def __init__(self, nodes: Sequence[NodeNet], reached: Rows, measured: Mapping[str, float]) -> None:
        self.nodes = judged(nodes)
        self.count = len(nodes)
        self.reached = reached
        self.measured = measured

    def slow(self, candidate: Candidate) -> bool:
        """Whether a network is of a slower class. A virtual NIC counts with its nominal speed at most."""
        speeds = [seat.nic.speed_mbit for seat in self.seats(candidate) if seat.nic.speed_mbit]
        fastest = min([max(self.measured.values(), default=0.0), *speeds])
        return self.measured.get(str(candidate.network), fastest) * SLOW < fastest

    def seats(self, candidate: Candidate) -> list[Seat]:
        """Return the seats that are judged."""
        return [candidate.seats[node.name] for node in self.nodes]

    def key(self, candidate: Candidate) -> tuple[object, ...]:
        """Return the values of CRITERIA, in their order."""
        seats = self.seats(candidate)
        speeds = [seat.nic.speed_mbit for seat in seats]
        return (
            candidate.network.version == 6,
            not all(seat.address.first for seat in seats),
            not all(has_rdma(node, candidate.seats[node.name]) for node in self.nodes if node.worker),
            self.slow(candidate),
            -min(speed or 0 for speed in speeds),
            -self.mtu(candidate),
            len(candidate.seats) < self.count,
            not all(node.arrival == str(candidate.seats[node.name].address.ip) for node in self.nodes if node.arrival),
            int(candidate.network.network_address),
        )

    def mtu(self, candidate: Candidate) -> int:
        """Return the smallest MTU of the NICs that are judged and of the paths between them."""
        names = {node.name for node in self.nodes}
        rows = [row for name in names for row in self.reached.get(name, []) if row["network"] == str(candidate.network)]
        paths = [int(row["mtu"]) for row in rows if row["mtu"] and row["node"] in names]
        return min([seat.nic.mtu for seat in self.seats(candidate)] + paths)

    def why(self, ordered: Sequence[Candidate], constraints: Constraints) -> str:
        """Return why the first was chosen."""
        constraints_text = constraints_of(self.nodes, constraints)
        if constraints_text:
            return f"asked for: {constraints_text}"
        if len(ordered) == 1:
            return "the only network that connects all nodes"
        return f"preferred to {ordered[1].network}: {self.better(ordered[0], ordered[1])}"

    def better(self, best: Candidate, other: Candidate) -> str:
        """Return the criterion by which a candidate is better than another."""
        differs = next(
            number for number, (one, two) in enumerate(zip(self.key(best), self.key(other), strict=True)) if one != two
        )
        rates = [self.measured.get(str(candidate.network)) for candidate in (best, other)]
        if differs == LEVEL:
            return f"{CRITERIA[differs]} ({rates[0]:,.0f} and {rates[1]:,.0f} Mbit/s)"
        return CRITERIA[differs]


def has_rdma(node: NodeNet, seat: Seat) -> bool:
    """Whether an RDMA port that is up belongs to a NIC."""
    return any(port.active and seat.nic.name in netdevs_of(port) for port in node.ports)
