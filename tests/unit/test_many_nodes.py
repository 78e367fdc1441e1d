"""On many nodes that are alike, what is the same for all is said once, with their names folded."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import explain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program import Program
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.torchrun import rendezvous
from tests.unit.nodes import fabric, facts_of_a_node, planned

COUNT = 100


def plan_of_many(changed: dict[str, dict[str, Any]] | None = None, **options: Any) -> LaunchPlan:
    """Plan a job on n1 to n100; `changed` replaces facts of some."""
    names = [f"n{number}" for number in range(1, COUNT + 1)]
    facts = {
        name: {**facts_of_a_node(fabric=fabric("eth0", f"10.1.0.{number}")), **(changed or {}).get(name, {})}
        for number, name in enumerate(names, 1)
    }
    nodes = tuple(Node(name, f"192.0.2.{number}", slots=1) for number, name in enumerate(names, 1))
    return planned(Cluster(nodes[0], nodes), facts, Program("/w/mnist.py", (), shipped=True), options)


def test_check_shows_equal_environments_once() -> None:
    made = plan_of_many()
    lines = explain(made, render(made))
    assert [line for line in lines if line.startswith("environment of the ranks on")] == [
        "environment of the ranks on n1-n100"
    ]
    assert [line for line in lines if line.startswith("program of each rank on")] == ["program of each rank on n1-n100"]
    assert len([line for line in lines if "OMP_NUM_THREADS=" in line]) == 1


def test_a_node_that_differs_has_an_environment_of_its_own() -> None:
    made = plan_of_many({"n7": {"cores": 3}})
    lines = explain(made, render(made))
    titles = [line for line in lines if line.startswith("environment of the ranks on")]
    assert titles == ["environment of the ranks on n1-n6 n8-n100", "environment of the ranks on n7"]
    assert any("OMP_NUM_THREADS=3" in line for line in lines[lines.index(titles[1]) :])


def test_equal_warnings_are_one_line() -> None:
    left = [{"pid": 1, "job_id": "old", "command": "x"}]
    changed = {f"n{number}": {"uid": 0, "leftovers": left} for number in range(1, 61)}
    changed["n70"] = {"fabric": None, "leftovers": [*left, {"pid": 2, "job_id": "older", "command": "y"}]}
    made = plan_of_many(changed, job_env={"GLOO_SOCKET_IFNAME": "eth1"})
    assert made.warnings == (
        "no NIC was chosen for n70, libraries guess: ansible-playbook setup.yml --tags fabric",
        "GLOO_SOCKET_IFNAME=eth1 contradicts role fabric, which proved eth0 on n1-n69 n71-n100",
        "n1-n60: 60 leftover processes of old: ansible-playbook clean.yml ends them",
        "n70: 2 leftover processes of old, older: ansible-playbook clean.yml ends them",
        "ranks run as root on n1-n60, because you connect as root",
    )


@pytest.mark.parametrize(("address", "endpoint"), [("fd00::1", "[fd00::1]:23456"), ("10.1.0.1", "10.1.0.1:23456")])
def test_an_ipv6_address_has_brackets_in_front_of_a_port(address: str, endpoint: str) -> None:
    program = {"path": "/v/bin/python", "version": "2.13.0", "wanted": "", "said": "", "refused": ""}
    changed = {f"n{number}": {"launcher": program} for number in range(1, COUNT + 1)}
    made = plan_of_many(changed, launcher="torchrun", rendezvous="c10d")
    made = dataclasses.replace(made, master_addr=address)
    given = {option.words[0]: option.words[1] for option in rendezvous(made, 0)}
    assert given["--rdzv-endpoint"] == endpoint
