"""Which RDMA ports are rails, on machines of every kind, and what is said where one node is not as the others."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.constraints import (
    Constraints,
    check_constraints,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.networks import NodeNet, Port
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.rails import Rails, rails_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from tests.unit.machines import DGX_H100, HGX_H100_ROCE, MACHINES, P6_B200, Machine, node_of
from tests.unit.nets import net, nic, roce


def cluster(*machines: Machine, asked: tuple[str, ...] = ()) -> list[NodeNet]:
    """Return nodes n1, n2, ... of one machine each; `asked` is fabric_rdma of all."""
    return [node_of(machine, host, asked) for host, machine in enumerate(machines, 1)]


def names(rails: Rails) -> dict[str, list[str]]:
    return {node: [port.device for port in ports] for node, ports in rails.ports.items()}


def told(rails: Rails) -> list[tuple[str, tuple[str, ...], str]]:
    return [tuple(note) for note in rails.notes if note.code not in ("left-out", "other-rdma")]


def changed(node: NodeNet, device: str, **values: Any) -> NodeNet:
    """Return a node with another state of an RDMA device; it goes if `gone` is given."""
    ports = [port for port in node.ports if port.device != device or "gone" not in values]
    ports = [dataclasses.replace(port, **values) if port.device == device else port for port in ports]
    return dataclasses.replace(node, ports=tuple(ports))


# --- machines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_the_rails_of_a_machine(name: str) -> None:
    machine = MACHINES[name]
    rails = rails_of(cluster(machine, machine))
    assert {node: sorted(found) for node, found in names(rails).items()} == dict.fromkeys(
        ("n1", "n2"), sorted(machine.rails)
    )
    assert (rails.off, told(rails)) == ("", [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dgx-h100", "mlx5_1:1, mlx5_2:1, mlx5_7:1, mlx5_8:1 left out: on no GPU's PCIe switch"),
        ("p6-b200", "EFA of AWS: NCCL uses it by the plugin aws-ofi-nccl"),
        ("azure-mana", "MANA of Azure"),
        ("a3-mega", "gVNIC of Google Cloud: no RDMA"),
        ("a3-ultra", "gVNIC of Google Cloud: no RDMA"),
        ("iwarp", "iWARP: NCCL does not use it"),
    ],
)
def test_what_is_no_rail_is_named_as_what_it_is(name: str, text: str) -> None:
    machine = MACHINES[name]
    (note,) = rails_of(cluster(machine, machine)).notes
    assert note.text.startswith(text)
    assert note.nodes == ("n1", "n2")


def test_facts_say_where_devices_are() -> None:
    (node,) = cluster(DGX_H100)
    port = node.ports[0]
    assert port.pci == "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0"
    assert (port.driver, port.node_type, port.use, len(node.gpus)) == ("mlx5_core", "CA", "", 8)


# --- apart from the network of TCP ------------------------------------------------------------------------------------


def with_rails(host: int, address: str, count: int = 8, **changes: Any) -> NodeNet:
    """Return a node with one TCP network and RoCE rails, whose addresses are made from rail and host."""
    ports = [
        roce(f"mlx5_{rail}", (3, "RoCE v2", address.format(rail=rail, host=host, at=2 * rail)), netdev=f"rail{rail}")
        for rail in range(count)
    ]
    return net(f"n{host}", nic("eth0", f"10.91.0.{host}/24"), ports=tuple(ports), **changes)


@pytest.mark.parametrize(
    "address", ["10.92.{rail}.{host}", "10.92.0.{host}{rail}", "10.92.{host}.{at}", "fd92::{rail}:{host}"]
)
def test_all_eight_are_rails_whatever_their_subnets(address: str) -> None:
    """A subnet for each, one subnet for all, /31 each, IPv6: the kernel's route is for TCP."""
    rails = rails_of([with_rails(host, address) for host in (1, 2)])
    assert [len(ports) for ports in rails.ports.values()] == [8, 8]
    assert told(rails) == []


def test_a_head_without_rdma_turns_nothing_off() -> None:
    head = net("n1", nic("eth0", "10.91.0.1/24"), worker=False)
    rails = rails_of([head, *(with_rails(host, "10.92.{rail}.{host}") for host in (2, 3))])
    assert {name: len(ports) for name, ports in rails.ports.items()} == {"n2": 8, "n3": 8}
    assert rails.off == ""


def test_a_worker_without_rdma_turns_it_off_and_that_is_said() -> None:
    rails = rails_of([with_rails(1, "10.92.{rail}.{host}"), net("n2", nic("eth0", "10.91.0.2/24"))])
    assert [len(ports) for ports in rails.ports.values()] == [8, 0]
    assert rails.off == "n2 has none"
    assert told(rails)[0] == ("rdma-off", ("n2",), "RDMA is off because n2 has none")


# --- one node is not as the others ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "code", "text"),
    [
        ({"active": False}, "rail-down", "mlx5_4:1: down, where most nodes have 8 rails"),
        ({"gone": True}, "rail-missing", "mlx5_4:1: not there, where most nodes have 8 rails"),
        ({"rate_gbit": 200.0}, "rail-slow", "mlx5_4:1: 200 Gbit/s, where rails of most nodes have 400 Gbit/s"),
    ],
)
@pytest.mark.parametrize("count", [2, 4])
def test_a_rail_of_one_node(count: int, values: dict[str, Any], code: str, text: str) -> None:
    nodes = cluster(*[DGX_H100] * count)
    rails = rails_of([*nodes[:-1], changed(nodes[-1], "mlx5_4", **values)])
    assert told(rails) == [(code, (f"n{count}",), text)]
    assert [len(ports) for ports in rails.ports.values()] == [8] * (count - 1) + [8 if code == "rail-slow" else 7]


def test_a_roce_rail_without_an_address() -> None:
    nodes = cluster(HGX_H100_ROCE, HGX_H100_ROCE)
    rails = rails_of([nodes[0], changed(nodes[1], "mlx5_2", gids=nodes[1].ports[2].gids[:1])])
    assert told(rails) == [("rail-down", ("n2",), "mlx5_2:1: no address (RoCE v2), where most nodes have 8 rails")]


def test_all_rails_of_a_node_are_slow() -> None:
    nodes = cluster(DGX_H100, DGX_H100, DGX_H100)
    slow = dataclasses.replace(nodes[2], ports=tuple(dataclasses.replace(p, rate_gbit=200.0) for p in nodes[2].ports))
    rails = rails_of([*nodes[:2], slow])
    text = "mlx5_0:1, mlx5_10:1, mlx5_11:1 and 5 more: 200 Gbit/s, where rails of most nodes have 400 Gbit/s"
    assert told(rails) == [("rail-slow", ("n3",), text)]


def test_cards_for_storage_on_one_node_are_left_out() -> None:
    nodes = [with_rails(host, "10.92.{rail}.{host}", 10 if host == 3 else 8) for host in (1, 2, 3)]
    rails = rails_of(nodes)
    assert [len(ports) for ports in rails.ports.values()] == [8, 8, 8]
    (note,) = rails.notes
    assert (note.code, note.nodes) == ("left-out", ("n3",))
    assert note.text.startswith("mlx5_8:1, mlx5_9:1 left out: most nodes have 8 rails")


def test_another_infiniband_subnet_is_another_fabric() -> None:
    cards = [
        dataclasses.replace(card, pci=f"pci0000:{n:02x}/0000:{n:02x}:00.0") for n, card in enumerate(DGX_H100.cards)
    ]
    cards = [dataclasses.replace(card, prefix="fec0:0:0:1::" if n < 2 else card.prefix) for n, card in enumerate(cards)]
    machine = dataclasses.replace(DGX_H100, cards=tuple(cards), gpus=())
    nodes = cluster(machine, machine)
    rails = rails_of(nodes)
    assert [len(ports) for ports in rails.ports.values()] == [10, 10]
    assert rails.notes[0].text.startswith("mlx5_0:1, mlx5_1:1 left out: in another InfiniBand subnet")


def test_a_network_that_does_not_work_has_no_rails() -> None:
    nodes = [with_rails(host, "10.92.{rail}.{host}", 1) for host in (1, 2)]
    rails = rails_of(nodes, broken=[gid.ip for node in nodes for port in node.ports for gid in port.gids])
    assert names(rails) == {"n1": [], "n2": []}


# --- InfiniBand and RoCE ----------------------------------------------------------------------------------------------


def infiniband(node: NodeNet, count: int = 8) -> NodeNet:
    ports = [Port(f"ib{rail}", 1, True, "InfiniBand", 100.0, (), ()) for rail in range(count)]
    return dataclasses.replace(node, ports=tuple(ports))


def test_mixed_kinds_are_refused_with_words() -> None:
    ours, theirs = with_rails(1, "10.92.{rail}.{host}"), infiniband(with_rails(2, "10.92.{rail}.{host}"))
    with pytest.raises(InputError, match=r"InfiniBand on n2, RoCE on n1.*do not reach each other.*fabric_rdma"):
        rails_of([ours, theirs])


def test_two_equal_kinds_on_all_nodes_are_refused_with_words() -> None:
    both = [with_rails(host, "10.92.{rail}.{host}") for host in (1, 2)]
    both = [dataclasses.replace(node, ports=(*node.ports, *infiniband(node).ports)) for node in both]
    with pytest.raises(InputError, match=r"InfiniBand and RoCE on n1, n2.*equally fast.*fabric_rdma"):
        rails_of(both)
    asked = [dataclasses.replace(node, required_rdma=("ib*",)) for node in both]
    assert [ports[0].kind for ports in rails_of(asked).ports.values()] == ["InfiniBand"] * 2


def test_infiniband_that_is_down_is_no_reason_for_a_slow_kind() -> None:
    """Both nodes also have Ethernet cards that can do RoCE: one node without its rails must not decide for all."""
    nodes = [with_rails(host, "10.92.{rail}.{host}", 1) for host in (1, 2)]
    slow = [tuple(dataclasses.replace(port, rate_gbit=25.0) for port in node.ports) for node in nodes]
    first = dataclasses.replace(nodes[0], ports=(*slow[0], *infiniband(nodes[0]).ports))
    rails = rails_of([first, dataclasses.replace(nodes[1], ports=slow[1])])
    assert rails.off == "n2 has none"
    assert "rail-missing" in [note.code for note in rails.notes]


# --- what the user asks for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "rails"),
    [
        (("mlx5_1", "mlx5_2"), ["mlx5_1", "mlx5_2"]),
        (("mlx5_[0-3]",), ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]),
        (("mlx5_7:1",), ["mlx5_7"]),
        (("none",), []),
    ],
)
def test_rails_that_are_asked_for(asked: tuple[str, ...], rails: list[str]) -> None:
    nodes = cluster(DGX_H100, DGX_H100, asked=asked)
    check_constraints(nodes, Constraints())
    assert names(rails_of(nodes)) == dict.fromkeys(("n1", "n2"), rails)
    assert told(rails_of(nodes)) == []


def test_none_is_why_rdma_is_off() -> None:
    assert rails_of(cluster(DGX_H100, DGX_H100, asked=("none",))).off == "fabric_rdma is none on n1, n2"


def test_a_rail_that_is_asked_for_and_is_down() -> None:
    nodes = cluster(DGX_H100, DGX_H100, asked=("mlx5_[0-3]",))
    rails = rails_of([nodes[0], changed(nodes[1], "mlx5_3", active=False)])
    assert told(rails) == [("rail-down", ("n2",), "mlx5_3:1: down, where most nodes have 4 rails")]


def test_fewer_rails_asked_for_on_one_node() -> None:
    nodes = cluster(DGX_H100, DGX_H100, DGX_H100)
    rails = rails_of([*nodes[:2], dataclasses.replace(nodes[2], required_rdma=("mlx5_0",))])
    assert told(rails) == [("rail-count", ("n3",), "fabric_rdma names 1 rail, where most nodes have 8")]


@pytest.mark.parametrize(
    ("machine", "asked", "words"),
    [
        (DGX_H100, ("mlx5_0", "mlx5_99"), ['fabric_rdma of n1: got "mlx5_99"', "no such RDMA device", "mlx5_0"]),
        (DGX_H100, ("none", "mlx5_0"), ["fabric_rdma of n1", "give it alone"]),
        (P6_B200, ("rdmap*",), ["fabric_rdma of n1", "is no rail: EFA of AWS"]),
        (MACHINES["hgx-b200"], ("mlx5_8",), ["mlx5_8 is no rail: it controls the NVSwitches"]),
        (MACHINES["a3-mega"], ("mlx5_0",), ["no such RDMA device; the node has none"]),
    ],
)
def test_rails_that_cannot_be_are_refused_at_once(machine: Machine, asked: tuple[str, ...], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        check_constraints(cluster(machine, asked=asked), Constraints())
    assert [word for word in words if word not in str(error.value)] == []
    assert "\n" not in str(error.value)
