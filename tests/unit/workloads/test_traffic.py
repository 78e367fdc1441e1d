"""What a node sent, from counters of the kernel."""

from __future__ import annotations

from pathlib import Path

import _traffic
import pytest

from tests.unit.file_tree import tree

TWO_NODES = {"LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "nic"),
    [
        ({"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth2"}, "eth1"),
        ({"NCCL_SOCKET_IFNAME": "=eth2"}, "eth2"),
        ({}, ""),
        ({"GLOO_SOCKET_IFNAME": "../lo"}, ""),
    ],
)
def test_the_nic_is_the_one_that_the_libraries_are_told(environ: dict[str, str], nic: str) -> None:
    assert _traffic.chosen_nic(environ) == nic


def test_counters_of_the_nic_and_of_all_rdma_ports(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        **{
            "sys__class__net__eth1__statistics__tx_bytes": "1000\n",
            "sys__class__infiniband__mlx5_0__ports__1__counters__port_xmit_data": "5\n",
            "sys__class__infiniband__mlx5_1__ports__1__counters__port_xmit_data": "7\n",
        },
    )
    found = _traffic.job_sends({**TWO_NODES, "GLOO_SOCKET_IFNAME": "eth1"}, Path(root))
    assert found == _traffic.Sent(nic=1000, rdma=48)
    assert found.since(_traffic.Sent(400, 8)) == _traffic.Sent(600, 40)


def test_what_cannot_be_read_is_nothing(tmp_path: Path) -> None:
    assert _traffic.job_sends({**TWO_NODES, "GLOO_SOCKET_IFNAME": "eth1"}, tmp_path) == _traffic.Sent(0, 0)


def test_one_node_sends_nothing() -> None:
    assert _traffic.job_sends({"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}) is None
    assert _traffic.job_sends({}) is None


def test_what_the_nic_and_the_rdma_devices_of_the_job_carry(tmp_path: Path) -> None:
    files = {
        "sys__class__net__eth1__speed": "25000\n",
        "sys__class__net__eth2__speed": "-1\n",
        "sys__class__infiniband__mlx5_0__ports__1__rate": "100 Gb/sec (4X EDR)\n",
        "sys__class__infiniband__mlx5_1__ports__1__rate": "400 Gb/sec (4X NDR)\n",
        "sys__class__infiniband__mlx5_9__ports__1__rate": "400 Gb/sec (4X NDR)\n",
    }
    root = Path(tree(tmp_path, **files))
    of_job = {**TWO_NODES, "GLOO_SOCKET_IFNAME": "eth1", "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}
    assert _traffic.job_rates(of_job, root) == (25.0, 500.0)
    assert _traffic.job_rates({**TWO_NODES, "GLOO_SOCKET_IFNAME": "eth2"}, root) == (0.0, 0.0)
    assert _traffic.job_rates({}, root) is None
