# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The next step of role fabric, from the results of its tasks so far. Pure."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.probe_types import Agent, LinkStep
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from . import answers as fabric_answers
from .choice import Choice, alone, candidates, choose_fabric, refusal, standing
from .constraints import Constraints, check_constraints, parse_subnet
from .fabric_types import Measured, Published
from .firewalls import Blocked, blocked
from .link_matrix import rates, steps
from .networks import NodeNet, node_net, some
from .publication import fabric_files, fabric_of
from .rails import RailCode, Rails, rails_of
from .ranking import Candidate, judged

Results = Mapping[str, Mapping[str, object]]  # node -> the result of its task
Batch = Mapping[str, Mapping[str, list[Measured]]]  # the same of a measurement, checked
Plan = dict[str, list[dict[str, object]]]  # the peers of each node

MEASURED_ROUNDS = 2  # of the tournament: every NIC takes part in one of them
MEASURED_SECONDS = 0.1  # per direction
MEASURED_TIMES = 3  # the networks in turn: other load on a node then affects all of them
MEASURED_BATCHES = 3  # seconds apart: only a network that is slow in all of them counts as slow


def next_step(
    names: Sequence[str],
    listened: Results,
    reached: Results,
    measuring: Results,
    measured: Results,
    seen: Results | None = None,
    earlier: Sequence[Results] = (),
    subnet: str = "",
    nccl_gid: str = "auto",
    workers: Sequence[str] | None = None,
    firewalls: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Return `state` and its values.

    `workers`: the nodes that run ranks; None for all.
    `seen` has the facts of each node, without an agent. listen: the facts are not enough, connections must be tested;
    connect: `peers` of each node; measure: `steps` of each node, once the agents run, and `batches`, which become
    `earlier` if a network is `measured` again; done: `fabric`, `files` and `publish` of each node, and `msg`.
    Raise InputError if no network can be chosen. `firewalls`: those that are known, by node, to name them then.
    """
    constraints = Constraints(parse_subnet(subnet), nccl_gid)
    ranks = names if workers is None else workers
    if seen is not None:
        return at_a_glance(names, seen, constraints, ranks)
    nodes = read_nodes(names, listened, ranks)
    check_constraints(nodes, constraints)
    if len(nodes) == 1:
        return done(alone(nodes[0], constraints), nodes, constraints)
    if not reached:
        return {"state": "connect", "peers": connections(nodes, constraints, listened)}
    rows = {
        name: fabric_answers.reached_of(name, required(reached, name, "reached", "the others"), names) for name in names
    }
    batches = [checked_batch(batch, names) for batch in ([*earlier, measured] if measured else [])]
    try:
        rates = slowest(batches) if batches else None
        choice = choose_fabric(nodes, constraints, rows, rates, len(batches) >= MEASURED_BATCHES)
    except InputError as error:
        raise (Blocked(str(error), rows, fabric_answers.firewalls_of(firewalls)) if blocked(rows) else error) from None
    if not choice.to_measure:
        return done(choice, nodes, constraints)
    plan = measurement(choice.to_measure, nodes, measuring) if measuring else {}
    return {"state": "measure", "steps": plan, "batches": batches}


def connections(nodes: Sequence[NodeNet], constraints: Constraints, listened: Results) -> Plan:
    """Return the nodes that each node connects to in the test. InputError for constraints that cannot be met."""
    rails_of(nodes)
    found, rejections = candidates(nodes, constraints)
    if not found:
        raise refusal(nodes, constraints, {}, rejections)
    return peers_of(found, agents_of(listened))


def measurement(
    networks: Sequence[Candidate], nodes: Sequence[NodeNet], measuring: Results
) -> dict[str, list[LinkStep]]:
    """Return the steps in which nodes measure networks against each other."""
    names = {node.name for node in judged(nodes)}
    seats = {str(network.network): addresses_of(network, names) for network in networks}
    return steps(seats, agents_of(measuring), MEASURED_SECONDS, MEASURED_ROUNDS, MEASURED_TIMES)


def at_a_glance(
    names: Sequence[str], seen: Results, constraints: Constraints, workers: Collection[str]
) -> dict[str, object]:
    """Return done if the published choice is still valid or no choice is needed, else listen."""
    if not all((seen.get(name) or {}).get("facts") for name in names):
        return {"state": "listen"}
    nodes = read_nodes(names, seen, workers)
    check_constraints(nodes, constraints)
    choice = standing(nodes, constraints) if len(nodes) > 1 else alone(nodes[0], constraints)
    return done(choice, nodes, constraints) if choice else {"state": "listen"}


def read_nodes(names: Sequence[str], listened: Results, workers: Collection[str]) -> list[NodeNet]:
    """Return the networks of all nodes. Raise InputError if one is missing: the choice needs all nodes."""
    nodes = []
    for name in names:
        facts = required(listened, name, "facts", "its network")
        asked = fabric_answers.constraints_of(name, listened[name].get("constraints"))
        nodes.append(node_net(name, facts, asked, name in workers))
    return nodes


def required(results: Results, name: str, key: str, what: str) -> object:
    """Return a part of the result of a node. Raise InputError if it is missing."""
    found = (results.get(name) or {}).get(key)
    if found is None:
        raise InputError(
            "fabric",
            name,
            f"{what} is unknown: see its error above, or --limit excludes it; without it: -e away={name}",
        )
    return found


def agents_of(listened: Results) -> dict[str, Agent]:
    """Return port and token of the agent of each node."""
    return {name: fabric_answers.agent_of(name, row.get("agent")) for name, row in listened.items()}


def addresses_of(candidate: Candidate, names: Collection[str]) -> dict[str, str]:
    """Return the addresses of these nodes in a network."""
    return {name: str(seat.address.ip) for name, seat in candidate.seats.items() if name in names}


def peers_of(found: Sequence[Candidate], agents: Mapping[str, Agent]) -> Plan:
    """Return the peers that each node has to reach, and the NIC for each."""
    return {
        name: [
            {
                "node": other,
                "network": str(candidate.network),
                "address": str(seat.address.ip),
                "nic": candidate.seats[name].nic.name,
                "source": str(candidate.seats[name].address.ip),
                "mtu": candidate.seats[name].nic.mtu,
                **agents[other],
            }
            for candidate in found
            if name in candidate.seats
            for other, seat in candidate.seats.items()
            if other != name
        ]
        for name in agents
    }


def checked_batch(batch: Results, names: Sequence[str]) -> Batch:
    """Return the measurements that each node reports."""
    return {
        name: {"measured": fabric_answers.measured_of(name, row.get("measured"), names)}
        for name, row in batch.items()
        if name in names
    }


def slowest(batches: Sequence[Batch]) -> dict[str, float]:
    """Return the rate of the slowest link of each network in Mbit/s, with the best rate of each link."""
    rows: dict[str, list[Measured]] = defaultdict(list)
    for batch in batches:
        for name, result in batch.items():
            rows[name] += result.get("measured") or []
    networks = {row["network"] for found in rows.values() for row in found}
    matrices = {network: rates(rows, network) for network in sorted(networks)}
    return {network: min(matrix.values()) for network, matrix in matrices.items() if matrix}


def done(choice: Choice, nodes: Sequence[NodeNet], constraints: Constraints) -> dict[str, object]:
    """Return the files to publish, and the nodes that do not have them yet."""
    rails = rails_of(nodes, [ipaddress.ip_address(text) for text in choice.broken])
    fabrics = fabric_of(choice, nodes, constraints, rails)
    files = {name: fabric_files(fabric) for name, fabric in fabrics.items()}
    return {
        "state": "done",
        "fabric": fabrics,
        "files": files,
        "publish": {node.name: files[node.name] != dict(node.files or {}) for node in nodes},
        "msg": "; ".join([in_words(fabrics), *in_words_of_rails(rails)]),
    }


def in_words(fabrics: Mapping[str, Published]) -> str:
    """Return the choice as a sentence: the network of the ranks, and that of the daemons if it is another."""
    first = next((fabric for fabric in fabrics.values() if "daemons" in fabric), next(iter(fabrics.values())))
    here = {name: fabric for name, fabric in fabrics.items() if fabric["network"] == first["network"]}
    text = f"{first['network']}, {first['why']}; {nics_in_words(here)}"
    rest = {name: fabric for name, fabric in fabrics.items() if name not in here}
    if not rest:
        return text
    network = first["daemons"]["network"]
    return f"{text}; launchers reach them from {nics_in_words(rest)} by {network}"


def nics_in_words(fabrics: Mapping[str, Published]) -> str:
    """Return which NIC is used where."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, fabric in fabrics.items():
        names[fabric["nic"]].append(name)
    return ", ".join(f"{nic} on {some(group)}" for nic, group in names.items())


def in_words_of_rails(rails: Rails) -> list[str]:
    """Return how many rails there are where, and what is odd about them."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for name, ports in rails.ports.items():
        if ports and not rails.off:
            nodes[some([port.name for port in ports])].append(name)
    lines = [f"RDMA: {ports} on {some(names)}" for ports, names in nodes.items()]
    told = any(note.code == RailCode.RDMA_OFF for note in rails.notes)
    lines += [f"RDMA is off because {rails.off}"] if rails.off and not told else []
    odd = [note.text if note.code == RailCode.RDMA_OFF else f"{some(note.nodes)}: {note.text}" for note in rails.notes]
    return [*lines, *odd]
