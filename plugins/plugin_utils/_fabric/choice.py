# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The choice of the cluster's network. Why others were rejected: rejections.py has codes and sentences. Pure."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Fabric, FabricSeat
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .constraints import Constraints, constraints_of
from .networks import Address, Network, Nic, NodeNet, all_of, some
from .ranking import LEVEL, Candidate, Ranking, Rows, Seat, judged
from .rejections import (
    Reason,
    Rejection,
    RejectionCode,
    because,
    flaw,
    of_host_name,
    without_network,
    worth_a_line,
)


@dataclass(frozen=True)
class Choice:
    """The outcome: a network is chosen, the last choice is still valid, or speeds must be measured first.

    `chosen` carries the ranks. `daemons` joins all nodes, and is the same one unless the head is not in that.
    """

    chosen: Candidate | None
    digest: str
    usable: tuple[Candidate, ...]
    why: str = ""
    rejections: tuple[Rejection, ...] = ()
    mtu: int = 0
    settled: bool = False
    to_measure: tuple[Candidate, ...] = ()
    daemons: Candidate | None = None
    daemons_mtu: int = 0
    broken: tuple[str, ...] = ()  # addresses in networks that were tried and do not connect their nodes


def candidates(nodes: Sequence[NodeNet], constraints: Constraints) -> tuple[list[Candidate], list[Rejection]]:
    """Return the networks in which all nodes have a usable address, or all workers, and why others are unusable."""
    twins = {ip for ip, count in Counter(address.ip for _node, _nic, address in all_of(nodes)).items() if count > 1}
    options: dict[Network, dict[str, list[Seat]]] = defaultdict(lambda: defaultdict(list))
    rejections = [rejection for node in nodes for rejection in of_host_name(node)]
    for node, nic, address in all_of(nodes):
        in_subnet = constraints.subnet is not None and address.ip in constraints.subnet
        asked_for = in_subnet or (bool(node.required_nic or node.required_address) and node.fits(nic, address))
        reason = flaw(nic, address, asked_for)
        if not reason and address.ip in twins:
            reason = because(RejectionCode.TWIN)
        if not reason:
            network = constraints.subnet if constraints.subnet and in_subnet else address.network
            options[network][node.name].append(Seat(nic, address))
        elif worth_a_line(nic, address):
            rejections.append(Rejection(node.name, nic.name, str(address), reason))
    found = []
    for network in sorted(options, key=lambda network: (network.version, network)):
        candidate, refused = seat_all(nodes, constraints, network, options[network])
        if candidate is None and len(judged(nodes)) < len(nodes):
            candidate, refused = seat_apart(nodes, constraints, network, options[network], refused)
        found += [candidate] if candidate else []
        rejections += refused
    return found, rejections


def seat_apart(
    nodes: Sequence[NodeNet],
    constraints: Constraints,
    network: Network,
    options: Mapping[str, Sequence[Seat]],
    refused: list[Rejection],
) -> tuple[Candidate | None, list[Rejection]]:
    """Return the same as seat_all() where the head runs no ranks: a network of the workers alone, or for daemons alone.

    What the user asked for decides about the ranks; the head reaches the workers also by another network.
    """
    candidate, without = seat_all(judged(nodes), constraints, network, options)
    if candidate:
        return candidate, without
    free = [replace(node, required_nic="", required_address="") if node.worker else node for node in nodes]
    candidate, _others = seat_all(free, Constraints(), network, options)
    return (replace(candidate, for_ranks=False), refused) if candidate else (None, refused)


def seat_all(
    nodes: Sequence[NodeNet], constraints: Constraints, network: Network, options: Mapping[str, Sequence[Seat]]
) -> tuple[Candidate | None, list[Rejection]]:
    """Return a network with the seat of each node, or None, and why other addresses were not taken."""
    seats, rejections = {}, []
    against = violated_constraint(nodes, constraints, network, options)
    reason = against or missing_addresses([node for node in nodes if node.name not in options], network)
    for node in nodes:
        rows = [seat for seat in options.get(node.name, []) if node.fits(seat.nic, seat.address)]
        best = min(rows, key=lambda seat: seat.address.route != seat.nic.name) if rows else None
        if best and not reason:
            seats[node.name] = best
        for seat in options.get(node.name, []):
            if reason or seat is not best:
                over = best.nic.name if best else "?"
                rejected_for = reason or because(RejectionCode.OTHER_NIC, network=network, nic=over)
                rejections.append(Rejection(node.name, seat.nic.name, str(seat.address), rejected_for))
    return (None if reason else Candidate(network, seats)), rejections


def missing_addresses(nodes: Sequence[NodeNet], network: Network) -> Reason | None:
    """Return the reason that names the `nodes`, which have no usable address in a network; None if there are none.

    An address in it that is not usable is named too: a netmask may just be wrong.
    """
    if not nodes:
        return None
    near = [f"{node.name} has {address}" for node, _nic, address in all_of(nodes) if address.ip in network]
    names, near_text = some([node.name for node in nodes]), f" ({some(near)})" if near else ""
    return because(RejectionCode.NOT_EVERYWHERE, network=network, nodes=names, near=near_text)


def violated_constraint(
    nodes: Sequence[NodeNet], constraints: Constraints, network: Network, options: Mapping[str, Sequence[Seat]]
) -> Reason | None:
    """Return the reason that names the constraint by which a network is ruled out, or None."""
    if constraints.subnet is not None and network != constraints.subnet:
        return because(RejectionCode.ASKED_OTHERWISE, constraint=f"fabric_subnet is {constraints.subnet}")
    for node in nodes:
        if node.constraints and not any(node.fits(seat.nic, seat.address) for seat in options.get(node.name, [])):
            return because(RejectionCode.ASKED_OTHERWISE, constraint=node.constraints)
    return None


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
    rank = Ranking(nodes, reached, measured or {})
    ordered = sorted((candidate for candidate in usable if candidate.for_ranks), key=rank.key)
    joining = sorted((candidate for candidate in usable if len(candidate.seats) == len(nodes)), key=rank.key)
    if not ordered or not joining:
        raise refusal(nodes, constraints, failures, rejections)
    best, digest = ordered[0], digest_of(nodes, constraints, found)
    if published(nodes, digest, usable, rank):
        return Choice(None, digest, tuple(ordered), settled=True)
    level = [candidate for candidate in ordered if rank.key(candidate)[:LEVEL] == rank.key(best)[:LEVEL]]
    doubt = measured is None or (not confirmed and any(rank.slow(candidate) for candidate in level))
    if len(level) > 1 and doubt:
        return Choice(None, digest, tuple(ordered), to_measure=tuple(level))
    daemons = best if best in joining else joining[0]
    rejections += passed_over(found, best, daemons, failures, rank)
    return Choice(
        best,
        digest,
        tuple(usable),
        rank.why(ordered, constraints),
        tuple(rejections),
        mtu=rank.mtu(best),
        daemons=daemons,
        daemons_mtu=rank.mtu(daemons),
        broken=tuple(addresses_in(candidate for candidate in found if failures[candidate.network])),
    )


def addresses_in(networks: Iterable[Candidate]) -> list[str]:
    """Return the addresses of all nodes in some networks."""
    return sorted({str(seat.address.ip) for candidate in networks for seat in candidate.seats.values()})


def passed_over(
    found: Sequence[Candidate],
    best: Candidate,
    daemons: Candidate,
    failures: Mapping[Network, str],
    rank: Ranking,
) -> list[Rejection]:
    """Return why the other networks were not taken. That of the daemons is, on the head."""
    rejections = []
    for candidate in found:
        if candidate is best or not candidate.for_ranks:
            continue
        failed = failures[candidate.network]
        if failed:
            reason = because(RejectionCode.NOT_REACHED, pairs=failed)
        else:
            better = rank.better(best, candidate)
            reason = because(RejectionCode.NOT_PREFERRED, network=best.network, criterion=better)
        taken = set(candidate.seats) - set(best.seats) if candidate is daemons else set()
        seats = [(name, seat) for name, seat in candidate.seats.items() if name not in taken]
        rejections += [Rejection(name, seat.nic.name, str(seat.address), reason) for name, seat in seats]
    return rejections


def refusal(
    nodes: Sequence[NodeNet], constraints: Constraints, failures: Mapping[Network, str], rejections: Sequence[Rejection]
) -> InputError:
    """Return the error that no network connects all nodes, with the reason for each and what to type."""
    constraints_text = constraints_of(nodes, constraints)
    reached = "no other network reaches the head"
    lines = [f"{network}: {reason or reached}" for network, reason in failures.items()]
    if not constraints_text or not lines:
        lines += without_network(rejections)
    reasons = "; ".join(lines) or "the nodes have no addresses"
    if constraints_text:
        why = f"it does not connect all nodes: {reasons}; leave it out to choose a network automatically"
        return InputError("fabric", constraints_text, why)
    remedy = "repair one, or set one with -e fabric_subnet=..."
    return InputError("fabric", some([node.name for node in nodes]), f"no network connects them: {reasons}; {remedy}")


def digest_of(nodes: Sequence[NodeNet], constraints: Constraints, found: Sequence[Candidate]) -> str:
    """Return a digest of everything that a choice depends on, except measurements."""
    seats = [
        [str(candidate.network), name, seat.nic.name, str(seat.address), seat.nic.mtu, seat.nic.speed_mbit]
        for candidate in found
        for name, seat in sorted(candidate.seats.items())
    ]
    ports = [[node.name, repr(node.ports), node.gpus] for node in nodes if node.worker]
    asked = [
        str(constraints.subnet),
        constraints.nccl_gid,
        [(node.constraints, node.required_rdma, node.worker) for node in nodes],
    ]
    return hashlib.sha256(json.dumps([seats, ports, asked]).encode()).hexdigest()[:16]


def published(nodes: Sequence[NodeNet], digest: str, usable: Sequence[Candidate], rank: Ranking) -> bool:
    """Whether all nodes have the same choice, made from the same facts and the same usable networks."""
    mtus = {str(candidate.network): rank.mtu(candidate) for candidate in usable}
    fabrics = [node.published for node in nodes]
    return agree(nodes) and all(
        fabric.get("digest") == digest
        and fabric.get("usable") == sorted(mtus)
        and fabric.get("mtu") == mtus.get(str(fabric.get("network")))
        for fabric in fabrics
    )


def agree(nodes: Sequence[NodeNet]) -> bool:
    """Whether the nodes have published one choice: one network of the judged ones, and one for daemons on all."""
    ranks = {node.published.get("network") for node in judged(nodes)}
    daemons = {daemons_of(node.published).get("network") for node in nodes}
    return len(ranks) == len(daemons) == 1


def daemons_of(fabric: Fabric) -> Fabric | FabricSeat:
    """Return NIC, address and network by which launchers start ranks, from a fabric.json: mostly its own."""
    return fabric.get("daemons") or fabric


def standing(nodes: Sequence[NodeNet], constraints: Constraints) -> Choice | None:
    """Return the choice that all nodes have, if the facts give no reason for a new test; else None."""
    digest = digest_of(nodes, constraints, candidates(nodes, constraints)[0])
    same = agree(nodes) and {node.published.get("digest") for node in nodes} == {digest}
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
    return Choice(only, digest_of([node], constraints, [only]), (only,), "one node: loopback", mtu=lo.mtu, daemons=only)
