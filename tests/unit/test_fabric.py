"""Which network carries a cluster, and what is published of it."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.choice import (
    Choice,
    alone,
    choose_fabric,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.constraints import (
    Constraints,
    check_constraints,
    parse_subnet,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.networks import NodeNet
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.publication import (
    all_have_rails,
    fabric_environment,
    fabric_files,
    fabric_of,
    reason_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.rejections import SENTENCES, RejectionCode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.steps import next_step
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from tests.unit.nets import FAULT, LO, net, nic, pair, reached, roce

A, B = "10.91.0.0/24", "10.92.0.0/24"
ANY = Constraints()
BOTH = pair(("eth0", "10.91.0"), ("eth1", "10.92.0"))


def choose(nodes: tuple[NodeNet, ...], *networks: str, constraints: Constraints = ANY, **given: Any) -> Choice:
    """Return the choice when every pair of nodes reaches each other in these networks."""
    given.setdefault("measured", {})
    broken = given.pop("broken", None)
    return choose_fabric(nodes, constraints, reached(nodes, networks, broken), **given)


def taken(choice: Choice) -> tuple[str, dict[str, str]]:
    """Return the network that was chosen, and the NIC of each node."""
    assert choice.chosen is not None
    return str(choice.chosen.network), {name: seat.nic.name for name, seat in choice.chosen.seats.items()}


def reasons(choice: Choice) -> dict[tuple[str, str], str]:
    return {(row.node, row.address): row.reason.text for row in choice.rejections}


def refused(nodes: tuple[NodeNet, ...], *networks: str, constraints: Constraints = ANY, **broken: Any) -> str:
    with pytest.raises(InputError) as error:
        choose(nodes, *networks, constraints=constraints, **broken)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- what is published ------------------------------------------------------------------------------------------------

PLAIN = {"version": 1, "nic": "eth0", "address": "10.91.0.1", "network": A, "mtu": 1500, "same_name": True, "rdma": []}


def port_of(
    device: str, gid_index: int | None = 3, netdev: str = "eth0", address: str | None = "10.91.0.1"
) -> dict[str, Any]:
    return {"device": device, "port": 1, "gid_index": gid_index, "netdev": netdev, "address": address}


def test_every_library_is_told_the_nic() -> None:
    assert fabric_environment(PLAIN) == {
        "CCL_KVS_IFACE": "eth0",
        "FI_SOCKETS_IFACE": "eth0",
        "FI_TCP_IFACE": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "HYDRA_IFACE": "eth0",
        "I_MPI_HYDRA_IFACE": "eth0",
        "NCCL_SOCKET_FAMILY": "AF_INET",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "OMPI_MCA_btl_tcp_if_include": A,
        "OMPI_MCA_oob_tcp_if_include": A,
        "PRTE_MCA_prte_if_include": "eth0",
        "TP_SOCKET_IFNAME": "eth0",
        "UCX_NET_DEVICES": "eth0",
    }


def test_names_that_differ_make_way_for_the_network() -> None:
    assert fabric_environment({**PLAIN, "same_name": False})["PRTE_MCA_prte_if_include"] == A


def test_open_mpi_reads_no_ipv6_network() -> None:
    values = fabric_environment({**PLAIN, "address": "fd00::1", "network": "fd00::/64"})
    assert values["OMPI_MCA_btl_tcp_if_include"] == "eth0"
    assert values["NCCL_SOCKET_FAMILY"] == "AF_INET6"


def test_loopback_leaves_the_daemons_of_open_mpi_alone() -> None:
    values = fabric_environment({**PLAIN, "nic": "lo", "address": "127.0.0.1", "network": "127.0.0.0/8"})
    assert values["GLOO_SOCKET_IFNAME"] == "lo"
    assert values["OMPI_MCA_btl_tcp_if_include"] == "127.0.0.0/8"
    assert not {"PRTE_MCA_prte_if_include", "OMPI_MCA_oob_tcp_if_include"} & set(values)


def rdma_values(ports: list[dict[str, Any]], **changed: Any) -> dict[str, str]:
    values = fabric_environment({**PLAIN, "rdma": ports, **changed})
    return {name: value for name, value in values.items() if name.startswith(("NCCL_IB", "UCX", "FI_VERBS"))}


def test_rdma_of_the_nic() -> None:
    assert rdma_values([port_of("mlx5_0")]) == {
        "FI_VERBS_IFACE": "eth0",
        "NCCL_IB_ADDR_FAMILY": "AF_INET",
        "NCCL_IB_ADDR_RANGE": A,
        "NCCL_IB_HCA": "=mlx5_0:1",
        "UCX_NET_DEVICES": "mlx5_0:1,eth0",
    }


@pytest.mark.parametrize(("mode", "index"), [("auto", None), ("always", "3"), ("never", None)])
def test_the_gid_index_is_published_on_request(mode: str, index: str | None) -> None:
    values = rdma_values([port_of("mlx5_0")], nccl_gid=mode)
    assert values.get("NCCL_IB_GID_INDEX") == index
    assert ("NCCL_IB_ADDR_RANGE" in values) == (mode != "never")


def test_ports_with_different_indices_have_no_common_one() -> None:
    values = rdma_values([port_of("mlx5_0", 3), port_of("mlx5_1", 5)], nccl_gid="always")
    assert "NCCL_IB_GID_INDEX" not in values
    assert values["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"


def test_rails_of_other_networks_get_no_range() -> None:
    other = port_of("mlx5_1", netdev="eth1", address="10.92.0.1")
    assert "NCCL_IB_ADDR_RANGE" not in rdma_values([port_of("mlx5_0"), other])
    beside = port_of("mlx5_1", netdev="eth1", address="10.91.0.9")
    assert rdma_values([port_of("mlx5_0"), beside])["NCCL_IB_ADDR_RANGE"] == A


def test_infiniband_has_no_roce_gid() -> None:
    values = rdma_values([port_of("mlx5_0", None, "ib0", None)])
    assert values == {"NCCL_IB_HCA": "=mlx5_0:1", "UCX_NET_DEVICES": "mlx5_0:1,eth0"}


def test_rdma_that_not_all_nodes_have_is_turned_off() -> None:
    assert rdma_values([], rdma_off="n2: none")["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_IB_DISABLE" not in rdma_values([])


def test_the_files() -> None:
    files = fabric_files(PLAIN)
    assert json.loads(files["fabric.json"]) == PLAIN
    assert "NCCL_SOCKET_IFNAME==eth0\n" in files["fabric.env"]


# --- which network ----------------------------------------------------------------------------------------------------


def test_the_only_network() -> None:
    nodes = pair(("eth0", "10.91.0"))
    choice = choose(nodes, A)
    assert taken(choice) == (A, {"n1": "eth0", "n2": "eth0"})
    assert choice.why == "the only network that connects all nodes"


def test_names_may_differ() -> None:
    nodes = (net("n1", nic("eno1", "10.91.0.1/24")), net("n2", nic("enp3s0", "10.91.0.2/24")))
    choice = choose(nodes, A)
    assert taken(choice) == (A, {"n1": "eno1", "n2": "enp3s0"})
    fabrics = fabric_of(choice, nodes, ANY)
    assert [(fabric["nic"], fabric["same_name"]) for fabric in fabrics.values()] == [("eno1", False), ("enp3s0", False)]


@pytest.mark.parametrize("direction", [("n1", "n2"), ("n2", "n1")])
def test_one_broken_direction_is_enough(direction: tuple[str, str]) -> None:
    choice = choose(BOTH, A, B, broken={(*direction, A): FAULT})
    assert taken(choice)[0] == B
    assert reasons(choice)["n1", "10.91.0.1/24"] == f"{' -> '.join(direction)}: {FAULT}"


def test_a_pair_that_was_not_tried_counts_as_broken() -> None:
    assert taken(choose(BOTH, B))[0] == B


@pytest.mark.parametrize(
    ("flawed", "reason"),
    [
        (nic("docker0", "10.90.0.1/16", kind="bridge", carrier=False, operstate="down"), "no carrier"),
        (nic("eth9", "10.90.0.1/24", up=False, carrier=False, operstate="down"), "down"),
        (nic("eth9", "10.90.0.1/24", operstate="lowerlayerdown"), "no carrier"),
        (nic("tun0", "10.90.0.1/24", kind="tunnel", operstate="unknown"), "VPN"),
        (nic("eth9", "10.90.0.1/32"), "/32: an address without a subnet"),
        (nic("eth9", "fd90::1/128"), "/128: an address without a subnet"),
        (nic("eth9", "169.254.7.1/16"), "link-local"),
        (nic("eth9", "fe80::1/64"), "link-local"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_never_carry_a_cluster(flawed: Any, reason: str) -> None:
    """It would win: it is faster, and has a larger MTU."""
    flawed = dataclasses.replace(flawed, mtu=9000, speed_mbit=100000)
    other = dataclasses.replace(flawed.addresses[0], ip=flawed.addresses[0].ip + 1)
    one, two = pair(("eth0", "10.91.0"))
    nodes = (
        dataclasses.replace(one, nics=(*one.nics, flawed)),
        dataclasses.replace(two, nics=(*two.nics, dataclasses.replace(flawed, addresses=(other,)))),
    )
    choice = choose(nodes, A, str(flawed.addresses[0].network))
    assert taken(choice)[0] == A
    assert reason in reasons(choice)["n1", str(flawed.addresses[0])]
    assert "loopback" in reasons(choice)["n1", "127.0.0.1/8"]


def test_an_unstable_ipv6_address_is_not_taken() -> None:
    unstable = dataclasses.replace(nic("eth0", "fd00::1/64").addresses[0], stable=False)
    flawed = dataclasses.replace(nic("eth0"), addresses=(unstable,))
    assert "temporary" in refused((net("n1", flawed), net("n2", nic("eth0", "fd00::2/64"))))


def test_the_same_address_on_two_nodes_is_docker0() -> None:
    twin = nic("docker0", "172.17.0.1/16", kind="bridge", mtu=9000)
    one, two = pair(("eth0", "10.91.0"))
    nodes = (dataclasses.replace(one, nics=(*one.nics, twin)), dataclasses.replace(two, nics=(*two.nics, twin)))
    choice = choose(nodes, A, "172.17.0.0/16")
    assert taken(choice)[0] == A
    assert "another node has the same address" in reasons(choice)["n2", "172.17.0.1/16"]


def test_the_own_name_in_hosts_is_told() -> None:
    nodes = pair(("eth0", "10.91.0"), host_name="n", host_name_addresses=("127.0.1.1", "10.91.0.1"))
    choice = choose(nodes, A)
    assert "/etc/hosts" in reasons(choice)["n1", "127.0.1.1"]
    assert ("n1", "10.91.0.1") not in reasons(choice)


def test_noise_is_not_told() -> None:
    one, two = pair(("eth0", "10.91.0"))
    port = nic("veth12", "fe80::5/64", kind="veth", port_of="docker0")
    both = nic("eth1", "10.92.0.1/24", "fe80::6/64")
    choice = choose((dataclasses.replace(one, nics=(*one.nics, port, both)), two), A)
    assert not [address for _node, address in reasons(choice) if address.startswith("fe80")]


def test_of_two_nics_in_a_network_the_routed_one_is_taken() -> None:
    first, second = nic("eth0", "10.91.0.1/24", route="eth1"), nic("eth1", "10.91.0.11/24")
    choice = choose((net("n1", first, second), net("n2", nic("eth0", "10.91.0.2/24"))), A)
    assert taken(choice) == (A, {"n1": "eth1", "n2": "eth0"})
    assert "over eth1" in reasons(choice)["n1", "10.91.0.1/24"]


# --- if there are several ---------------------------------------------------------------------------------------------


def two_usable(changed: dict[str, Any], changed_b: dict[str, Any], **of_node: Any) -> tuple[NodeNet, NodeNet]:
    """Return two nodes with NICs in A and in B."""
    return tuple(
        net(
            f"n{host}",
            nic("eth0", f"10.91.0.{host}/24", **changed),
            nic("eth1", f"10.92.0.{host}/24", **changed_b),
            **of_node,
        )
        for host in (1, 2)
    )  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("worse", "better", "measured", "word"),
    [
        ({"speed_mbit": 1000}, {"speed_mbit": 25000}, {}, "faster NICs"),
        ({"speed_mbit": None}, {"speed_mbit": 1000}, {}, "faster NICs"),
        ({"mtu": 1500}, {"mtu": 9000}, {}, "larger MTU"),
        ({"speed_mbit": 25000, "mtu": 9000}, {}, {A: 190.0, B: 9400.0}, "faster, as measured (9,400 and 190 Mbit/s)"),
        ({"speed_mbit": 1000}, {"mtu": 900}, {A: 9000.0, B: 9400.0}, "faster NICs"),
    ],
)
def test_the_faster_network_wins(
    worse: dict[str, Any], better: dict[str, Any], measured: dict[str, float], word: str
) -> None:
    nodes = two_usable(worse, better)
    choice = choose_fabric(nodes, ANY, reached(nodes, [A, B], mtu=9000), measured)
    assert taken(choice)[0] == B
    assert word in choice.why
    assert word in reasons(choice)["n2", "10.91.0.2/24"]


def test_the_slowest_nic_counts() -> None:
    one, _two = two_usable({}, {"speed_mbit": 25000})
    _one, two = two_usable({}, {"speed_mbit": 1000})
    assert taken(choose((one, two), A, B))[0] == A


def test_the_path_counts_not_only_the_nics() -> None:
    rows = reached(BOTH, [A, B])
    for row in rows["n1"]:
        row["mtu"] = 1400 if row["network"] == A else 1500
    choice = choose_fabric(BOTH, ANY, rows, {})
    assert (taken(choice)[0], choice.mtu) == (B, 1500)


def test_what_is_about_as_fast_is_left_to_the_rest() -> None:
    nodes = two_usable({"mtu": 1400}, {})
    assert taken(choose(nodes, A, B, measured={A: 9900.0, B: 4000.0}))[0] == B


def test_what_a_virtual_nic_carries_beyond_its_speed_does_not_count() -> None:
    nodes = two_usable({"speed_mbit": 10000, "mtu": 1400}, {"speed_mbit": 10000})
    assert taken(choose(nodes, A, B, measured={A: 26732.0, B: 4275.0}))[0] == B
    assert taken(choose(nodes, A, B, measured={A: 26732.0, B: 200.0}))[0] == A


def test_the_way_of_ansible_breaks_the_tie() -> None:
    nodes = tuple(dataclasses.replace(node, arrival=f"10.92.0.{host}") for host, node in enumerate(BOTH, 1))
    assert taken(choose(nodes, A, B))[0] == B
    assert taken(choose(BOTH, A, B))[0] == A


def test_ipv4_and_first_addresses_are_preferred() -> None:
    one = net("n1", nic("eth0", "10.91.0.1/24", "10.92.0.1/24", "fd00::1/64"), nic("eth1", "fd01::1/64", mtu=9000))
    two = net("n2", nic("eth0", "10.91.0.2/24", "10.92.0.2/24", "fd00::2/64"), nic("eth1", "fd01::2/64", mtu=9000))
    choice = choose((one, two), A, B, "fd00::/64", "fd01::/64", measured=None)
    assert taken(choice)[0] == A
    assert "gloo and NCCL" in reasons(choice)["n1", "10.92.0.1/24"]
    assert "IPv4" in reasons(choice)["n1", "fd01::1/64"]


def test_two_that_look_alike_are_measured_first() -> None:
    choice = choose(BOTH, A, B, measured=None)
    assert choice.chosen is None
    assert [str(candidate.network) for candidate in choice.to_measure] == [A, B]


def test_a_choice_that_stands_is_not_measured_again() -> None:
    first = choose(BOTH, A, B, measured={A: 100.0, B: 9000.0})
    fabrics = fabric_of(first, BOTH, ANY)
    nodes = tuple(dataclasses.replace(node, files=fabric_files(fabrics[node.name])) for node in BOTH)
    again = choose(nodes, A, B, measured=None)
    assert again.settled
    assert fabric_of(again, nodes, ANY) == fabrics
    assert choose(nodes, B, measured=None).settled is False
    less = choose_fabric(nodes, ANY, reached(nodes, [A, B], mtu=1400), {})
    assert less.settled is False
    assert choose(nodes, A, B, measured=None, constraints=Constraints(nccl_gid="always")).settled is False
    assert choose((nodes[0], BOTH[1]), A, B, measured=None).settled is False
    broken = dataclasses.replace(nodes[0], files={"fabric.json": "{half"})
    assert choose((broken, nodes[1]), A, B, measured=None).settled is False


def test_nodes_that_disagree_are_not_settled() -> None:
    fabrics = fabric_of(choose(BOTH, A, B), BOTH, ANY)
    fabrics["n2"]["network"] = B
    nodes = tuple(dataclasses.replace(node, files=fabric_files(fabrics[node.name])) for node in BOTH)
    assert choose(nodes, A, B).settled is False


def test_facts_that_changed_unsettle_a_choice() -> None:
    fabrics = fabric_of(choose(BOTH, A, B), BOTH, ANY)
    other = two_usable({"mtu": 1400}, {})
    nodes = tuple(dataclasses.replace(node, files=fabric_files(fabrics[node.name])) for node in other)
    assert choose(nodes, A, B).settled is False


# --- RDMA -------------------------------------------------------------------------------------------------------------

TABLE = [
    (0, "IB/RoCE v1", "fe80::1"),
    (1, "RoCE v2", "fe80::1"),
    (2, "IB/RoCE v1", "10.92.0.{}"),
    (3, "RoCE v2", "10.92.0.{}"),
]


def with_roce(*of_nodes: list[tuple[int, str, str]], **changed: Any) -> tuple[NodeNet, ...]:
    """Return BOTH with an RDMA port on eth1 of each node that gets a GID table."""
    nodes = []
    for host, (node, table) in enumerate(zip(BOTH, of_nodes, strict=True), 1):
        gids = [(index, kind, address.format(host)) for index, kind, address in table]
        ports = (roce("mlx5_0", *gids, netdev="eth1", **changed),) if table else ()
        nodes.append(dataclasses.replace(node, ports=ports))
    return tuple(nodes)


def test_rdma_wins_and_its_gid_is_the_one_of_seed_003() -> None:
    nodes = with_roce(TABLE, [(5, "RoCE v2", "10.99.0.9"), (9, "RoCE v2", "10.92.0.{}")])
    choice = choose(nodes, A, B)
    assert taken(choice)[0] == B
    assert choice.why.endswith("RDMA on every worker")
    ports = [fabric["rdma"] for fabric in fabric_of(choice, nodes, ANY).values()]
    assert [port["gid_index"] for (port,) in ports] == [3, 9]
    assert ports[0][0]["netdev"] == "eth1"


def test_rdma_on_one_node_only_is_turned_off() -> None:
    nodes = with_roce(TABLE, [])
    choice = choose(nodes, A, B)
    fabrics = fabric_of(choice, nodes, ANY)
    assert taken(choice)[0] == A
    assert [len(fabric["rdma"]) for fabric in fabrics.values()] == [1, 0]
    assert fabrics["n1"]["rdma_off"] == "n2 has none"
    assert fabric_environment(fabrics["n1"])["NCCL_IB_DISABLE"] == "1"
    assert reason_of(fabrics["n1"], "NCCL_IB_DISABLE") == "RDMA is off because n2 has none"
    assert "NCCL_IB_HCA" not in fabric_environment(fabrics["n1"])


def test_a_job_on_nodes_that_all_have_rdma_uses_it() -> None:
    nodes = (*with_roce(TABLE, TABLE), net("n3", nic("eth0", "10.91.0.3/24"), nic("eth1", "10.92.0.3/24")))
    fabrics = fabric_of(choose(nodes, A, B), nodes, ANY)
    assert all_have_rails([fabrics["n1"], fabrics["n2"]])
    assert fabric_environment({**fabrics["n1"], "rdma_off": ""})["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert not all_have_rails([*fabrics.values(), None])
    assert fabric_environment(fabrics["n1"])["NCCL_IB_DISABLE"] == "1"


@pytest.mark.parametrize("changed", [{"active": False}, {"gids": ()}, {"active": False, "link_layer": "InfiniBand"}])
def test_a_port_that_cannot_is_not_published(changed: dict[str, Any]) -> None:
    nodes = tuple(
        dataclasses.replace(node, ports=tuple(dataclasses.replace(port, **changed) for port in node.ports))
        for node in with_roce(TABLE, TABLE)
    )
    fabrics = fabric_of(choose(nodes, A, B), nodes, ANY)
    assert [fabric["rdma"] for fabric in fabrics.values()] == [[], []]
    assert fabrics["n1"]["rdma_off"] == ""


def test_roce_in_a_network_that_does_not_work_is_not_published() -> None:
    nodes = with_roce(TABLE, TABLE)
    choice = choose(nodes, A, B, broken={("n1", "n2", B): FAULT})
    assert [fabric["rdma"] for fabric in fabric_of(choice, nodes, ANY).values()] == [[], []]


def test_infiniband_needs_no_ip_and_a_slower_port_is_no_rail() -> None:
    slow = roce("mlx5_9", (3, "RoCE v2", "10.91.0.1"), rate_gbit=25.0)
    fast = [roce(f"mlx5_{number}", netdev="", link_layer="InfiniBand", rate_gbit=400.0) for number in (0, 1)]
    nodes = tuple(dataclasses.replace(node, ports=(slow, *fast)) for node in pair(("eth0", "10.91.0")))
    fabric = fabric_of(choose(nodes, A), nodes, ANY)["n1"]
    assert [(port["device"], port["gid_index"]) for port in fabric["rdma"]] == [("mlx5_0", None), ("mlx5_1", None)]


# --- what the user asks for -------------------------------------------------------------------------------------------


def asking(**nics: str) -> tuple[NodeNet, ...]:
    """Return BOTH with a required NIC for some nodes."""
    return tuple(dataclasses.replace(node, required_nic=nics.get(node.name, "")) for node in BOTH)


def test_a_subnet_that_is_asked_for_is_taken() -> None:
    choice = choose(BOTH, A, B, constraints=Constraints(parse_subnet(B)))
    assert taken(choice)[0] == B
    assert choice.why == f"asked for: fabric_subnet is {B}"
    assert reasons(choice)["n1", "10.91.0.1/24"] == f"fabric_subnet is {B}"


def test_a_nic_that_is_asked_for_on_one_node_decides_for_all() -> None:
    choice = choose(asking(n2="eth1"), A, B)
    assert taken(choice) == (B, {"n1": "eth1", "n2": "eth1"})
    assert choice.why == "asked for: fabric_nic of n2 is eth1"


def test_an_address_that_is_asked_for() -> None:
    both = nic("eth0", "10.91.0.1/24", "10.91.0.7/24")
    node = net("n1", both, required_address="10.91.0.7")
    choice = choose((node, net("n2", nic("eth0", "10.91.0.2/24"))), A)
    assert choice.chosen is not None
    assert str(choice.chosen.seats["n1"].address) == "10.91.0.7/24"


@pytest.mark.parametrize("kind", ["physical", "tunnel"])
def test_a_wider_subnet_takes_what_routers_join(kind: str) -> None:
    """Also /32 addresses, and a VPN: what is asked for by name is taken."""
    nodes = (net("n1", nic("ens4", "10.1.0.5/32", kind=kind)), net("n2", nic("ens4", "10.2.0.6/32", kind=kind)))
    wide = "10.0.0.0/8"
    assert taken(choose(nodes, wide, constraints=Constraints(parse_subnet(wide))))[0] == wide
    assert "fabric_subnet" in refused(nodes)


def test_a_constraint_that_does_not_reach_is_refused_with_the_reason() -> None:
    told = refused(BOTH, A, B, constraints=Constraints(parse_subnet(B)), broken={("n2", "n1", B): FAULT})
    assert f'fabric: got "fabric_subnet is {B}"' in told
    assert f"{B}: n2 -> n1: {FAULT}" in told
    assert "eth0" not in told


def test_constraints_that_contradict_each_other_are_refused() -> None:
    told = refused(asking(n1="eth0", n2="eth1"), A, B)
    assert "fabric_nic of n1 is eth0, fabric_nic of n2 is eth1" in told


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        ({"required_nic": "eth9"}, ["fabric_nic of n1", "eth9", "give one of eth0"]),
        ({"required_nic": "lo"}, ["fabric_nic of n1", "loopback"]),
        ({"required_nic": "eth5"}, ["fabric_nic of n1", "no carrier"]),
        ({"required_nic": "eth6"}, ["fabric_nic of n1", "no address"]),
        ({"required_address": "10.9.9.9"}, ["fabric_address of n1", "10.9.9.9"]),
        ({"required_nic": "eth0", "required_address": "10.95.0.1"}, ["fabric_address of n1", "of eth0"]),
        ({"required_address": "10.95.0.1"}, ["fabric_address of n1", "no carrier"]),
        ({"subnet": "10.99.0.0/24"}, ["fabric_subnet", "n1 has no address in it", "10.91.0.1/24 (eth0)"]),
    ],
)
def test_a_constraint_that_cannot_be_met_is_refused_at_once(constraints: dict[str, str], words: list[str]) -> None:
    subnet = parse_subnet(constraints.pop("subnet", ""))
    dead = nic("eth5", "10.95.0.1/24", carrier=False)
    node = net("n1", nic("eth0", "10.91.0.1/24"), dead, nic("eth6"), **constraints)
    with pytest.raises(InputError) as error:
        check_constraints([node], Constraints(subnet))
    assert [word for word in words if word not in str(error.value)] == []


def test_a_subnet_must_be_one() -> None:
    with pytest.raises(InputError, match=r"such as 10\.92\.0\.0/24"):
        parse_subnet("eth1")


# --- if there is none -------------------------------------------------------------------------------------------------


def test_the_refusal_tells_of_every_network_which_pairs_fail() -> None:
    third = net("n3", nic("eth0", "10.91.0.3/24"), nic("eth1", "10.93.0.3/24"))
    broken = {
        (one, two, A): FAULT for one, two in [("n1", "n2"), ("n1", "n3"), ("n2", "n1"), ("n3", "n1"), ("n2", "n3")]
    }
    told = refused((*BOTH, third), A, broken=broken)
    assert f"{A}: n1 -> n2, n1 -> n3, n2 -> n1 and 2 more: {FAULT}" in told
    assert "10.92.0.1/24 (eth1 of n1)" in told and f"no usable address in {B} on n3" in told
    assert "127." not in told


def test_a_wrong_netmask_is_told() -> None:
    nodes = (net("n1", nic("eth0", "10.91.0.1/16")), net("n2", nic("eth0", "10.91.0.2/24")))
    assert "n2 has 10.91.0.2/24" in refused(nodes)


# --- one node ---------------------------------------------------------------------------------------------------------


def test_one_node_uses_loopback_without_any_network() -> None:
    node = net("localhost")
    choice = alone(node, ANY)
    fabric = fabric_of(choice, [node], ANY)["localhost"]
    assert (fabric["nic"], fabric["address"], fabric["network"]) == ("lo", "127.0.0.1", "127.0.0.0/8")


def test_one_node_uses_the_nic_that_is_asked_for() -> None:
    choice = alone(dataclasses.replace(BOTH[0], required_nic="eth1"), ANY)
    assert taken(choice) == (B, {"n1": "eth1"})


# --- step by step -----------------------------------------------------------------------------------------------------


def facts(host: int) -> dict[str, Any]:
    """Return what a node with eth0 in A and eth1 in B tells."""
    rows = [nic("eth0", f"10.91.0.{host}/24"), nic("eth1", f"10.92.0.{host}/24"), LO]
    nics = [
        {
            **{key: value for key, value in dataclasses.asdict(row).items() if key != "addresses"},
            "addresses": [
                {"address": str(each.ip), "prefix": each.prefix, "peer": "", "stable": True, "route": row.name}
                for each in row.addresses
            ],
        }
        for row in rows
    ]
    files = {"fabric.json": "", "fabric.env": ""}
    alike = {"host_name": f"n{host}", "host_name_addresses": [], "arrival": "", "rdma": [], "files": files}
    return {
        "facts": {"nics": nics, **alike},
        "agent": {"port": 4000 + host, "token": f"t{host}", "pid": 1},
        "constraints": {},
    }


LISTENED = {f"n{host}": facts(host) for host in (1, 2)}
REACHED = {name: {"reached": rows} for name, rows in reached(BOTH, [A, B]).items()}
NAMES = ["n1", "n2"]


def test_first_everybody_is_told_whom_to_reach() -> None:
    step = next_step(NAMES, LISTENED, {}, {}, {})
    assert step["state"] == "connect"
    assert step["peers"]["n1"][0] == {
        "node": "n2",
        "network": A,
        "address": "10.91.0.2",
        "nic": "eth0",
        "source": "10.91.0.1",
        "mtu": 1500,
        "port": 4002,
        "token": "t2",
    }
    assert len(step["peers"]["n2"]) == 2


def test_then_what_looks_alike_is_measured() -> None:
    assert next_step(NAMES, LISTENED, REACHED, {}, {}) == {"state": "measure", "steps": {}, "batches": []}
    step = next_step(NAMES, LISTENED, REACHED, LISTENED, {})
    order = [(row["network"], row["round"]) for row in step["steps"]["n1"]]
    assert order == [(A, 0), (B, 1), (A, 2), (B, 3), (A, 4), (B, 5)]
    assert {row["role"] for name in NAMES for row in step["steps"][name]} == {"client", "server"}


def batch(first: float, second: float) -> dict[str, Any]:
    """Return what both nodes measured of the two networks."""
    rate = {"node": "n2", "error": "", "rtt_us": 50.0, "mbit_in": 9000.0}
    rows = [{**rate, "network": A, "mbit_out": first}, {**rate, "network": B, "mbit_out": second}]
    return {"n1": {"measured": rows}, "n2": {"measured": []}}


def test_then_it_is_published() -> None:
    slow = batch(100.0, 9000.0)
    step = next_step(NAMES, LISTENED, REACHED, {}, slow, earlier=[slow, slow])
    assert step["state"] == "done"
    assert step["msg"] == f"{B}, preferred to {A}: faster, as measured (9,000 and 100 Mbit/s); eth1 on n1, n2"
    assert step["publish"] == {"n1": True, "n2": True}
    again = {name: json.loads(json.dumps(row)) for name, row in LISTENED.items()}
    for name in NAMES:
        again[name]["facts"]["files"] = step["files"][name]
    assert next_step(NAMES, again, REACHED, {}, {})["publish"] == {"n1": False, "n2": False}


def test_what_seems_slow_is_measured_twice_more() -> None:
    slow = batch(1314.0, 21353.0)
    step = next_step(NAMES, LISTENED, REACHED, {}, slow)
    assert (step["state"], step["batches"]) == ("measure", [slow])
    assert next_step(NAMES, LISTENED, REACHED, {}, slow, earlier=[slow])["batches"] == [slow, slow]
    assert next_step(NAMES, LISTENED, REACHED, {}, slow, earlier=[slow, slow])["fabric"]["n1"]["network"] == B


@pytest.mark.parametrize("calm", [0, 1, 2])
def test_a_busy_moment_is_no_slow_network(calm: int) -> None:
    """Two networks are equally fast; load makes either look slow, but not every time."""
    batches = [batch(1314.0, 21353.0), batch(20000.0, 900.0), batch(400.0, 600.0)]
    batches[calm] = batch(18000.0, 19000.0)
    step: dict[str, Any] = {"state": "measure", "batches": []}
    for measured in batches:
        if step["state"] == "measure":
            step = next_step(NAMES, LISTENED, REACHED, {}, measured, earlier=step["batches"])
    assert step["fabric"]["n1"]["network"] == A
    assert "measured" not in step["msg"]


def test_an_edited_file_is_written_anew() -> None:
    nodes = {name: json.loads(json.dumps(row)) for name, row in LISTENED.items()}
    measured = {"n1": {"measured": []}}
    files = next_step(NAMES, LISTENED, REACHED, {}, measured)["files"]
    for name in NAMES:
        nodes[name]["facts"]["files"] = {**files[name], **({"fabric.env": "NCCL=1"} if name == "n2" else {})}
    assert next_step(NAMES, nodes, REACHED, {}, {})["publish"] == {"n1": False, "n2": True}


def test_every_rejection_has_a_sentence_and_a_row_in_the_docs(repo_docs: str) -> None:
    table = repo_docs.partition("| code | why an address was not taken |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert sorted(re.findall(r"`([a-z-]+)`", "".join(cells))) == sorted(RejectionCode)
    assert set(SENTENCES) == set(RejectionCode)


# --- without trying it again ----------------------------------------------------------------------------------------


def published_everywhere() -> dict[str, Any]:
    """Return what both nodes tell of themselves after a choice was published."""
    files = next_step(NAMES, LISTENED, REACHED, {}, {"n1": {"measured": []}})["files"]
    nodes = {name: json.loads(json.dumps(row)) for name, row in LISTENED.items()}
    for name in NAMES:
        nodes[name]["facts"]["files"] = files[name]
    return nodes


def test_a_choice_that_rests_on_the_same_facts_stands() -> None:
    step = next_step(NAMES, {}, {}, {}, {}, seen=published_everywhere())
    assert (step["state"], step["publish"]) == ("done", {"n1": False, "n2": False})
    assert step["msg"].startswith(A)


@pytest.mark.parametrize(
    "what", ["mtu", "address", "file", "constraints", "other choice", "nothing", "subnet", "version"]
)
def test_whatever_else_is_seen_is_tried(what: str) -> None:
    nodes = published_everywhere()
    mine, subnet = nodes["n2"], ""
    if what == "mtu":
        mine["facts"]["nics"][1]["mtu"] = 9000
    elif what == "address":
        mine["facts"]["nics"][0]["addresses"][0]["address"] = "10.91.0.3"
    elif what == "file":
        mine["facts"]["files"]["fabric.json"] = "{}"
    elif what == "version":  # it has no codes, which a job needs
        for node in nodes.values():
            older = {**json.loads(node["facts"]["files"]["fabric.json"]), "version": 1}
            node["facts"]["files"]["fabric.json"] = json.dumps(older)
    elif what == "constraints":
        mine["constraints"] = {"nic": "eth0"}
    elif what == "other choice":
        fabric = json.loads(mine["facts"]["files"]["fabric.json"])
        mine["facts"]["files"]["fabric.json"] = json.dumps({**fabric, "network": B})
    elif what == "nothing":
        mine["facts"] = {}
    else:
        subnet = B
    assert next_step(NAMES, {}, {}, {}, {}, seen=nodes, subnet=subnet) == {"state": "listen"}


def test_one_node_alone_needs_no_probe() -> None:
    step = next_step(["n1"], {}, {}, {}, {}, seen={"n1": LISTENED["n1"]})
    assert (step["state"], step["fabric"]["n1"]["nic"], step["publish"]) == ("done", "lo", {"n1": True})


@pytest.mark.parametrize("table", ["listened", "reached"])
def test_a_node_that_told_nothing_is_named(table: str) -> None:
    tables = {"listened": LISTENED, "reached": REACHED, "measuring": {}, "measured": {}}
    tables[table] = {"n1": tables[table]["n1"]}
    with pytest.raises(InputError, match=r'got "n2".*--limit'):
        next_step(NAMES, **tables)


def test_a_firewall_is_named_and_what_opens_it() -> None:
    rows = copy.deepcopy(REACHED)
    for name in NAMES:
        for row in rows[name]["reached"]:
            row.update(reason="no answer", code="dropped", mtu=None)
    firewalls = {"n1": [], "n2": [{"kind": "nftables", "where": "table inet filter, chain input"}]}
    with pytest.raises(InputError) as caught:
        next_step(NAMES, LISTENED, rows, {}, {}, firewalls=firewalls)
    assert caught.value.code == "TF-FABRIC-FIREWALL"
    assert str(caught.value).endswith(
        "TF-FABRIC-FIREWALL: a firewall stops it (n1: none that can be seen without root; or one between the nodes; "
        "n2: nftables, table inet filter, chain input); "
        "open it: ansible-playbook setup.yml -e firewall_open=true (needs root)"
    )
    rows["n1"]["reached"][0]["code"] = rows["n1"]["reached"][1]["code"] = "no-neighbour"
    rows["n2"]["reached"][0]["code"] = rows["n2"]["reached"][1]["code"] = "own-firewall"
    with pytest.raises(InputError, match=r"\(n2: nftables, table inet filter, chain input\)"):
        next_step(NAMES, LISTENED, rows, {}, {}, firewalls=firewalls)
