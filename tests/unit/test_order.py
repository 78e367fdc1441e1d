"""What head and nodes are told to do, and what a report keeps of it."""

from __future__ import annotations

import json
from collections.abc import Callable

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import pasteable
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.order import order_for, plan_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render

Planner = Callable[..., LaunchPlan]


def test_each_node_gets_its_own_nic_and_order(plan_two: Planner) -> None:
    made = plan_two(n2={"home": "/tf"})
    nics = [{item.name: item.value for item in node.environment} for node in made.nodes]
    assert [found["GLOO_SOCKET_IFNAME"] for found in nics] == ["eth0", "eth1"]
    order = order_for(made, render(made), "here")
    other = order["others"]["n2"]
    assert order["command"] and other["command"] == []  # mpirun asks for its daemon there when it wants it
    assert other["way"]["interpreter"] == "/usr/bin/python3.9"
    assert other["environment"]["GLOO_SOCKET_IFNAME"] == "eth1"
    assert other["launcher_search"] == ["/tf/jobs/job/bin", "/opt/ompi/bin"]


def test_secrets_stay_out_of_reports_but_reach_the_rank(plan: Planner) -> None:
    made = plan(job_env={"DB_PASSWORD": "hush", "PLAIN": "seen"})
    command = render(made)
    report = plan_report(made, command)
    shown = {row["name"]: row["value"] for row in json.loads(report)["environment"]["localhost"]}
    assert "hush" not in report and (shown["DB_PASSWORD"], shown["PLAIN"]) == ("(hidden)", "seen")
    assert "hush" not in repr(made)
    assert "hush" not in pasteable(made, command)
    order = order_for(made, command, "here")
    assert order.pop("secrets") == {"DB_PASSWORD": "hush"}
    assert "hush" not in json.dumps(order)
