"""Preflight of the network and the rails that are asked for: what role fabric would refuse later."""

from __future__ import annotations

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.facts_types import Facts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.findings import Finding
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_network import network_findings
from tests.unit.machines import DGX_H100, HGX_H100_ROCE, Machine, networks_of, networks_of_machine
from tests.unit.recorded_nodes import RECORDED, TARGETS


def found(*machines: Machine, subnet: str = "", asked: tuple[str, ...] = ()) -> list[Finding]:
    """Return the findings of two nodes, which are these machines or have no RDMA devices."""
    facts: dict[str, Facts] = {}
    for host, name in enumerate(("n1", "n2"), 1):
        networks = networks_of_machine(machines[host - 1], host) if machines else networks_of(name)
        facts[name] = {**RECORDED[name], "networks": networks}
    return list(network_findings(TARGETS, facts, {name: {"rdma": list(asked)} for name in facts}, subnet))


def test_nothing_is_asked_for() -> None:
    assert found() == found(DGX_H100, DGX_H100) == []


@pytest.mark.parametrize(
    ("subnet", "nodes", "told"),
    [
        ("10.99.0.0/24", [("n1",), ("n2",)], "has no address in it"),
        ("nonsense", [()], "give a network with its prefix, such as 10.92.0.0/24"),
    ],
)
def test_a_subnet_that_no_node_has(subnet: str, nodes: list[tuple[str, ...]], told: str) -> None:
    findings = found(subnet=subnet)
    assert [(finding.id, finding.nodes) for finding in findings] == [("TF-FABRIC-ASKED", names) for names in nodes]
    assert all(finding.seen.startswith("fabric_subnet: got ") and told in finding.seen for finding in findings)


def test_rails_that_are_there() -> None:
    assert found(DGX_H100, DGX_H100, asked=("mlx5_0",)) == []
    findings = found(DGX_H100, DGX_H100, asked=("mlx5_0", "mlx5_99"))
    assert [finding.nodes for finding in findings] == [("n1",), ("n2",)]


def test_infiniband_and_roce() -> None:
    (finding,) = found(DGX_H100, HGX_H100_ROCE)
    assert (finding.id, finding.nodes) == ("TF-FABRIC-ASKED", ("n1", "n2"))
    assert finding.seen.startswith("RDMA: got ") and "the two do not reach each other" in finding.seen


def test_a_node_without_facts_of_its_network_is_no_reason() -> None:
    facts: dict[str, Facts] = {"n1": {**RECORDED["n1"], "networks": None}}
    assert list(network_findings(TARGETS, facts, {"n1": {}}, "10.99.0.0/24")) == []
