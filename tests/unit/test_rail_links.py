"""What is said of a rail that is cut, slow or too narrow between two nodes only."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.answers import parted, rails_measured_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.rail_matrix import Untested
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.rail_links import (
    judge_rail_links,
    links,
    summary,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

NODES, RAILS = ("n1", "n2", "n3", "n4"), ("mlx5_0:1", "mlx5_3:1")
Change = dict[tuple[str, str, str], dict[str, Any]]


def row(node: str, rail: str, **changed: Any) -> dict[str, Any]:
    good = {"code": "", "error": "", "mbit": 390000.0, "mtu": 4096}
    return {"node": node, "rail": rail, "peer": rail, "by": "rdma", **good, **changed}


def measured(changed: Change | None = None) -> dict[str, list[dict[str, Any]]]:
    """Return a test of two rails between all nodes; `changed` by from, to and rail."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in NODES}
    for one, two in permutations(NODES, 2):
        for rail in RAILS:
            rows[one].append(row(two, rail, **(changed or {}).get((one, two, rail), {})))
    return rows


def told(rows: dict[str, list[dict[str, Any]]], **given: Any) -> list[tuple[str, tuple[str, ...], str]]:
    return [(each.id, each.nodes, each.seen) for each in judge_rail_links(rows, **given)]


def both_ways(one: str, other: str, rail: str, **changed: Any) -> Change:
    return {(one, other, rail): changed, (other, one, rail): changed}


LOST = {"code": "rdma-lost", "error": "no acknowledgement by RDMA (status 12 of ib_write_bw)"}


def test_sound_rails_are_no_finding() -> None:
    assert told(measured()) == []


def test_a_rail_that_is_cut_between_two_nodes_only_is_named_with_both_devices() -> None:
    assert told(measured(both_ways("n1", "n4", "mlx5_3:1", **LOST))) == [
        ("TF-RAIL-LINK", ("n1", "n4"), f"mlx5_3:1 of n1 -> mlx5_3:1 of n4: {LOST['error']}"),
        ("TF-RAIL-LINK", ("n4", "n1"), f"mlx5_3:1 of n4 -> mlx5_3:1 of n1: {LOST['error']}"),
    ]


def test_a_rail_that_reaches_nobody_is_told_once() -> None:
    changed: Change = {}
    for other in ("n1", "n3", "n4"):
        changed |= both_ways("n2", other, "mlx5_3:1", **LOST)
    assert told(measured(changed)) == [
        ("TF-RAIL-LINK", ("n2",), f"mlx5_3:1 of n2 -> all others (n1 n3 n4): {LOST['error']}")
    ]


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("small-mtu", "TF-RAIL-MTU"),
        ("dropped", "TF-RAIL-FIREWALL"),
        ("no-neighbour", "TF-RAIL-LINK"),
        ("no-carrier", "TF-RAIL-LINK"),
        ("silent", "TF-RAIL-LINK"),
        ("no-tool", "TF-RAIL-UNTESTED"),
        ("not-ready", "TF-RAIL-UNTESTED"),
        ("other-nic", "TF-RAIL-UNTESTED"),
    ],
)
def test_each_fault_is_called_what_it_is(code: str, rule: str) -> None:
    changed: Change = {("n1", "n4", "mlx5_3:1"): {"code": code, "error": "why"}}
    assert [name for name, _nodes, _seen in told(measured(changed))] == [rule]


def test_a_slow_rail_between_two_nodes_and_one_that_is_slow_with_all() -> None:
    found = told(measured({("n1", "n4", "mlx5_3:1"): {"mbit": 90000.0}}))
    seen = "mlx5_3:1 of n1 -> mlx5_3:1 of n4: 90,000 Mbit/s, the median is 390,000 (RDMA)"
    assert found == [("TF-RAIL-LINK-SLOW", ("n1", "n4"), seen)]
    changed: Change = {("n1", other, "mlx5_3:1"): {"mbit": 90000.0} for other in NODES[1:]}
    seen = "all that mlx5_3:1 of n1 sends: 90,000 Mbit/s, the median is 390,000 (RDMA)"
    assert told(measured(changed)) == [("TF-RAIL-LINK-SLOW", ("n1",), seen)]


def test_a_rate_by_tcp_is_not_compared_with_one_by_rdma() -> None:
    assert told(measured(both_ways("n1", "n4", "mlx5_3:1", by="tcp", mbit=20000.0))) == []


def test_a_node_that_is_gone_is_not_said_to_have_cut_rails() -> None:
    changed: Change = {}
    for other in ("n1", "n3", "n4"):
        changed |= both_ways("n2", other, "mlx5_3:1", **LOST)
    assert told(measured(changed), silent=["n2"]) == []


def test_what_was_not_tested_is_told_once_for_each_reason() -> None:
    untested = [Untested("n1", rail, "n2", rail, "no perftest") for rail in RAILS]
    assert told({}, untested=untested, left_out=12) == [
        ("TF-RAIL-UNTESTED", ("n1", "n2"), "no perftest"),
        ("TF-RAIL-UNTESTED", (), "12 links between nodes: there are too many for the time of the test"),
    ]


def test_report_and_summary_have_the_figures() -> None:
    rows = measured({("n1", "n4", "mlx5_3:1"): {"mbit": 90000.0}})
    slowest = "slowest 90 (mlx5_3:1 of n1 -> mlx5_3:1 of n4)"
    assert summary(rows) == [f"rails, 24 links by RDMA: median 390 Gbit/s, {slowest}"]
    assert links(rows)[0] == {
        "from": {"node": "n1", "rail": "mlx5_0:1"},
        "to": {"node": "n2", "rail": "mlx5_0:1"},
        "by": "rdma",
        "code": "",
        "error": "",
        "mbit": 390000.0,
        "mtu": 4096,
    }


# --- the border -------------------------------------------------------------------------------------------------------


def test_rows_of_rails_are_told_from_those_of_links() -> None:
    link = {"node": "n2", "network": "10.0.0.0/24", "error": ""}
    assert parted([link, row("n2", "mlx5_0:1"), 7]) == ([link, 7], [row("n2", "mlx5_0:1")])
    assert parted(None) == ([], [])


@pytest.mark.parametrize(
    "changed",
    [
        {"node": "n9"},
        {"rail": "mlx5_0"},
        {"peer": "x" * 70 + ":1"},
        {"by": "magic"},
        {"mbit": -1.0},
        {"mbit": float("inf")},
        {"mbit": "fast"},
        {"mtu": "4096"},
        {"code": "A B"},
        {"code": "no-such-code"},
    ],
)
def test_a_row_that_no_node_of_ours_sends_is_refused(changed: dict[str, Any]) -> None:
    assert rails_measured_of("n1", [row("n2", "mlx5_0:1")], NODES) == [row("n2", "mlx5_0:1")]
    with pytest.raises(InputError, match="answer of n1"):
        rails_measured_of("n1", [{**row("n2", "mlx5_0:1"), **changed}], NODES)


def test_a_failed_row_has_no_figures() -> None:
    (found,) = rails_measured_of("n1", [row("n2", "mlx5_0:1", **LOST)], NODES)
    assert "mbit" not in found and found["code"] == "rdma-lost"


def test_a_node_that_tells_of_very_many_rails_does_not_keep_the_controller_busy() -> None:
    """Every row was compared with every other: this took many minutes."""
    lost = [row("n2", f"mlx5_{number}:1", **LOST) for number in range(30_000)]
    fast = [row("n2", f"mlx5_{number}:1") for number in range(30_000, 60_000)]
    assert len(told({"n1": [*lost, *fast]})) == 30_000
