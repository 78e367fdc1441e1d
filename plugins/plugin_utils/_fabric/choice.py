# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The choice of the cluster's network, and why NICs are rejected (one NIC by itself: networks.py). Pure."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .networks import (
    ASKED_OTHERWISE,
    NOT_PREFERRED,
    Address,
    Network,
    Nic,
    NodeNet,
    Reason,
    Rejection,
    all_of,
    flaw,
    netdevs_of,
    of_host_name,
    worth_a_line,
)

Rows = Mapping[str, Sequence[Mapping[str, Any]]]  # each node's results about the others

SLOW = 4.0  # this many times slower is another class: 1 and 10 Gbit/s are, 40 and 100 in one Python stream are not
SHOWN = 3  # of a long list, in a message
MEASURED = "faster, as measured"
# The order in which usable networks are compared, in words.
CRITERIA = (
    "IPv4 (gloo and Open MPI prefer it)",
    "the first address of its NICs (gloo and NCCL use no other)",
    "RDMA on every node",
    MEASURED,
    "faster NICs",
    "larger MTU",
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
    """A network in which every node has a seat."""

    network: Network
    seats: Mapping[str, Seat]


@dataclass(frozen=True)
class Constraints:
    """The user's constraints on the network of the whole cluster."""

    subnet: Network | None = None
    nccl_gid: str = "auto"


@dataclass(frozen=True)
class Choice:
    """The outcome: a network is chosen, the last choice is still valid, or speeds must be measured first."""

    chosen: Candidate | None
    digest: str
    usable: tuple[Candidate, ...]
    why: str = ""
    rejections: tuple[Rejection, ...] = ()
    mtu: int = 0
    settled: bool = False
    to_measure: tuple[Candidate, ...] = ()


def parse_subnet(text: str) -> Network | None:
    """Return the network of fabric_subnet; None if it is empty."""
    try:
        return ipaddress.ip_network(text, strict=False) if text else None
    except ValueError:
        raise InputError("fabric_subnet", text, "give a network with its prefix, such as 10.92.0.0/24") from None


def check_constraints(nodes: Sequence[NodeNet], constraints: Constraints) -> None:
    """Raise InputError for a constraint that no node's facts can meet."""
    for node in nodes:
        check_nic(node)
        check_address(node)
        check_subnet(node, constraints.subnet)


def check_subnet(node: NodeNet, subnet: Network | None) -> None:
    """Raise InputError if a node has no address in the required network."""
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
        raise InputError(name, node.required_address, f"the node has no such address{where}")
    reason = flaw(*found[0], True)
    if reason:
        raise InputError(name, node.required_address, f"{reason.text}; name another address or leave it out")


def candidates(nodes: Sequence[NodeNet], constraints: Constraints) -> tuple[list[Candidate], list[Rejection]]:
    """Return the networks in which every node has a usable address, and why other addresses are unusable."""
    twins = {ip for ip, count in Counter(address.ip for _node, _nic, address in all_of(nodes)).items() if count > 1}
    options: dict[Network, dict[str, list[Seat]]] = defaultdict(lambda: defaultdict(list))
    rejections = [rejection for node in nodes for rejection in of_host_name(node)]
    for node, nic, address in all_of(nodes):
        in_subnet = constraints.subnet is not None and address.ip in constraints.subnet
        asked_for = in_subnet or (bool(node.required_nic or node.required_address) and node.fits(nic, address))
        reason = flaw(nic, address, asked_for)
        if not reason and address.ip in twins:
            reason = Reason("twin", "another node has the same address: a network inside each node, like docker0")
        if not reason:
            network = constraints.subnet if constraints.subnet and in_subnet else address.network
            options[network][node.name].append(Seat(nic, address))
        elif worth_a_line(nic, address):
            rejections.append(Rejection(node.name, nic.name, str(address), reason))
    found = []
    for network in sorted(options, key=lambda network: (network.version, network)):
        candidate, refused = seat_all(nodes, constraints, network, options[network])
        found += [candidate] if candidate else []
        rejections += refused
    return found, rejections


def seat_all(
    nodes: Sequence[NodeNet], constraints: Constraints, network: Network, options: Mapping[str, Sequence[Seat]]
) -> tuple[Candidate | None, list[Rejection]]:
    """Return a network with the seat of each node, or None, and why other addresses were not taken."""
    seats, rejections = {}, []
    against = violated_constraint(nodes, constraints, network, options)
    missing = missing_addresses([node for node in nodes if node.name not in options], network)
    reason = Reason(ASKED_OTHERWISE, against) if against else Reason("not-everywhere", missing) if missing else None
    for node in nodes:
        rows = [seat for seat in options.get(node.name, []) if node.fits(seat.nic, seat.address)]
        best = min(rows, key=lambda seat: seat.address.route != seat.nic.name) if rows else None
        if best and not reason:
            seats[node.name] = best
        for seat in options.get(node.name, []):
            if reason or seat is not best:
                sends = f"this node sends to {network} over {best.nic.name if best else '?'}"
                rejected_for = reason or Reason("other-nic", sends)
                rejections.append(Rejection(node.name, seat.nic.name, str(seat.address), rejected_for))
    return (None if reason else Candidate(network, seats)), rejections


def missing_addresses(nodes: Sequence[NodeNet], network: Network) -> str:
    """Return which nodes have no usable address in a network; empty if all have. A netmask may just be wrong."""
    near = [f"{node.name} has {address}" for node, _nic, address in all_of(nodes) if address.ip in network]
    names = some([node.name for node in nodes])
    return f"no usable address in {network} on {names}" + f" ({some(near)})" * bool(near) if nodes else ""


def violated_constraint(
    nodes: Sequence[NodeNet], constraints: Constraints, network: Network, options: Mapping[str, Sequence[Seat]]
) -> str:
    """Return the constraint that rules a network out, or an empty string."""
    if constraints.subnet is not None and network != constraints.subnet:
        return f"fabric_subnet is {constraints.subnet}"
    for node in nodes:
        if node.constraints and not any(node.fits(seat.nic, seat.address) for seat in options.get(node.name, [])):
            return node.constraints
    return ""


def failures_of(candidate: Candidate, reached: Rows) -> str:
    """Return which pairs do not reach each other in a network, in which direction, and why; empty if all do."""
    pairs: dict[str, list[str]] = defaultdict(list)
    for source in candidate.seats:
        rows = {
            row["node"]: row["reason"] for row in reached.get(source, []) if row["network"] == str(candidate.network)
        }
        for target in candidate.seats:
            if target != source and rows.get(target, "not tried") != "":
                pairs[rows.get(target, "not tried")].append(f"{source} -> {target}")
    return "; ".join(f"{some(names)}: {reason}" for reason, names in pairs.items())


def some(names: Sequence[str]) -> str:
    """Return the first few of many."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def choose_fabric(
    nodes: Sequence[NodeNet],
    constraints: Constraints,
    reached: Rows,
    measured: Mapping[str, float] | None = None,
    confirmed: bool = True,
) -> Choice:
    """Return the choice. `measured` has the slowest rate of each network in Mbit/s; None: nothing was measured yet.

    Unless `confirmed`, a network with a bad rate is measured again.
    InputError if no network joins all nodes, with the reason of each.
    """
    found, rejections = candidates(nodes, constraints)
    failures = {candidate.network: failures_of(candidate, reached) for candidate in found}
    usable = [candidate for candidate in found if not failures[candidate.network]]
    if not usable:
        raise refusal(nodes, constraints, failures, rejections)
    rank = Ranking(nodes, reached, measured or {})
    ordered = sorted(usable, key=rank.key)
    best, digest = ordered[0], digest_of(nodes, constraints, found)
    if published(nodes, digest, usable, rank):
        return Choice(None, digest, tuple(ordered), settled=True)
    level = [candidate for candidate in ordered if rank.key(candidate)[:LEVEL] == rank.key(best)[:LEVEL]]
    doubt = measured is None or (not confirmed and any(rank.slow(candidate) for candidate in level))
    if len(level) > 1 and doubt:
        return Choice(None, digest, tuple(ordered), to_measure=tuple(level))
    for candidate in found:
        if candidate is not best:
            failed = failures[candidate.network]
            text = failed or f"usable; {best.network} is preferred: {rank.better(best, candidate)}"
            reason = Reason("not-reached" if failed else NOT_PREFERRED, text)
            seats = candidate.seats.items()
            rejections += [Rejection(name, seat.nic.name, str(seat.address), reason) for name, seat in seats]
    return Choice(best, digest, tuple(ordered), rank.why(ordered, constraints), tuple(rejections), mtu=rank.mtu(best))


def constraints_of(nodes: Sequence[NodeNet], constraints: Constraints) -> str:
    """Return the user's constraints as options on a command line."""
    subnet = [f"fabric_subnet is {constraints.subnet}"] if constraints.subnet is not None else []
    return ", ".join(subnet + [node.constraints for node in nodes if node.constraints])


class Ranking:
    """Compares usable networks; smaller is better."""

    def __init__(self, nodes: Sequence[NodeNet], reached: Rows, measured: Mapping[str, float]) -> None:
        self.nodes = nodes
        self.reached = reached
        self.measured = measured

    def slow(self, candidate: Candidate) -> bool:
        """Whether a network is of a slower class. A virtual NIC counts with its nominal speed at most."""
        speeds = [seat.nic.speed_mbit for seat in candidate.seats.values() if seat.nic.speed_mbit]
        fastest = min([max(self.measured.values(), default=0.0), *speeds])
        return self.measured.get(str(candidate.network), fastest) * SLOW < fastest

    def key(self, candidate: Candidate) -> tuple[Any, ...]:
        """Return the values of CRITERIA, in their order."""
        seats = candidate.seats.values()
        speeds = [seat.nic.speed_mbit for seat in seats]
        return (
            candidate.network.version == 6,
            not all(seat.address.first for seat in seats),
            not all(has_rdma(node, candidate.seats[node.name]) for node in self.nodes),
            self.slow(candidate),
            -min(speed or 0 for speed in speeds),
            -self.mtu(candidate),
            not all(node.arrival == str(candidate.seats[node.name].address.ip) for node in self.nodes if node.arrival),
            int(candidate.network.network_address),
        )

    def mtu(self, candidate: Candidate) -> int:
        """Return the smallest MTU of the NICs and of the paths between them."""
        rows = [row for found in self.reached.values() for row in found if row["network"] == str(candidate.network)]
        paths = [int(row["mtu"]) for row in rows if row["mtu"]]
        return min([seat.nic.mtu for seat in candidate.seats.values()] + paths)

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
        if CRITERIA[differs] == MEASURED:
            return f"{CRITERIA[differs]} ({rates[0]:,.0f} and {rates[1]:,.0f} Mbit/s)"
        return CRITERIA[differs]


def has_rdma(node: NodeNet, seat: Seat) -> bool:
    """Whether an RDMA port that is up belongs to a NIC."""
    return any(port.active and seat.nic.name in netdevs_of(port) for port in node.ports)


def refusal(
    nodes: Sequence[NodeNet], constraints: Constraints, failures: Mapping[Network, str], rejections: Sequence[Rejection]
) -> InputError:
    """Return the error that no network connects all nodes, with the reason for each and what to type."""
    constraints_text = constraints_of(nodes, constraints)
    lines = [f"{network}: {reason}" for network, reason in failures.items()]
    if not constraints_text or not lines:
        lines += without_network(rejections)
    reasons = "; ".join(lines) or "the nodes have no addresses"
    if constraints_text:
        why = f"it does not connect all nodes: {reasons}; leave it out to choose a network automatically"
        return InputError("fabric", constraints_text, why)
    remedy = "repair one, or set one with -e fabric_subnet=..."
    return InputError("fabric", some([node.name for node in nodes]), f"no network connects them: {reasons}; {remedy}")


def without_network(rejections: Sequence[Rejection]) -> list[str]:
    """Return the rejections of addresses other than loopback, one for each reason."""
    first: dict[str, list[Rejection]] = defaultdict(list)
    for row in rejections:
        if not ipaddress.ip_interface(row.address).is_loopback:
            first[row.reason.text].append(row)
    names = {reason: [f"{row.address} ({row.nic} of {row.node})" for row in rows] for reason, rows in first.items()}
    return [f"{some(rows)}: {reason}" for reason, rows in names.items()]


def digest_of(nodes: Sequence[NodeNet], constraints: Constraints, found: Sequence[Candidate]) -> str:
    """Return a digest of everything that a choice depends on, except measurements."""
    seats = [
        [str(candidate.network), name, seat.nic.name, str(seat.address), seat.nic.mtu, seat.nic.speed_mbit]
        for candidate in found
        for name, seat in sorted(candidate.seats.items())
    ]
    ports = [[node.name, repr(node.ports)] for node in nodes]
    asked = [str(constraints.subnet), constraints.nccl_gid, [node.constraints for node in nodes]]
    return hashlib.sha256(json.dumps([seats, ports, asked]).encode()).hexdigest()[:16]


def published(nodes: Sequence[NodeNet], digest: str, usable: Sequence[Candidate], rank: Ranking) -> bool:
    """Whether all nodes have the same choice, made from the same facts and the same usable networks."""
    mtus = {str(candidate.network): rank.mtu(candidate) for candidate in usable}
    fabrics = [node.published for node in nodes]
    return len({fabric.get("network") for fabric in fabrics}) == 1 and all(
        fabric.get("digest") == digest
        and fabric.get("usable") == sorted(mtus)
        and fabric.get("mtu") == mtus.get(str(fabric.get("network")))
        for fabric in fabrics
    )


def standing(nodes: Sequence[NodeNet], constraints: Constraints) -> Choice | None:
    """Return the choice that all nodes have, if the facts give no reason for a new test; else None."""
    digest = digest_of(nodes, constraints, candidates(nodes, constraints)[0])
    marks = {(node.published.get("network"), node.published.get("digest")) for node in nodes}
    same = len(marks) == 1 and marks.pop()[1] == digest
    return Choice(None, digest, (), settled=True) if same else None


def alone(node: NodeNet, constraints: Constraints) -> Choice:
    """Return the choice for one node: loopback, which does not depend on a cable, unless the user has constraints."""
    if constraints.subnet is not None or node.constraints:
        found, rejections = candidates([node], constraints)
        if not found:
            raise refusal([node], constraints, {}, rejections)
        return choose_fabric([node], constraints, {}, {})
    lo = next(
        (nic for nic in node.nics if nic.kind == "loopback"), Nic("lo", "loopback", 65536, None, True, True, "", "", ())
    )
    seat = Seat(lo, Address(ipaddress.ip_address("127.0.0.1"), 8))
    only = Candidate(ipaddress.ip_network("127.0.0.0/8"), {node.name: seat})
    return Choice(only, digest_of([node], constraints, [only]), (only,), "one node: loopback", mtu=lo.mtu)
