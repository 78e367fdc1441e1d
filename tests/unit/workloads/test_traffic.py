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
