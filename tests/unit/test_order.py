"""What head and nodes are told to do, and what a report keeps of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import pasteable
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.order import order_for, plan_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render

Planner = Callable[..., LaunchPlan]


def test_each_node_gets_its_own_nic_and_order(plan_two: Planner) -> None:
    made = plan_two(n2={"home": "/tf", "running": [{"job_id": "other", "owner": "alice", "own_home": True}]})
    nics = [{item.name: item.value for item in node.environment} for node in made.nodes]
    assert [found["GLOO_SOCKET_IFNAME"] for found in nics] == ["eth0", "eth1"]
    order = order_for(dataclasses.replace(made, owner="me@here"), render(made), "here")
    assert (order["job"]["controller"], order["job"]["owner"]) == ("here", "me@here")
    (route,) = order["routes"]
    n1, n2 = order["nodes"]["n1"], order["nodes"]["n2"]
    assert (order["job"]["head"], n1["ranks"], n2["ranks"]) == ("n1", [0, 1], [2, 3])
    assert (n1["known_jobs"], n2["known_jobs"]) == ([], ["other"])  # beside which it may run
    assert n1["command"] and n2["command"] == []  # mpirun asks for its daemon there when it wants it
    assert (route["host"], route["interpreter"]) == ("n2", "/usr/bin/python3.9")
    assert n2["environment"]["GLOO_SOCKET_IFNAME"] == "eth1"
    assert n2["launcher_search"] == ["/tf/jobs/job/bin", "/opt/ompi/bin"] == route["launcher_search"]


def test_a_head_without_ranks_has_an_order_too(plan_two: Planner) -> None:
    made = plan_two()
    alone = dataclasses.replace(made, head=dataclasses.replace(made.head, name="h", ranks=0))
    order = order_for(alone, render(alone), "here")
    assert {name: node["ranks"] for name, node in order["nodes"].items()} == {"h": [], "n1": [0, 1], "n2": [2, 3]}
    assert [route["host"] for route in order["routes"]] == ["n1", "n2"]


def test_secrets_stay_out_of_reports_but_reach_the_rank(plan: Planner) -> None:
    made = plan(job_env={"DB_PASSWORD": "hush", "PLAIN": "seen"})
    command = render(made)
    report = plan_report(made, command)
    shown = {row["name"]: row["value"] for row in json.loads(report)["environment"]["localhost"]}
    assert "hush" not in report and (shown["DB_PASSWORD"], shown["PLAIN"]) == ("(hidden)", "seen")
    assert "hush" not in repr(made)
    assert "hush" not in pasteable(made, command)
    order = order_for(made, command, "here")
    assert order["secrets"] == {"localhost": {"DB_PASSWORD": "hush"}}
    assert "hush" not in json.dumps({**order, "secrets": {}})
