"""A head that runs no ranks: the network of the ranks is the workers' own, and launchers reach them by another."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.node_form import fabric as of_survey
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.answers import published
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.choice import Choice, choose_fabric, standing
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.constraints import (
    Constraints,
    check_constraints,
    parse_subnet,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.networks import NodeNet
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.publication import (
    fabric_environment,
    fabric_files,
    fabric_of,
    reason_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.steps import next_step
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from tests.unit.nets import FAULT, net, nic, reached, roce

A, B = "10.91.0.0/24", "10.92.0.0/24"
ANY = Constraints()
HEAD = net("n1", nic("eth0", "10.91.0.1/24", speed_mbit=1000), worker=False)


def worker(host: int, **changed: Any) -> NodeNet:
    """Return a worker with the network of the head and a faster one."""
    slow = nic("eth0", f"10.91.0.{host}/24", speed_mbit=1000)
    return net(f"n{host}", slow, nic("eth1", f"10.92.0.{host}/24", speed_mbit=100000), **changed)


SMALL = (HEAD, worker(2), worker(3))


def choose(nodes: tuple[NodeNet, ...] = SMALL, constraints: Constraints = ANY, **broken: Any) -> Choice:
    rows = reached(nodes, (A, B), broken.get("broken"))
    return choose_fabric(nodes, constraints, rows, {})


def fabrics(nodes: tuple[NodeNet, ...] = SMALL, constraints: Constraints = ANY) -> dict[str, dict[str, Any]]:
    return fabric_of(choose(nodes, constraints), nodes, constraints)


def test_ranks_have_the_faster_network_and_daemons_that_of_the_head() -> None:
    found = fabrics()
    assert {name: (row["network"], row["nic"]) for name, row in found.items()} == {
        "n1": (A, "eth0"),
        "n2": (B, "eth1"),
        "n3": (B, "eth1"),
    }
    assert (found["n2"]["daemons"]["network"], found["n2"]["daemons"]["address"]) == (A, "10.91.0.2")
    assert "daemons" not in found["n1"]
    assert not [row for row in found["n1"]["rejected"] if row["nic"] == "eth0"]
    assert found["n2"]["why"] == f"preferred to {A}: faster NICs"


def test_every_library_is_told_its_own_nic() -> None:
    values = fabric_environment(fabrics()["n2"])
    daemons = {name: values[name] for name in ("HYDRA_IFACE", "I_MPI_HYDRA_IFACE", "PRTE_MCA_prte_if_include")}
    assert daemons == dict.fromkeys(daemons, "eth0")
    assert values["OMPI_MCA_oob_tcp_if_include"] == A
    assert values["OMPI_MCA_btl_tcp_if_include"] == B
    assert (values["GLOO_SOCKET_IFNAME"], values["NCCL_SOCKET_IFNAME"]) == ("eth1", "=eth1")
    assert reason_of(fabrics()["n2"], "HYDRA_IFACE") == f"eth0 in {A} was proven by role fabric"
    assert reason_of(fabrics()["n2"], "GLOO_SOCKET_IFNAME") == f"eth1 in {B} was proven by role fabric"


def test_both_borders_take_what_is_published() -> None:
    for row in fabrics().values():
        assert published(json.dumps(row)) == row
        assert of_survey(row)["network"] == row["network"]
    lie = {**fabrics()["n2"], "daemons": {"nic": "eth0", "address": "10.99.0.1", "network": A}}
    assert published(json.dumps(lie)) == {}


def test_a_choice_of_two_networks_stands() -> None:
    nodes = tuple(dataclasses.replace(node, files=fabric_files(fabrics()[node.name])) for node in SMALL)
    assert standing(nodes, ANY) is not None
    assert choose(nodes).settled
    other = (dataclasses.replace(nodes[0], worker=True), *nodes[1:])
    assert standing(other, ANY) is None


def test_of_equal_networks_that_of_the_head_is_taken() -> None:
    nodes = (HEAD, *(net(f"n{n}", nic("eth0", f"10.91.0.{n}/24"), nic("eth1", f"10.92.0.{n}/24")) for n in (2, 3)))
    found = fabrics(nodes)
    assert {row["network"] for row in found.values()} == {A}
    assert not [row for row in found.values() if "daemons" in row]
    assert found["n2"]["why"].endswith("the head is in it too")


def test_rdma_of_the_workers_decides_not_that_of_the_head() -> None:
    nodes = (
        HEAD,
        *(worker(n, ports=(roce("mlx5_0", (3, "RoCE v2", f"10.92.0.{n}"), netdev="eth1"),)) for n in (2, 3)),
    )
    found = fabrics(nodes)
    assert [len(row["rdma"]) for row in found.values()] == [0, 1, 1]
    assert [row["rdma_off"] for row in found.values()] == [""] * 3
    assert found["n2"]["why"].endswith("RDMA on every worker")
    assert "NCCL_IB_DISABLE" not in fabric_environment(found["n1"])


def test_a_network_of_the_workers_alone_is_not_enough() -> None:
    broken = {("n1", "n2", A): FAULT}
    with pytest.raises(InputError) as error:
        choose(broken=broken)
    assert f"{A}: n1 -> n2: {FAULT}" in str(error.value)
    assert f"{B}: no other network reaches the head" in str(error.value)


def test_what_is_asked_for_is_for_the_ranks() -> None:
    constraints = Constraints(parse_subnet(B))
    check_constraints(SMALL, constraints)
    assert fabrics(constraints=constraints)["n2"]["network"] == B
    asked = (HEAD, dataclasses.replace(SMALL[1], required_nic="eth1"), SMALL[2])
    found = fabrics(asked)
    assert (found["n3"]["network"], found["n1"]["network"]) == (B, A)
    assert found["n2"]["why"] == "asked for: fabric_nic of n2 is eth1"


def test_one_worker_and_a_head_have_one_network() -> None:
    found = fabrics((HEAD, worker(2)))
    assert {row["network"] for row in found.values()} == {A}


def test_step_by_step() -> None:
    def facts(node: NodeNet) -> dict[str, Any]:
        nics = [
            {
                **{key: getattr(row, key) for key in ("name", "kind", "mtu", "speed_mbit", "up", "carrier")},
                "operstate": "up",
                "port_of": "",
                "addresses": [
                    {"address": str(a.ip), "prefix": a.prefix, "stable": True, "route": a.route} for a in row.addresses
                ],
            }
            for row in node.nics
            if row.name != "lo"
        ]
        files = {"fabric.json": "", "fabric.env": ""}
        row = {"host_name": node.name, "host_name_addresses": [], "arrival": "", "nics": nics, "rdma": []}
        agent = {"port": 29000, "token": "0" * 32}
        return {"facts": {**row, "files": files}, "agent": agent, "constraints": {"rdma": []}}

    names = [node.name for node in SMALL]
    listened = {node.name: facts(node) for node in SMALL}
    given = {"names": names, "listened": listened, "measuring": {}, "measured": {}, "workers": ["n2", "n3"]}
    plan = next_step(reached={}, **given)
    assert {(row["node"], row["network"]) for row in plan["peers"]["n1"]} == {("n2", A), ("n3", A)}
    assert {(row["node"], row["network"]) for row in plan["peers"]["n2"]} == {("n1", A), ("n3", A), ("n3", B)}
    rows = reached(SMALL, (A, B))
    given["reached"] = {name: {"reached": rows[name]} for name in names}
    measuring = next_step(**{**given, "measuring": listened})
    assert measuring["steps"]["n1"] == []  # the link of the head says nothing about those of the ranks
    assert {step["node"] for step in measuring["steps"]["n2"]} == {"n3"}
    row = {"node": "n3", "error": "", "rtt_us": 50.0, "mbit_in": 900.0, "mbit_out": 900.0}
    measured = {"n2": {"measured": [{**row, "network": network} for network in (A, B)]}}
    done = next_step(**{**given, "measured": measured})
    assert done["msg"] == (
        f"{B}, preferred to {A}: faster NICs; eth1 on n2, n3; launchers reach them from eth0 on n1 by {A}"
    )
