"""What a job takes of the rails: on the nodes that it has, with the reason, and not where the head has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from tests.unit.nodes import fabric

Planner = Callable[..., LaunchPlan]
RAILS = [{"device": f"mlx5_{rail}", "port": 1, "gid_index": None, "netdev": ""} for rail in range(8)]


def told(plan: LaunchPlan, name: str) -> list[tuple[str, str] | None]:
    """Return value and reason of a variable on each node."""
    found = [{setting.name: setting for setting in node.environment}.get(name) for node in plan.nodes]
    return [(setting.value, setting.reason) if setting else None for setting in found]


def facts_with(nic: str, address: str, **changed: Any) -> dict[str, Any]:
    return {"fabric": {**fabric(nic, address), "rdma": RAILS, **changed}}


def test_rdma_that_another_worker_lacks_is_on_for_nodes_that_have_it(plan_two: Planner) -> None:
    off = {"rdma_off": "n3 has none"}
    made = plan_two(n1=facts_with("eth0", "10.1.0.11", **off), n2=facts_with("eth1", "10.1.0.12", **off))
    hcas = "=" + ",".join(f"mlx5_{rail}:1" for rail in range(8))
    reason = "the 8 rails of this node, as role fabric chose them (docs/nics.md)"
    assert told(made, "NCCL_IB_HCA") == [(hcas, reason)] * 2
    assert told(made, "NCCL_IB_DISABLE") == [None, None]


def test_why_rdma_is_off_is_the_reason_of_the_variable(plan_two: Planner) -> None:
    off = {"rdma_off": "n2 has none"}
    made = plan_two(n1=facts_with("eth0", "10.1.0.11", **off), n2=facts_with("eth1", "10.1.0.12", rdma=[], **off))
    assert told(made, "NCCL_IB_DISABLE") == [("1", "RDMA is off because n2 has none")] * 2


@pytest.mark.parametrize(("kind", "provider"), [("", "tcp"), ("EFA", None), ("MANA", "tcp")])
def test_libfabric_finds_efa_itself(plan_two: Planner, kind: str, provider: str | None) -> None:
    mpi = {"backends": ["mpi"]}
    made = plan_two(
        n1={**facts_with("eth0", "10.1.0.11", rdma=[], other_rdma=kind), **mpi},
        n2={**facts_with("eth1", "10.1.0.12", rdma=[], other_rdma=kind), **mpi},
        backend="mpi",
    )
    assert [row and row[0] for row in told(made, "FI_PROVIDER")] == [provider] * 2


def test_a_job_on_a_node_whose_address_changed_is_refused(plan_two: Planner) -> None:
    with pytest.raises(InputError, match=r'fabric: got "10\.1\.0\.12 of n2"; the node no longer has this address'):
        plan_two(n2={**facts_with("eth1", "10.1.0.12"), "lost_address": "10.1.0.12"})


def test_rdma_that_the_user_switches_off(plan_two: Planner) -> None:
    """For every library: NCCL, UCX, and libfabric, which would take EFA by itself."""
    efa = {"other_rdma": "EFA", "rdma": RAILS}
    both = {"n1": facts_with("eth0", "10.1.0.11", **efa), "n2": facts_with("eth1", "10.1.0.12", **efa)}
    for node in both.values():
        node["backends"] = ["mpi"]
    made = plan_two(**both, rdma=False, backend="mpi")
    assert told(made, "NCCL_IB_DISABLE") == [("1", "RDMA is off because rdma=false was given")] * 2
    assert [seen and seen[0] for seen in told(made, "UCX_NET_DEVICES")] == ["eth0", "eth1"]
    assert [seen and seen[0] for seen in told(made, "UCX_TLS")] == ["tcp,sm,self"] * 2
    assert [seen and seen[0] for seen in told(made, "FI_PROVIDER")] == ["tcp"] * 2
    assert told(plan_two(**both, backend="mpi"), "NCCL_IB_DISABLE") == [None, None]
