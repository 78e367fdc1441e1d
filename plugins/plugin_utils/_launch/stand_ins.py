# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The nodes of a job that is started again: free workers stand in for those that are gone, or that failed twice.

Pure functions: the plan is then made of these nodes as that of any job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.restart_rule import kept_out_text
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import AnyFacts, NodeFacts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node, slots_of

from .attempts import Attempt
from .request import Request

ADVICE = "free a worker or add one, or go on with fewer: -e min_nodes=1"


class NoStandIn(InputError):
    """There are not enough nodes for the next attempt. `passes`: nodes that do not answer may come back."""

    def __init__(self, given: str, reason: str, passes: bool) -> None:
        super().__init__("nodes", given, reason)
        self.passes = passes


class Seats(NamedTuple):
    """What the plan of an attempt is made of. `said`: one line on the nodes that changed; empty if none did."""

    request: Request
    cluster: Cluster
    facts: Mapping[str, AnyFacts]
    said: str = ""


def seats_of(request: Request, cluster: Cluster, facts: Mapping[str, AnyFacts], attempt: Attempt) -> Seats:
    """Return request, nodes and facts of an attempt, with as many ranks as the first one had. NoStandIn.

    A node that was not to be had is left out; the first free one of the inventory takes its place, so that the other
    ranks stay where they were. With `min_nodes` the job has fewer ranks where there is none. InputError if that is
    more than there are.
    """
    count = len(cluster.workers)
    if request.min_nodes is not None and request.min_nodes > count:
        raise InputError("min_nodes", request.min_nodes, f"more than there are workers: -e min_nodes={count}")
    if not attempt.restarts:
        return Seats(request, cluster, facts)
    absent = {name: str(fact["unreachable"]) for name, fact in facts.items() if "unreachable" in fact}
    absent.update(dict.fromkeys(attempt.kept_out, "kept out"))
    here = {name: fact for name, fact in facts.items() if "unreachable" not in fact}
    usable = in_places(attempt.hosts, [node for node in cluster.workers if node.name not in absent], here)
    lost = [name for name in attempt.hosts if name in absent]
    room = sum(slots_of(usable, here, request.ranks_per_node).values())
    enough = request.min_nodes is not None and len(usable) >= request.min_nodes
    if room < attempt.size and not enough:
        raise no_stand_in(lost, attempt, facts)
    size = min(room, attempt.size)
    chosen = replace(cluster, workers=tuple(usable))
    kept = {name: fact for name, fact in here.items() if name == cluster.head.name or name not in absent}
    return Seats(replace(request, np=size), chosen, kept, change(lost, attempt, usable, size))


def spare_warnings(request: Request, cluster: Cluster, used: Sequence[str]) -> list[str]:
    """Return a warning that free workers replace no lost node: the head starts a detached job again without a plan.

    The same holds where torchrun's agents start the ranks again: they stay on their nodes.

    InputError if the user named more nodes than are used.
    """
    free = [node.name for node in cluster.workers if node.name not in used]
    if not ((request.detach or request.options.rounds) and request.max_restarts and free):
        return []
    by_whom = ("the head starts a detached job", "detach") if request.detach else ("torchrun starts it", "restart_by")
    if request.nodes:
        reason = (
            f"the job does not use these nodes, and they cannot replace a lost one: {by_whom[0]} "
            f"again on the same nodes; leave them out, or leave out {by_whom[1]}"
        )
        raise InputError("nodes", ",".join(free), reason)
    why = "detach=true" if request.detach else "restart_by=torchrun"
    return [f"with {why} the job restarts on the same nodes: {fold_names(free)} will not replace a lost one"]


def in_places(hosts: Sequence[str], usable: Sequence[Node], facts: Mapping[str, NodeFacts]) -> list[Node]:
    """Return nodes in the order of the hosts that were used: a free one in the place of each that is not there.

    Those on which another job runs come last.
    """
    by_name = {node.name: node for node in usable}
    free = sorted(
        (node for node in usable if node.name not in hosts), key=lambda node: bool(facts[node.name]["running"])
    )
    taken = [by_name[host] if host in by_name else free.pop(0) for host in hosts if host in by_name or free]
    return [*taken, *free]


def no_stand_in(lost: Sequence[str], attempt: Attempt, facts: Mapping[str, AnyFacts]) -> NoStandIn:
    """Return the error that names the nodes that are missing, and why."""
    kept = [name for name in lost if name in attempt.kept_out]
    gone = [f"{name} is not reached ({fact['unreachable']})" for name, fact in facts.items() if "unreachable" in fact]
    why = "; ".join([*([kept_out_text(kept)] if kept else []), *gone])
    rest = f"{why}, and no other worker is free" if why else "workers have fewer slots than before"
    return NoStandIn(",".join(lost), f"{rest}: {ADVICE}", passes=bool(gone))


def change(lost: Sequence[str], attempt: Attempt, usable: Sequence[Node], size: int) -> str:
    """Return one line on the nodes that are not those of the last attempt."""
    if not lost:
        return ""
    new = [node.name for node in usable[: len(attempt.hosts)] if node.name not in attempt.hosts]
    fewer = f" with {size} ranks, {attempt.size - size} fewer" if size < attempt.size else ""
    return f"without {', '.join(lost)}{fewer}" + (f"; {', '.join(new)} took over" if new else "")
