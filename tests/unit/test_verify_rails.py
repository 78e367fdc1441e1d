"""What verify says of rails, of addresses that changed, and of a head that only launches."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric import rail_matrix
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.networks import NodeNet
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.publication import rail_row
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import trial as trial_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import verify, verify_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift import compare
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.findings import Finding, sort_out
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.rails import OF_CODES, judge_rails
from tests.unit.machines import DGX_H100, HGX_H100_ROCE, MACHINES, Machine, node_of
from tests.unit.nets import net, nic
from tests.unit.test_verify import answer, outcome

A, B = "10.1.0.0/24", "10.2.0.0/24"


def nodes_of(machine: Machine, count: int = 3) -> list[NodeNet]:
    return [node_of(machine, host) for host in range(1, count + 1)]


def with_device(node: NodeNet, device: str, **values: Any) -> NodeNet:
    ports = (dataclasses.replace(port, **values) if port.device == device else port for port in node.ports)
    return dataclasses.replace(node, ports=tuple(ports))


def told(nodes: list[NodeNet]) -> list[tuple[str, str, tuple[str, ...], str]]:
    rows = sort_out(judge_rails(nodes))
    return [(row.id, row.severity, row.nodes, row.seen) for row in rows if row.severity != "info"]


def publishing(node: NodeNet, **changed: Any) -> NodeNet:
    """Return a node that has a fabric.json of its own address and all its ports."""
    seat = {"nic": "eth0", "address": str(node.nics[0].addresses[0].ip), "network": "10.91.0.0/24"}
    rdma = [rail_row(port, ()) for port in node.ports]
    text = json.dumps({"version": 2, **seat, "rdma": rdma, **changed})
    return dataclasses.replace(node, files={"fabric.json": text})


def test_sound_rails_are_no_finding() -> None:
    assert told([publishing(node) for node in nodes_of(DGX_H100)]) == []


def test_a_dead_rail_is_an_error_and_a_slow_one_a_warning() -> None:
    nodes = nodes_of(DGX_H100)
    dead = [*nodes[:2], with_device(nodes[2], "mlx5_9", active=False)]
    assert told(dead) == [("TF-RAIL-DOWN", "error", ("n3",), "mlx5_9:1: down, where most nodes have 8 rails")]
    slow = [*nodes[:2], with_device(nodes[2], "mlx5_9", rate_gbit=100.0)]
    assert [row[:3] for row in told(slow)] == [("TF-RAIL-SLOW", "warning", ("n3",))]


def test_rdma_that_is_off_is_an_error() -> None:
    nodes = [*nodes_of(DGX_H100, 2), net("n3", nic("eth0", "10.91.0.3/24"))]
    assert ("TF-RDMA-OFF", "error", ("n3",), "RDMA is off because n3 has none") in told(nodes)


def test_a_head_without_rdma_is_no_finding() -> None:
    head = net("n9", nic("eth0", "10.91.0.9/24"), worker=False)
    assert told([head, *nodes_of(DGX_H100, 2)]) == []


def test_mixed_kinds_are_a_finding_that_hides_no_other() -> None:
    one, other = (
        node_of(DGX_H100, 1),
        node_of(HGX_H100_ROCE, 2),
    )
    assert [row[:2] for row in told([one, other])] == [("TF-RDMA-MIXED", "error")]


def test_a_device_that_fabric_rdma_names_is_gone() -> None:
    nodes = nodes_of(DGX_H100, 2)
    asked = dataclasses.replace(nodes[1], required_rdma=("mlx5_99",))
    assert [row[:3] for row in told([nodes[0], asked])] == [("TF-RAIL-MISSING", "error", ("n2",))]


def test_what_is_no_rail_is_told_as_an_info() -> None:
    rows = list(judge_rails(nodes_of(MACHINES["p6-b200"], 2)))
    assert [(row.id, row.severity, row.nodes) for row in rows] == [("TF-RDMA-OTHER", "info", ("n1", "n2"))]


def test_an_address_that_changed_is_an_error() -> None:
    nodes = [publishing(node) for node in nodes_of(DGX_H100, 2)]
    moved = publishing(nodes[1], address="10.91.0.77")
    seen = "10.91.0.77 on eth0 is gone; that NIC has 10.91.0.2"
    assert told([nodes[0], moved]) == [("TF-VERIFY-ADDRESS", "error", ("n2",), seen)]


def test_a_gid_that_moved_is_an_error() -> None:
    nodes = [publishing(node) for node in nodes_of(HGX_H100_ROCE, 2)]
    port = nodes[1].ports[3]
    moved = with_device(nodes[1], port.device, gids=(dataclasses.replace(port.gids[1], index=5),))
    seen = f"{port.name} has 10.64.3.2 at 5, not 10.64.3.2 at 3"
    assert told([nodes[0], moved]) == [("TF-RAIL-CHANGED", "error", ("n2",), seen)]


def test_every_code_has_a_rule_and_a_line_in_the_page(repo_docs: str) -> None:
    assert set(OF_CODES.values()) <= set(verify.RULES)
    assert [f"{code}, {rule}" for code, rule in OF_CODES.items() if f"| `{code}` | `{rule}` |" not in repo_docs] == []


# --- a head that only launches ----------------------------------------------------------------------------------------


def heard(address: str, network: str, daemons: str = "") -> dict[str, Any]:
    fabric: dict[str, Any] = {"nic": "eth1", "address": address, "network": network}
    if daemons:
        fabric["daemons"] = {"nic": "eth0", "address": daemons, "network": A}
    return {"fabric": fabric, "agent": {"port": 4711, "token": "t"}}


APART = {
    "n1": heard("10.1.0.1", A),
    "n2": heard("10.2.0.2", B, "10.1.0.2"),
    "n3": heard("10.2.0.3", B, "10.1.0.3"),
}


def findings_of(
    listened: dict[str, Any], rates: dict[tuple[str, str], float] | None = None, dropped: str = ""
) -> list[tuple[str, str]]:
    """Return the findings about these nodes. `dropped`: a node to which no connection comes through."""
    answers = {name: answer() for name in listened}
    workers = [name for name in listened if name != "n1"]
    trial = trial_module.plan_trial(answers, listened, "n1", workers)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in listened}
    for name, steps in trial.steps.items():
        for step in steps:
            if step["role"] == "client":
                rate = (rates or {}).get((name, step["node"]), 1000.0)
                lost = {"error": "no answer", "code": "dropped"} if step["node"] == dropped else {"error": ""}
                row = {"node": step["node"], "network": trial.network, "rtt_us": 50.0, **lost}
                rows[name].append({**row, "mbit_out": rate, "mbit_in": rate})
    run = {"launcher": "openmpi", "backend": "gloo", "failed": False, "msg": "", "run_dir": "", "in_image": False}
    outcome = verify.Outcome(answers, listened, [], rows, [run], trial, compare({}, workers), "n1", workers)
    return [(row.id, row.seen) for row in sort_out(verify.judge(outcome))]


def test_the_network_of_the_ranks_is_measured() -> None:
    trial = trial_module.plan_trial({name: answer() for name in APART}, APART, "n1", ["n2", "n3"])
    assert trial.network == B
    assert {name for name, steps in trial.steps.items() if steps} == {"n2", "n3"}
    assert findings_of(APART) == []


def test_a_worker_in_another_network_is_named() -> None:
    other = {**APART, "n3": heard("10.3.0.3", "10.3.0.0/24", "10.1.0.3")}
    assert findings_of(other) == [
        ("TF-VERIFY-FABRIC", f"its network is 10.3.0.0/24, that of the others is {B}"),
    ]
    lost = {**APART, "n1": heard("10.9.0.1", "10.9.0.0/24")}
    assert findings_of(lost)[0] == (
        "TF-VERIFY-FABRIC",
        f"launchers reach it by {A}, the head is in 10.9.0.0/24",
    )


@pytest.mark.parametrize(("slow", "ids"), [(("n1", "n2"), []), (("n2", "n3"), ["TF-VERIFY-SLOW"])])
def test_only_links_of_the_workers_are_slow(slow: tuple[str, str], ids: list[str]) -> None:
    together = {f"n{host}": heard(f"10.1.0.{host}", A) for host in (1, 2, 3, 4)}
    assert sorted({name for name, _seen in findings_of(together, {slow: 10.0, slow[::-1]: 10.0})}) == ids


def test_a_node_whose_address_is_gone_is_not_said_to_be_behind_a_firewall() -> None:
    together = {f"n{host}": heard(f"10.1.0.{host}", A) for host in (1, 2, 3)}
    assert "TF-VERIFY-FIREWALL" in {name for name, _seen in findings_of(together, dropped="n3")}
    moved = publishing(net("n3", nic("eth1", "10.1.0.33/24")), nic="eth1", address="10.1.0.3", network=A)
    together["n3"]["net"] = moved
    assert [name for name, _seen in findings_of(together, dropped="n3")] == ["TF-VERIFY-ADDRESS"]


@pytest.mark.parametrize(("workers", "each"), [(["n2"], 2), (["n2", "n3"], 1)])
def test_one_worker_has_two_ranks_to_reduce_over_whatever_the_head_is(workers: list[str], each: int) -> None:
    names = ["n1", *workers]
    trial = trial_module.plan_trial({name: answer() for name in names}, {}, "n1", workers)
    assert {run["ranks_per_node"] for run in trial.runs if run["backend"] == "gloo"} == {each}


# --- the test of each rail between each two nodes -------------------------------------------------------------------


def as_heard(*nodes: NodeNet) -> dict[str, Any]:
    agent = {"port": 4711, "token": "t"}
    return {node.name: {"fabric": node.published, "agent": agent, "net": node, "rates": {}} for node in nodes}


def test_the_plan_has_the_full_size_of_each_link_and_every_rail() -> None:
    """The rounds of the rails come after those of the network: no node is ever in two tests."""
    found = [publishing(node) for node in nodes_of(HGX_H100_ROCE)]
    nodes = [dataclasses.replace(node, rdma_test=True) for node in found]
    trial = trial_module.plan_trial({node.name: answer() for node in nodes}, as_heard(*nodes), "n1", ["n1", "n2", "n3"])
    own = trial.steps["n1"]
    links, rails = [step for step in own if "rails" not in step], [step for step in own if "rails" in step]
    assert {(step["nic"], step["mtu"]) for step in links} == {("eth0", 1500)}
    assert {len(step["rails"]) for step in rails if step["role"] == "client"} == {10}
    assert max(step["round"] for step in links) < min(step["round"] for step in rails)
    assert len({step["round"] for step in own}) == len(own)


def test_rails_of_a_head_without_ranks_are_not_tested() -> None:
    nodes = [dataclasses.replace(publishing(node), rdma_test=True) for node in nodes_of(HGX_H100_ROCE)]
    trial = trial_module.plan_trial({node.name: answer() for node in nodes}, as_heard(*nodes), "n1", ["n2", "n3"])
    assert {step["node"] for step in trial.steps["n2"] if "rails" in step} == {"n3"}


def test_a_rail_that_was_not_joined_is_in_findings_table_and_report() -> None:
    row = {
        "node": "n2",
        "rail": "mlx5_3:1",
        "peer": "mlx5_3:1",
        "by": "rdma",
        "code": "",
        "error": "",
        "mbit": 390000.0,
    }
    lost = {**row, "node": "n3", "code": "rdma-lost", "error": "no acknowledgement"}
    del lost["mbit"]
    given = outcome(rails={"n1": [row, lost]})
    (finding,) = [each for each in verify.judge(given) if each.id == "TF-RAIL-LINK"]
    assert finding.seen == "mlx5_3:1 of n1 -> mlx5_3:1 of n3: no acknowledgement"
    assert any(
        line.startswith("rails, 1 links by RDMA: median 390 Gbit/s") for line in verify_report.show(given, [finding])
    )
    assert [link["code"] for link in verify_report.report(given, [finding], "now")["rails"]] == ["", "rdma-lost"]


def test_silence_of_a_node_proves_no_rail() -> None:
    found = [publishing(node) for node in nodes_of(HGX_H100_ROCE)]
    nodes = [dataclasses.replace(node, rdma_test=True) for node in found]
    trial = trial_module.plan_trial({node.name: answer() for node in nodes}, as_heard(*nodes), "n1", ["n1", "n2", "n3"])
    rows = {
        name: [dict(rail, node=step["node"]) for step, rail in rails_of(steps)] for name, steps in trial.steps.items()
    }
    assert rail_matrix.unreported(trial.steps, rows) == ()
    given = dataclasses.replace(outcome(), trial=trial, rails={**rows, "n2": []})
    (finding,) = verify_untested(given)
    assert (finding.nodes, finding.seen) == (("n1", "n2", "n3"), "n2 reported no result")


def rails_of(steps: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    clients = [step for step in steps if step["role"] == "client"]
    return ((step, rail) for step in clients for rail in step.get("rails", ()))


def verify_untested(given: verify.Outcome) -> list[Finding]:
    good = {"code": "", "error": "", "mbit": 390000.0}
    rails = {name: [{**row, **good} for row in rows] for name, rows in given.rails.items()}
    return [each for each in verify.judge(dataclasses.replace(given, rails=rails)) if each.id == "TF-RAIL-UNTESTED"]
