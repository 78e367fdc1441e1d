"""Which node of the plan a pod is, and which NIC and RDMA ports it has."""

from __future__ import annotations

import json
import os
import re
import zipfile
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled import entry, network
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.place import (
    NoPlace,
    number_of,
    without_those_of_pods,
)

FOUR = "0000:0000:0000:0000:0000:ffff:0a00:0001"
HOSTS = ("a", "b-0", "b-1", "c-0")  # of a plan of 4 pods
LOCAL = "fe80:0000:0000:0000:0000:0000:0000:0001"


@pytest.mark.parametrize(
    ("environment", "host", "number", "who"),
    [
        ({"JOB_COMPLETION_INDEX": "2"}, "x", 2, "Indexed Job"),
        ({"TORCHFLEET_POD": "1", "JOB_COMPLETION_INDEX": "0"}, "x", 1, "the manifest"),
        ({"PET_NODE_RANK": "3"}, "x", 3, "trainer"),
        ({"SLURM_NODEID": "3", "SLURM_PROCID": "1", "RANK": "0"}, "n-1", 3, "srun"),
        ({"RANK": "1", "WORLD_SIZE": "4"}, "x", 1, "Run:ai"),  # of pods: document 003 warns of taking it for a rank
        ({}, "demo-worker-2", 2, "host name demo-worker-2: it ends in the number"),
        ({}, "c-0", 3, "host name c-0: the plan has it"),  # whatever number a name ends in
    ],
)
def test_the_number_is_found(environment: dict[str, str], host: str, number: int, who: str) -> None:
    found = number_of(environment, host, HOSTS)
    assert found.number == number
    assert who in found.reason


@pytest.mark.parametrize(
    ("environment", "host", "why"),
    [
        ({}, "demo", "nothing says which of 4 pods"),
        ({"RANK": "4"}, "x-1", "RANK=4.*pods 0 to 3"),
        ({"JOB_COMPLETION_INDEX": "-1"}, "x", "pods 0 to 3"),
        ({"JOB_COMPLETION_INDEX": "9" * 5000}, "x", "pods 0 to 3"),
        ({}, "demo-7", "pods 0 to 3"),
    ],
)
def test_a_wrong_number_is_refused_in_one_line(environment: dict[str, str], host: str, why: str) -> None:
    with pytest.raises(NoPlace, match=why) as error:
        number_of(environment, host, HOSTS)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_no_rank_sees_what_counts_pods() -> None:
    given = {
        "RANK": "1",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "x",
        "PET_NNODES": "4",
        "PATH": "/bin",
        "NCCL_DEBUG": "INFO",
    }
    assert without_those_of_pods(given) == {"PATH": "/bin", "NCCL_DEBUG": "INFO"}


def port(root: Path, device: str, gids: dict[int, tuple[str, str]], state: str = "4: ACTIVE") -> None:
    place = root / "class" / "infiniband" / device / "ports" / "1"
    for index, (gid, kind) in gids.items():
        for folder, text in (("gids", gid), ("gid_attrs/types", kind)):
            (place / folder).mkdir(parents=True, exist_ok=True)
            (place / folder / str(index)).write_text(text)
    (place / "state").write_text(state)
    (place / "link_layer").write_text("Ethernet")


def found_in(root: Path, monkeypatch: pytest.MonkeyPatch) -> network.Network:
    monkeypatch.setattr(network, "nic_of", lambda _address: "net1")
    return network.network_of("127.0.0.1", 29500, "pod", str(root))


def test_rdma_and_its_gid_are_those_of_document_003(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`grep 0000:...:ffff gids/*`, of these the one whose type is RoCE v2; and the exact name of the device."""
    port(tmp_path, "mlx5_bond_0", {0: (LOCAL, "RoCE v2"), 2: (FOUR, "IB/RoCE v1"), 3: (FOUR, "RoCE v2")})
    port(tmp_path, "mlx5_1", {3: (FOUR, "RoCE v2")}, state="1: DOWN")
    found = found_in(tmp_path, monkeypatch)
    assert found.environment == {"NCCL_IB_HCA": "=mlx5_bond_0:1", "NCCL_IB_GID_INDEX": "3"}
    assert any("GID 3 of RoCE v2: 10.0.0.1" in line for line in found.said)


def test_ports_whose_gids_differ_are_left_to_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port(tmp_path, "mlx5_0", {3: (FOUR, "RoCE v2")})
    port(tmp_path, "mlx5_1", {5: (FOUR, "RoCE v2")})
    assert found_in(tmp_path, monkeypatch).environment == {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}


def test_without_rdma_it_is_off_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port(tmp_path, "mlx5_0", {0: (LOCAL, "IB/RoCE v1")})
    found = found_in(tmp_path, monkeypatch)
    assert found.environment == {"NCCL_IB_DISABLE": "1"}
    assert "no RDMA port" in found.said[-1]


def test_the_nic_is_the_one_on_the_way_to_the_first_pod() -> None:
    """On this machine, for real: loopback leads to loopback."""
    found = network.network_of("127.0.0.1", 29500)
    assert found.nic == "lo"
    assert re.match("lo: it has 127.0.0.1", found.said[0])


def test_what_the_user_gives_stays() -> None:
    found = network.Network("net1", (), {"NCCL_IB_GID_INDEX": "3"}, ())
    given = {"GLOO_SOCKET_IFNAME": "@nic@", "NCCL_SOCKET_IFNAME": "=@nic@", "NCCL_IB_GID_INDEX": "5"}
    filled = network.with_nic(given, found)
    assert filled == {"GLOO_SOCKET_IFNAME": "net1", "NCCL_SOCKET_IFNAME": "=net1", "NCCL_IB_GID_INDEX": "5"}


def test_a_pod_that_is_asked_to_end_waits_for_no_name() -> None:
    """Else it is killed after its grace period, and whoever pressed Ctrl-C waits for that."""
    with pytest.raises(OSError, match=r"SIGTERM came before none\.invalid had an address"):
        network.wait_for_name("none.invalid", 600.0, lambda: "SIGTERM")
    with pytest.raises(OSError, match=r"none\.invalid has no address after 0 s"):
        network.wait_for_name("none.invalid", 0.0, lambda: "")
    network.wait_for_name("localhost", 0.0, lambda: "SIGTERM")  # it is there


def test_ranks_do_not_inherit_the_numbers_of_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun reads PET_NNODES as its own option, and PyTorch WORLD_SIZE."""

    class Alone(entry.Entry):
        def peers(self, first: str, number: int, count: int) -> entry.Peers:
            raise NoPlace(f"node {number} of {count}")

    monkeypatch.setattr(entry.signal, "signal", lambda *_words: None)
    for name, value in (("PET_NODE_RANK", "1"), ("PET_NNODES", "2"), ("WORLD_SIZE", "2"), ("KEPT", "yes")):
        monkeypatch.setenv(name, value)
    (tmp_path / "order.json").write_text(json.dumps({"nodes": {"a": {}, "b": {}}, "job": {"master_addr": "a"}}))
    with pytest.raises(NoPlace, match="node 1 of 2"):
        Alone(str(tmp_path), str(tmp_path)).run()
    assert [name for name in ("PET_NODE_RANK", "PET_NNODES", "WORLD_SIZE", "KEPT") if name in os.environ] == ["KEPT"]


def test_the_script_of_a_pod_is_its_users_alone(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "job"))
    os.mkdir(job.path)
    with zipfile.ZipFile(tmp_path / "program.zip", "w") as packed:
        for name in ("train.py", "sub/run.sh"):
            packed.writestr(name, "x")
    (tmp_path / "listing.json").write_text(json.dumps([["train.py", "0" * 64, False], ["sub/run.sh", "0" * 64, True]]))
    before = os.umask(0)
    try:
        entry.Program(str(tmp_path)).make_tree(job)
    finally:
        os.umask(before)
    modes = {name: os.stat(job.at("src", name)).st_mode & 0o777 for name in ("", "train.py", "sub/run.sh")}
    assert modes == {"": 0o700, "train.py": 0o600, "sub/run.sh": 0o700}
