"""Which rails are tested with which, how, and when."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric import rail_matrix
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.networks import NodeNet
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.rail_matrix import Seat, Untested, plan_rails
from tests.unit.nets import net, nic

AGENT = {"port": 4711, "token": "t"}


def node(host: int, rdma_test: bool = False, **of_nic: Any) -> NodeNet:
    """Return a node with a network of its own and two rails in two subnets."""
    rails = [nic(f"rail{n}", f"10.{n}.0.{host}/24", mtu=9000, **of_nic) for n in (1, 2)]
    return net(f"n{host}", nic("eth0", f"10.0.0.{host}/24"), *rails, rdma_test=rdma_test)


def fabric(host: int, **changed: Any) -> dict[str, Any]:
    rows = [
        {"device": f"mlx5_{n}", "port": 1, "gid_index": 3, "address": f"10.{n}.0.{host}", "netdev": f"rail{n}"}
        for n in (1, 2)
    ]
    return {"nic": "eth0", "rdma": [{**row, **changed} for row in rows]}


def planned(*nets: NodeNet) -> rail_matrix.Plan:
    seats = {each.name: rail_matrix.seats_of(fabric(int(each.name[1:])), each) for each in nets}
    addresses = {each.name: f"10.0.0.{each.name[1:]}" for each in nets}
    return plan_rails(seats, addresses, dict.fromkeys(addresses, AGENT), 7)


def test_every_rail_is_tested_between_each_two_nodes_in_both_directions() -> None:
    plan = planned(node(1), node(2), node(3))
    tests = [
        (name, step["node"], rail["rail"], rail["peer"])
        for name, steps in plan.steps.items()
        for step in steps
        if step["role"] == "client"
        for rail in step["rails"]
    ]
    assert len(tests) == len(set(tests)) == 3 * 2 * 2
    assert all(rail == peer for _one, _other, rail, peer in tests)
    assert (plan.untested, plan.left_out) == ((), 0)


def test_no_node_is_in_two_tests_at_once_and_both_know_of_each() -> None:
    plan = planned(*(node(host) for host in range(1, 6)))
    rounds = [(step["round"], name) for name, steps in plan.steps.items() for step in steps]
    assert len(rounds) == len(set(rounds)) and min(rounds)[0] == 7
    sides = {(step["round"], frozenset((name, step["node"]))) for name, own in plan.steps.items() for step in own}
    assert len(sides) * 2 == len(rounds)


def test_tcp_goes_over_the_nic_of_the_rail_with_the_mtu_of_both() -> None:
    narrow = dataclasses.replace(node(2), nics=tuple(dataclasses.replace(each, mtu=4200) for each in node(2).nics))
    (step,) = [step for step in planned(node(1), narrow).steps["n1"] if step["role"] == "client"]
    assert step["rails"][0] == {
        "rail": "mlx5_1:1",
        "peer": "mlx5_1:1",
        "by": "tcp",
        "nic": "rail1",
        "source": "10.1.0.1",
        "address": "10.1.0.2",
        "mtu": 4200,
    }
    assert step["address"] == "10.0.0.2"


def test_rdma_is_tested_by_itself_where_both_nodes_can() -> None:
    (step,) = [step for step in planned(node(1, True), node(2, True)).steps["n1"] if step["role"] == "client"]
    port = {"device": "mlx5_1", "port": 1, "gid_index": 3}
    assert step["rails"][0] == {"rail": "mlx5_1:1", "peer": "mlx5_1:1", "by": "rdma", "own": port, "other": port}
    assert planned(node(1, True), node(2)).steps["n1"][0]["rails"][0]["by"] == "tcp"


def test_rails_of_one_subnet_are_not_tested_by_tcp() -> None:
    """The kernel sends by one of them: the test would prove that one, eight times."""
    plan = planned(node(1, route="eth0"), node(2))
    why = "the kernel sends to its subnet by eth0, and perftest (ib_write_bw) is not on both nodes"
    assert plan.steps == {}
    assert plan.untested[0] == Untested("n1", "mlx5_1:1", "n2", "mlx5_1:1", why)
    assert len(plan.untested) == 2


@pytest.mark.parametrize("flaw", [{"carrier": False}, {"up": False}])
def test_a_rail_without_a_link_is_tested_all_the_same(flaw: dict[str, bool]) -> None:
    """The kernel then sends to its subnet by another NIC: the test says that it is cut."""
    assert planned(node(1, route="eth0", **flaw), node(2)).untested == ()


def test_a_rail_without_an_address_needs_perftest() -> None:
    """InfiniBand without IPoIB."""
    row = {"device": "mlx5_1", "port": 1, "gid_index": None, "address": None, "netdev": ""}
    seat = rail_matrix.seat_of(row, node(1))
    assert rail_matrix.how(seat, seat, "10.0.0.2")[1].startswith("it has no address, and perftest")
    able = dataclasses.replace(seat, tool=True)
    assert rail_matrix.how(able, able, "10.0.0.2") == ("rdma", "")
    assert rail_matrix.how(able, able, "fd00::2")[0] == ""  # perftest finds its server by IPv4 alone


def test_rails_that_are_off_are_not_tested() -> None:
    assert rail_matrix.seats_of({**fabric(1), "rdma_off": "n3 has none"}, node(1)) == []


@pytest.mark.parametrize(
    ("one", "other", "pairs"),
    [
        (("a", "b"), ("b", "a"), {("a", "a"), ("b", "b")}),
        (("a", "b"), ("a", "c"), {("a", "a"), ("b", "c")}),
        (("a", "b"), ("x", "y"), {("a", "x"), ("b", "y")}),
        (("a", "b"), ("a",), {("a", "a")}),
    ],
)
def test_rails_face_those_of_their_name(one: tuple[str, ...], other: tuple[str, ...], pairs: set[Any]) -> None:
    sides = [[Seat(name, {}, False) for name in names] for names in (one, other)]
    assert {(mine.rail, theirs.rail) for mine, theirs in rail_matrix.facing(*sides)} == pairs


def test_many_nodes_are_tested_with_some_others_each_and_it_is_told() -> None:
    plan = planned(*(node(host, True) for host in range(1, 201)))
    rounds = {step["round"] for steps in plan.steps.values() for step in steps}
    assert len(rounds) * rail_matrix.ROUND_SECONDS["rdma"] <= rail_matrix.BUDGET
    assert len(plan.steps) == 200 and plan.left_out == 200 * 199 - 100 * len(rounds)
