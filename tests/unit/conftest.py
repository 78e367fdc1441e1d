"""What the tests of the pure core share: a cluster of this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nodes import Facts, fabric, facts_of_a_node

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cluster import Cluster, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._plan import Job, LaunchPlan, Program, plan_job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import parse_request


@pytest.fixture
def node() -> Node:
    return Node("localhost", "localhost", local=True, slots=2)


@pytest.fixture
def plan(node: Node) -> Callable[..., LaunchPlan]:
    """Return a function that plans a job on this machine: facts may be changed, the rest is the user's wish."""

    def make(facts: Facts | None = None, script: str = "/w/mnist.py", **wish: Any) -> LaunchPlan:
        return planned(Cluster(node, (node,)), {node.name: facts or facts_of_a_node()}, Program(script, (), {}), wish)

    return make


@pytest.fixture
def plan_two() -> Callable[..., LaunchPlan]:
    """Return a function that plans a job on two nodes; `n1`, `n2` change their facts, `env`, `slots` are by node."""

    def make(
        n2: Facts | None = None,
        launcher_facts: Facts | None = None,
        n1: Facts | None = None,
        env: dict[str, dict[str, str]] | None = None,
        slots: dict[str, int] | None = None,
        **wish: Any,
    ) -> LaunchPlan:
        both = facts_of_a_node(**({"launcher": launcher_facts} if launcher_facts else {}))
        facts = {
            "n1": {**both, "fabric": fabric("eth0", "10.1.0.11"), **(n1 or {})},
            "n2": {**both, "fabric": fabric("eth1", "10.1.0.12"), **(n2 or {})},
        }
        nodes = tuple(
            Node(name, address, slots=(slots or {}).get(name, 2), env=(env or {}).get(name, {}))
            for name, address in (("n1", "192.0.2.1"), ("n2", "192.0.2.2"))
        )
        return planned(Cluster(nodes[0], nodes), facts, Program("/w/mnist.py", (), {}, "w-1234"), wish)

    return make


def planned(cluster: Cluster, facts: dict[str, Facts], program: Program, wish: dict[str, Any]) -> LaunchPlan:
    request = parse_request({"workload": "mnist", **wish})
    program = dataclasses.replace(program, args=request.workload_args, env=request.job_env)
    return plan_job(request, cluster, facts, Job(request.job_id or "job", "/runs/job", program, "lib/d/torchfleet.py"))


@pytest.fixture(scope="session")
def repo_docs() -> str:
    """Return the text of all pages."""
    return "\n".join(page.read_text() for page in sorted((Path(__file__).parents[2] / "docs").glob("*.md")))
