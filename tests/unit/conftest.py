"""What the tests of the pure core share: a cluster of this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from nodes import Facts, facts_of_a_node

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._plan import Cluster, LaunchPlan, Node, plan_job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import parse_request


@pytest.fixture
def node() -> Node:
    return Node("localhost", "localhost", local=True, slots=2)


@pytest.fixture
def plan(node: Node) -> Callable[..., LaunchPlan]:
    """Return a function that plans a job on this machine: facts may be changed, the rest is the user's wish."""

    def make(facts: Facts | None = None, script: str = "/w/mnist.py", **wish: Any) -> LaunchPlan:
        request = parse_request({"workload": "mnist", **wish})
        cluster = Cluster(node, (node,))
        known = {node.name: facts or facts_of_a_node()}
        return plan_job(request, cluster, known, request.job_id or "job", "/runs/job", script, "/r/torchfleet.py")

    return make
