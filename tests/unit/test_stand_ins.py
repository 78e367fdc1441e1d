"""A job that is started again: which nodes it has then."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.attempts import Attempt
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.stand_ins import (
    NoStandIn,
    Seats,
    seats_of,
    spare_warnings,
)
from tests.unit.nodes import facts_of_a_node

HEAD = Node("n0", "192.0.2.9")
GONE = {"unreachable": "no route"}
BUSY = [{"job_id": "x", "owner": "bob", "own_home": True}]


def seats(
    names: str,
    used: str,
    gone: str = "",
    kept: str = "",
    min_nodes: int | None = None,
    busy: str = "",
    slots: dict[str, int] | None = None,
) -> Seats:
    """The seats of the second attempt of a job with two ranks on each node that it used."""
    nodes = tuple(Node(name, f"{name}.example", slots=(slots or {}).get(name, 2)) for name in names.split())
    facts: dict[str, Any] = {
        node.name: GONE if node.name in gone.split() else facts_of_a_node(running=BUSY if node.name == busy else [])
        for node in (HEAD, *nodes)
    }
    attempt = Attempt("j-r1", 1, hosts=tuple(used.split()), size=2 * len(used.split()), kept_out=tuple(kept.split()))
    return seats_of(Request("mnist", max_restarts=9, min_nodes=min_nodes), Cluster(HEAD, nodes), facts, attempt)


def named(found: Seats) -> str:
    return " ".join(node.name for node in found.cluster.workers)


@pytest.mark.parametrize(
    ("case", "nodes", "ranks", "said"),
    [
        ({}, "n1 n2 n3 n4", 6, ""),
        ({"gone": "n2"}, "n1 n4 n3", 6, "without n2; n4 took over"),
        ({"kept": "n3"}, "n1 n2 n4", 6, "without n3; n4 took over"),
        ({"kept": "n4"}, "n1 n2 n3", 6, ""),  # a spare: nobody needs it
        ({"gone": "n4"}, "n1 n2 n3", 6, ""),
        ({"gone": "n1 n2", "min_nodes": 2}, "n4 n3", 4, "without n1, n2 with 4 ranks, 2 fewer; n4 took over"),
        ({"names": "n1 n2 n3 n4 n5", "gone": "n1", "busy": "n4"}, "n5 n2 n3 n4", 6, "without n1; n5 took over"),
    ],
)
def test_a_free_worker_takes_the_place_of_one_that_is_gone(
    case: dict[str, Any], nodes: str, ranks: int, said: str
) -> None:
    """Other ranks stay where they were: what they saved on their disks is there."""
    found = seats(**{"names": "n1 n2 n3 n4", "used": "n1 n2 n3", **case})
    assert (named(found), found.request.np, found.said) == (nodes, ranks, said)
    assert set(found.facts) == {"n0", *nodes.split()}


@pytest.mark.parametrize(
    ("case", "message", "passes"),
    [
        (
            {"gone": "n2"},
            'nodes: got "n2"; n2 is not reached (no route), and no other worker is free: '
            "free a worker or add one, or go on with fewer: -e min_nodes=1",
            True,
        ),
        (
            {"kept": "n2"},
            'nodes: got "n2"; n2 failed 2 times (lost, or a signal or a GPU\'s error ended a rank there), '
            "and no other worker is free: free a worker or add one, or go on with fewer: "
            "-e min_nodes=1",
            False,
        ),
        (
            {"gone": "n1", "min_nodes": 2},
            'nodes: got "n1"; n1 is not reached (no route), and no other worker is free: '
            "free a worker or add one, or go on with fewer: -e min_nodes=1",
            True,
        ),
    ],
)
def test_a_job_is_not_made_smaller_unless_that_is_allowed(case: dict[str, Any], message: str, passes: bool) -> None:
    with pytest.raises(NoStandIn) as caught:
        seats(**{"names": "n1 n2", "used": "n1 n2", **case})
    assert str(caught.value) == message and caught.value.passes == passes


def test_a_worker_with_fewer_slots_does_not_stand_in() -> None:
    with pytest.raises(NoStandIn, match=r"n2 is not reached .*, and no other worker"):
        seats("n1 n2 n3", "n1 n2", gone="n2", slots={"n3": 1})
    assert named(seats("n1 n2 n3 n4", "n1 n2", gone="n2", slots={"n3": 1})) == "n1 n3 n4"


def test_the_first_attempt_has_what_was_asked_for() -> None:
    """A node that does not answer is refused then, as always."""
    request, cluster = Request("mnist"), Cluster(HEAD, (Node("n1", "n1.example"),))
    facts: Any = {"n0": facts_of_a_node(), "n1": GONE}
    assert seats_of(request, cluster, facts, Attempt("j")) == Seats(request, cluster, facts)
    with pytest.raises(InputError, match="min_nodes: got 2; more than there are workers: -e min_nodes=1"):
        seats_of(Request("mnist", min_nodes=2), cluster, facts, Attempt("j"))


def test_a_detached_job_has_no_spares_and_says_so() -> None:
    """Workers that were named for that are refused before anything starts; of others a line tells."""
    nodes = Cluster(HEAD, tuple(Node(name, name) for name in ("n1", "n2", "n3", "n4")))
    used = ["n1", "n2"]
    detached = Request("mnist", detach=True, max_restarts=3)
    told = "with detach=true the job restarts on the same nodes: n3 n4 will not replace a lost one"
    assert spare_warnings(detached, nodes, used) == [told]
    assert spare_warnings(detached, nodes, ["n1", "n2", "n3", "n4"]) == []
    assert spare_warnings(Request("mnist", detach=True), nodes, used) == []
    assert spare_warnings(Request("mnist", max_restarts=3, nodes=("n1", "n2", "n3", "n4")), nodes, used) == []
    named = Request("mnist", detach=True, max_restarts=3, nodes=("n1", "n2", "n3", "n4"))
    with pytest.raises(InputError, match='nodes: got "n3,n4"; the job does not use these nodes'):
        spare_warnings(named, nodes, used)
