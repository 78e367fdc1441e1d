"""Which network NCCL used, from lines that people posted in issues of NCCL and of others."""

from __future__ import annotations

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.nccl_log import Transport, transport_of

# NCCL 2.28 (siderolabs/docs#566)
INFINIBAND = """\
nccl-test:179:179 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [RO]; OOB eth0:10.0.0.1<0>
nccl-test:179:179 [0] NCCL INFO Using network IB
nccl-test:179:179 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
nccl-test:179:179 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/2/GDRDMA
"""
# NCCL 2.7 (nccl#707): the bus of the GPU is in brackets, and a channel has no second number.
OLD = "10-90-43-152:120890:121560 [0] NCCL INFO Channel 01 : 2[c7000] -> 0[87000] [receive] via NET/IB/5/GDRDMA\n"
SOCKETS = """\
node1:22:295 [2] NCCL INFO NET/IB : No device found.
node1:22:295 [2] NCCL INFO NET/Socket : Using [0]ib0:192.168.11.1<0>
node1:22:295 [2] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
"""
WITHIN = "n1:22901:22901 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"


def test_infiniband_with_its_devices() -> None:
    found = transport_of([INFINIBAND, WITHIN])
    assert found == Transport(frozenset({"IB"}), frozenset({"mlx5_0", "mlx5_2"}), direct=True)
    assert str(found) == "IB (mlx5_0, mlx5_2) with GPUDirect RDMA"


def test_a_device_without_a_name_has_its_number() -> None:
    assert transport_of([OLD]).devices == {"5"}


def test_sockets_are_no_rdma() -> None:
    found = transport_of([SOCKETS])
    assert found == Transport(frozenset({"Socket"})) and str(found) == "Socket"


def test_plugins_of_clouds_are_named() -> None:
    line = "n1:1:2 [0] NCCL INFO Channel 03/0 : 7[7] -> 8[0] [send] via NET/AWS Libfabric/4/GDRDMA\n"
    assert transport_of([line]).plugins == {"AWS Libfabric"}


def test_connections_within_a_node_are_no_network() -> None:
    assert str(transport_of([WITHIN, ""])) == "none"


def test_nvlink_between_machines_is_no_network_and_no_connection_within_a_node() -> None:
    line = "n2:9:9 [0] NCCL INFO Channel 00/0 : 4[0] -> 3[3] via P2P/MNNVL\n"
    found = transport_of([WITHIN, line])
    assert found == Transport(nvlink=True) and str(found) == "NVLink" and found.is_known
    assert str(transport_of([INFINIBAND, line])) == "NVLink, IB (mlx5_0, mlx5_2) with GPUDirect RDMA"


def test_endless_output_takes_no_time() -> None:
    junk = "NCCL INFO Channel " + "0" * 1_000_000 + " NCCL INFO NET/IB : Using " + "[0]mlx5_0:1/IB " * 10_000
    assert transport_of([junk]).plugins == frozenset()
