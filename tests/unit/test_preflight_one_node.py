"""Preflight: recorded facts of real nodes, each changed in one thing, give exactly the finding about it."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.clock import Clock
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Answer, Limits, Target
from tests.unit.recorded_nodes import RECORDED, TARGETS, judged, only, two_nodes

H100 = {"id": "10de:2330", "vendor": "nvidia", "model": "", "driver": "nvidia"}
CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("TF-OS-UNSUPPORTED", {"system__kernel": "Darwin"}, "Darwin"),
    ("TF-OS-OLD", {"system__os": "debian", "system__os_version": "10", "system__os_name": "Debian 10"}, "Debian 10"),
    ("TF-DISK-HOME", {"home__free": 10**9}, "1.0 GB free in /home/fleet (overlay of overlay); needed: 3.0 GB"),
    ("TF-DISK-HOME", {"home__free": 0}, "0 MB free"),
    ("TF-DISK-HOME", {"home__free_inodes": 0}, "and no inodes"),
    ("TF-HOME-READONLY", {"home__read_only": True, "home__writable": False}, "is mounted read-only"),
    ("TF-HOME-READONLY", {"home__writable": False}, "fleet cannot write to /home/fleet"),
    ("TF-HOME-NOEXEC", {"home__noexec": True}, "noexec"),
    (
        "TF-HOME-LOOSE",
        {"home__loose": [{"path": "/home/fleet", "why": "everybody"}]},
        "every user can write to /home/fleet",
    ),
    ("TF-HOME-LOOSE", {"home__loose": [{"path": "/srv/tf", "why": "owner"}]}, "/srv/tf belongs to another user"),
    ("TF-DISK-TMP", {"tmp__free": 10**8}, "100 MB free in /tmp; needed: 200 MB"),
    ("TF-DISK-TMP", {"tmp__writable": False}, "/tmp is not writable"),
    ("TF-SHM-FULL", {"shm__free": 10**6}, "1 MB of 268 MB free"),
    ("TF-SHM-SMALL", {"shm__free": 64 << 20, "shm__size": 64 << 20}, "67 MB of 67 MB"),
    ("TF-MEMORY-LOW", {"memory__limit": 512 << 20}, "the control group of this session has 537 MB"),
    ("TF-MEMORY-LOW", {"memory__total": 512 << 20}, "the machine has 537 MB"),
    (
        "TF-MEMLOCK",
        {"rdma": ["mlx5_0"], "prerequisites__missing__rdma": []},
        "ulimit -l is 8192 KiB; RDMA devices: mlx5_0",
    ),
    ("TF-NOFILE", {"limits__nofile": 4096}, "ulimit -Hn is 4096; recommended: 16384"),
    ("TF-NPROC", {"limits__nproc": 100}, "ulimit -u is 100"),
    ("TF-HOSTNAME-LOOPBACK", {"host__addresses": ["127.0.1.1"]}, "n2 is 127.0.1.1"),
    ("TF-HOSTNAME-LOOPBACK", {"host__addresses": ["10.91.0.12", "127.0.1.1"]}, "127.0.1.1"),
    ("TF-HOSTNAME-UNRESOLVED", {"host__addresses": []}, "n2: no address"),
    ("TF-HOSTNAME-UNRESOLVED", {"host__addresses": None}, "n2: the lookup timed out"),
    ("TF-MAXSTARTUPS", {"sshd__max_startups": "1:30:60"}, "MaxStartups 1:30:60"),
    ("TF-PORTS-BUSY", {"ports__listening": list(range(20000, 29950))}, "50 of the ports 20000-29999"),
    ("TF-PORT-RANGE", {"ports__local_range": [1024, 65535]}, "1024-65535"),
    ("TF-FIREWALL", {"firewall": [{"kind": "ufw", "where": "it is enabled"}]}, "ufw: it is enabled"),
    ("TF-NO-VENV", {"python__venv": False}, "/usr/bin/python3 has no module venv"),
    ("TF-PYTHON-TORCH", {"python__version": ""}, "cannot be run"),
    ("TF-GPU-NO-DRIVER", {"accelerators__gpus": [H100, {**H100, "driver": "nouveau"}]}, "1 of 2: 10de:2330"),
    ("TF-NVIDIA-MISMATCH", {"versions__driver_library": "550.1"}, "kernel module 535.2, library 550.1"),
    ("TF-OS-UNTESTED", {"system__os": "fedora", "system__os_version": "44", "system__os_name": "Fedora 44"}, "Fedora"),
    ("TF-SAME-HOSTNAME", {"host__name": "n1"}, "the same host name, n1"),
    ("TF-SAME-HOST-KEY", {"host__host_keys": RECORDED["n1"]["host"]["host_keys"]}, "SHA256:"),
    ("TF-SAME-MACHINE-ID", {"host__machine_id": RECORDED["n1"]["host"]["machine_id"]}, "/etc/machine-id"),
    ("TF-SAME-MACHINE", {"host": RECORDED["n1"]["host"]}, "the same boot"),
]
ALONG = {  # findings that these changes bring along
    "TF-MEMORY-LOW": {"TF-DRIFT-MEMORY"},
    "TF-OS-OLD": {"TF-DRIFT-OS"},
    "TF-OS-UNTESTED": {"TF-DRIFT-OS"},
    "TF-NVIDIA-MISMATCH": {"TF-DRIFT-DRIVER"},
    "TF-PYTHON-TORCH": {"TF-DRIFT-BASE-PYTHON"},
}


@pytest.mark.parametrize(
    ("name", "changed", "seen"), CHANGES, ids=[f"{name}-{at}" for at, (name, *_) in enumerate(CHANGES)]
)
def test_a_changed_node_has_exactly_this_finding(name: str, changed: dict[str, Any], seen: str) -> None:
    if name == "TF-NVIDIA-MISMATCH":
        changed = {**changed, "versions__driver": "nvidia 535.2"}
    findings = [finding for finding in judged(two_nodes(**changed)) if finding.id not in ALONG.get(name, ())]
    finding = only(findings)
    assert finding.id == name
    assert seen in finding.seen
    assert "n2" in finding.nodes


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"system__libc": ""}, {"TF-OS-UNSUPPORTED", "TF-DRIFT-LIBC"}),
        ({"system__libc": "glibc 2.17"}, {"TF-OS-UNSUPPORTED", "TF-DRIFT-LIBC"}),
        ({"system__arch": "riscv64"}, {"TF-ARCH-UNSUPPORTED", "TF-DRIFT-ARCH"}),
        ({"system__arch": "aarch64"}, {"TF-DRIFT-ARCH"}),
        ({"python__version": "3.9.2"}, {"TF-PYTHON-TORCH", "TF-DRIFT-BASE-PYTHON"}),
        ({"python__version": "3.15.0"}, {"TF-PYTHON-TORCH", "TF-DRIFT-BASE-PYTHON"}),
        ({"versions__kernel": "6.1.0"}, {"TF-DRIFT-KERNEL"}),
        ({"versions__torch": "2.13.0+cpu"}, {"TF-DRIFT-TORCH"}),
    ],
)
def test_what_one_node_has_differs_from_the_other(changed: dict[str, Any], names: set[str]) -> None:
    assert {finding.id for finding in judged(two_nodes(**changed))} == names


def test_an_installed_node_needs_less_room() -> None:
    answers = two_nodes(home__free=10**9, versions__torch="2.13.0+cpu")
    assert [finding.id for finding in judged(answers)] == ["TF-DRIFT-TORCH"]


def test_a_head_that_runs_no_ranks_needs_no_room_for_torch_and_no_python_for_it() -> None:
    head = (Target("n1", "192.0.2.11", head=True, worker=False), TARGETS[1])
    answers = two_nodes()
    answers["n1"] = Answer({**RECORDED["n1"], "home": {**RECORDED["n1"]["home"], "free": 10**9}})
    answers["n1"] = Answer(
        {**dict(answers["n1"].facts or {}), "python": {"path": "p", "version": "3.11.0", "venv": False}}
    )
    assert [finding.severity for finding in judged(answers, targets=head)] == ["info"]


def test_a_head_without_ssh() -> None:
    answers = two_nodes()
    answers["n1"] = Answer({**RECORDED["n1"], "ssh": ""})
    assert only(judged(answers)).id == "TF-NO-SSH"
    assert judged(two_nodes(ssh="")) == []


@pytest.mark.parametrize(
    ("state", "password", "needed", "found"),
    [
        ("yes", False, True, []),
        ("root", False, True, []),
        ("no", True, True, []),
        ("no", False, False, []),
        ("not tried", False, False, []),
        ("no", False, True, ["TF-NO-SUDO"]),
        ("missing", True, True, ["TF-NO-SUDO"]),
    ],
)
def test_root_where_it_is_needed(state: str, password: bool, needed: bool, found: list[str]) -> None:
    targets = (TARGETS[0], Target("n2", "192.0.2.12", may_ask_password=password))
    findings = judged(two_nodes(user__sudo=state), Limits(needs_root=needed), targets)
    assert [finding.id for finding in findings] == found


@pytest.mark.parametrize(
    ("offset", "uncertainty", "found"),
    [(0.0, 0.01, 0), (4.9, 0.01, 0), (5.2, 0.01, 1), (-300.0, 0.01, 1), (6.0, 2.0, 0)],
)
def test_a_clock_is_off_only_beyond_doubt(offset: float, uncertainty: float, found: int) -> None:
    answers = two_nodes()
    answers["n2"] = Answer(answers["n2"].facts, Clock(offset, uncertainty))
    findings = judged(answers)
    assert len(findings) == found
    if findings:
        assert only(findings).id == "TF-CLOCK-SKEW"
        assert ("ahead of" if offset > 0 else "behind") in findings[0].seen
