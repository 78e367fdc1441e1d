# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measurement of all pairs of nodes: the pairs of each round, and the slow links and nodes in the results."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.probe_types import Agent, LinkStep

from .fabric_types import Measured

Matrix = Mapping[tuple[str, str], float]  # (from, to) -> Mbit/s

SLOW_FACTOR = 2.0  # a link is slow if the median is more than twice as fast


@dataclass(frozen=True)
class Slow:
    """A slow link (source and target), or a slow node (only source: what it sends; only target: what it receives)."""

    source: str
    target: str
    mbit: float
    median: float

    def __str__(self) -> str:
        who = f"{self.source} -> {self.target}" if self.source and self.target else ""
        who = who or (f"all that {self.source} sends" if self.source else f"all that {self.target} receives")
        return f"{who}: {self.mbit:,.0f} Mbit/s, the median is {self.median:,.0f}"


def rounds(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return a tournament by the circle method: n-1 rounds (n if n is odd) of disjoint pairs, each pair once."""
    ring: list[str | None] = [*nodes, *([None] * (len(nodes) % 2))]
    plan = []
    for _round in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        plan.append([(one, two) for one, two in pairs if one is not None and two is not None])
        ring[1:] = [ring[-1], *ring[1:-1]]
    return plan


def steps(
    addresses: Mapping[str, Mapping[str, str]],
    agents: Mapping[str, Agent],
    seconds: float,
    at_most: int | None = None,
    times: int = 1,
) -> dict[str, list[LinkStep]]:
    """Return the schedule of every node for torchfleet.cluster.fabric_probe.

    `addresses`: network -> node -> address. `agents`: node -> port, token. `seconds` per direction. `at_most` rounds of
    each network: all rounds find a slow link; two find a slow NIC, because every node takes part in one of them.
    `times`: repetitions, because a busy node is rarely slow twice.
    """
    plan: dict[str, list[LinkStep]] = {name: [] for name in agents}
    once = [(name, seats, pairs) for name, seats in addresses.items() for pairs in rounds(list(seats))[:at_most]]
    for number, (network, seats, pairs) in enumerate(once * times):
        for client, server in pairs:
            plan[client].append(
                {
                    "network": network,
                    "round": number,
                    "seconds": seconds,
                    "role": "client",
                    "node": server,
                    "address": seats[server],
                    **agents[server],
                }
            )
            plan[server].append(
                {"network": network, "round": number, "seconds": seconds, "role": "server", "node": client}
            )
    return plan


def rates(rows: Mapping[str, Sequence[Measured]], network: str) -> dict[tuple[str, str], float]:
    """Return the matrix of a network from the agents' measurements (node -> rows): the best rate of each link.

    Failed measurements are left out.
    """
    matrix: dict[tuple[str, str], float] = {}
    for name, found in rows.items():
        for row in found:
            if row["network"] == network and not row["error"]:
                for link, mbit in (((name, row["node"]), row["mbit_out"]), ((row["node"], name), row["mbit_in"])):
                    matrix[link] = max(matrix.get(link, 0.0), float(mbit))
    return matrix


def slow_links(matrix: Matrix, factor: float = SLOW_FACTOR) -> list[Slow]:
    """Return links that are slower than the median by a factor. A node that is slow with all others is one entry."""
    if not matrix:
        return []
    median = statistics.median(matrix.values())
    slow = {pair: rate for pair, rate in matrix.items() if rate * factor < median}
    found: list[Slow] = []
    covered: set[tuple[str, str]] = set()
    sides: dict[tuple[str, int], dict[tuple[str, str], float]] = {}
    for pair, rate in matrix.items():
        for side in (0, 1):
            sides.setdefault((pair[side], side), {})[pair] = rate
    for name in sorted({name for pair in matrix for name in pair}):
        for side, ends in enumerate([(name, ""), ("", name)]):
            own = sides.get((name, side), {})
            if len(own) > 1 and own.keys() <= slow.keys():
                found.append(Slow(*ends, max(own.values()), median))
                covered |= own.keys()
    return found + [Slow(*pair, rate, median) for pair, rate in sorted(slow.items()) if pair not in covered]
