"""Whether an all-reduce went over the chosen network, and was fast enough."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import speed
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.nccl_log import Transport

RAILS = [{"device": f"mlx5_{number}", "port": 1, "gid_index": 3, "netdev": ""} for number in range(8)]
RATES = {rail["device"]: 400.0 for rail in RAILS}
GPUS = {name: {"rdma": RAILS} for name in ("n1", "n2")}
NETWORK = speed.network_of(GPUS, dict.fromkeys(GPUS, RATES))
ALL_RAILS = Transport(frozenset({"IB"}), frozenset(RATES), direct=True)


def run(**changed: Any) -> speed.Speed:
    given = {"launcher": "torchrun", "backend": "nccl", "device": "cuda", "world_size": 16, "busbw": 350.0}
    sent = {"reduced": 4.0, "nic_sent": 0.1, "rdma_sent": 6.0, "transport": ALL_RAILS}
    return speed.Speed(**{**given, **sent, **changed})


def ids(given: speed.Speed, floor: float | None = None, **baseline: float) -> list[str]:
    named = {NETWORK.key(given): rate for rate in baseline.values()}
    return [finding.id for finding in speed.judge_speed([given], NETWORK, floor, named)]


def test_a_network_is_what_every_worker_has() -> None:
    assert (NETWORK.nodes, NETWORK.rails, NETWORK.rdma_gbps) == (("n1", "n2"), 8, 400.0)
    fewer = {**GPUS, "n2": {"rdma": RAILS[:7]}}
    assert speed.network_of(fewer, dict.fromkeys(GPUS, RATES)).rails == 7
    off = {**GPUS, "n2": {"rdma": RAILS, "rdma_off": "n1 has none"}}
    assert speed.network_of(off, dict.fromkeys(GPUS, RATES)).rails == 0
    assert speed.network_of({}, {}) == speed.Network(())


def test_a_fast_run_over_rdma_has_no_findings() -> None:
    assert ids(run()) == [] and run().carrier.startswith("IB (mlx5_0")


def test_tcp_where_there_is_rdma_is_an_error() -> None:
    assert ids(run(transport=Transport(frozenset({"Socket"})))) == ["TF-VERIFY-TRANSPORT"]


def test_rails_that_are_not_used_are_named() -> None:
    assert ids(run(transport=Transport(frozenset({"IB"}), frozenset({"mlx5_0"})))) == ["TF-VERIFY-RAILS"]


def test_a_cloud_plugin_is_not_taken_for_tcp() -> None:
    assert ids(run(transport=Transport(frozenset({"AWS Libfabric"}), frozenset(RATES)))) == []


def test_data_that_went_elsewhere_is_an_error() -> None:
    (finding,) = speed.judge_speed([run(rdma_sent=0.0, transport=Transport())], NETWORK, None, {})
    assert finding.id == "TF-VERIFY-ROUTE"
    assert finding.seen == (
        "torchrun with nccl: a node sent 0.1 GB over its NIC and 0 GB by RDMA, and 4 GB were reduced"
    )
    assert ids(run(nic_sent=None, rdma_sent=None)) == []  # a workload that tells nothing


def test_nvlink_between_machines_needs_no_nic() -> None:
    """As in a rack of GB200 NVL72, whose NICs and RDMA devices carry nothing of an all-reduce."""
    over_nvlink = run(rdma_sent=0.0, transport=Transport(nvlink=True))
    assert ids(over_nvlink) == [] and over_nvlink.carrier == "NVLink"


def test_a_log_that_tells_nothing_is_no_proof_of_rdma() -> None:
    """Its counters say that the NIC carried the data."""
    (finding,) = speed.judge_speed([run(nic_sent=6.0, rdma_sent=0.0, transport=Transport())], NETWORK, None, {})
    assert finding.id == "TF-VERIFY-TRANSPORT" and "a node sent 6 GB over its NIC and 0 GB by RDMA" in finding.seen
    assert ids(run(transport=Transport())) == []  # the RDMA devices did


@pytest.mark.parametrize(("busbw", "floor", "slow"), [(199.0, None, True), (201.0, None, False), (299.0, 300.0, True)])
def test_a_floor(busbw: float, floor: float | None, slow: bool) -> None:
    assert ids(run(busbw=busbw), floor) == ["TF-VERIFY-FLOOR"] * slow


def test_gpus_of_intel_have_a_floor_too() -> None:
    assert ids(run(device="xpu", backend="xccl", busbw=199.0)) == ["TF-VERIFY-FLOOR"]


def test_processors_have_no_floor_unless_one_is_given() -> None:
    assert ids(run(device="cpu", backend="gloo", busbw=0.01)) == []
    assert ids(run(device="cpu", backend="gloo", busbw=0.01), 0.02) == ["TF-VERIFY-FLOOR"]


@pytest.mark.parametrize(
    ("device", "share", "slow"),
    [("cuda", 0.69, True), ("cuda", 0.71, False), ("xpu", 0.69, True), ("cpu", 0.31, False), ("cpu", 0.29, True)],
)
def test_a_baseline(device: str, share: float, slow: bool) -> None:
    assert ids(run(device=device, busbw=share * 350.0), 0.0, best=350.0) == ["TF-VERIFY-SLOWER"] * slow


def test_a_baseline_only_becomes_better_and_knows_its_nodes() -> None:
    slow, fast = run(busbw=1.0), run(busbw=9.0)
    stored = speed.merged_baseline({}, [fast], NETWORK)
    assert stored == {"torchrun nccl 16 on n1 n2": 9.0}
    assert speed.merged_baseline(stored, [slow], NETWORK) == stored
    other = speed.Network(("n3", "n4"))
    assert speed.merged_baseline(stored, [slow], other) == {**stored, "torchrun nccl 16 on n3 n4": 1.0}


def test_clusters_with_the_same_names_of_nodes_share_no_baseline() -> None:
    """Two inventories in one checkout: the slower cluster was always slower than before."""
    one, two = (speed.network_of(GPUS, dict.fromkeys(GPUS, RATES), name) for name in ("one", "two"))
    stored = speed.merged_baseline({}, [run()], one)
    assert list(stored) == ["torchrun nccl 16 on n1 n2 of one"]
    slow = run(busbw=210.0)
    assert [row.id for row in speed.judge_speed([slow], one, None, stored)] == ["TF-VERIFY-SLOWER"]
    assert list(speed.judge_speed([slow], two, None, stored)) == []
    assert speed.measured_anew([slow], two, stored) == []


def test_a_baseline_without_the_names_of_clusters_is_measured_anew_with_a_line() -> None:
    named, old = speed.network_of(GPUS, dict.fromkeys(GPUS, RATES), "one"), {NETWORK.key(run()): 900.0}
    assert list(speed.judge_speed([run()], named, None, old)) == []
    (line,) = speed.measured_anew([run()], named, old)
    assert line.startswith("baseline: 1 rate without the name of a cluster")
    assert speed.measured_anew([run()], named, speed.merged_baseline(old, [run()], named)) == []
