"""What NVIDIA's driver and the kernel tell of GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import gpu_health
from tests.unit.file_tree import tree

# Form of nvidia-smi --format=csv,noheader by its manual page; N/A and errors as drivers 470 to 580 print them.
SMI = """\
00000000:18:00.0, 96.00.74.00.01, 0, Completed
00000000:2A:00.0, 96.00.74.00.01, 3, In Progress
00000001:3B:00.0, 96.00.74.00.01, [N/A], [N/A]
"""


def test_rows_of_nvidia_smi() -> None:
    assert gpu_health.rows_of(SMI, 4) == [
        {"address": "0000:18:00.0", "vbios": "96.00.74.00.01", "ecc_errors": 0, "fabric": "Completed"},
        {"address": "0000:2a:00.0", "vbios": "96.00.74.00.01", "ecc_errors": 3, "fabric": "In Progress"},
        {"address": "0001:3b:00.0", "vbios": "96.00.74.00.01", "ecc_errors": None, "fabric": ""},
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        'Field "fabric.state" is not a valid field to query.',
        "No devices were found",
        "No, not, a, row",
    ],
)
def test_other_output_has_no_rows(text: str) -> None:
    assert gpu_health.rows_of(text, 4) == []


def test_an_older_driver_is_asked_without_the_fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\ncase $1 in *fabric*) echo 'Field \"fabric.state\" is not a valid field to query.'; exit 2;; esac\n"
        "echo '00000000:18:00.0, 90.02.2E.00.08, [N/A]'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (row,) = gpu_health.nvidia_rows()
    assert row == {"address": "0000:18:00.0", "vbios": "90.02.2E.00.08", "ecc_errors": None, "fabric": ""}


def test_errors_in_the_kernel_log() -> None:
    log = (
        b"4,1234,5678,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        b"4,1235,5679,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
        b"4,1236,5680,-;NVRM: Xid (PCI:0000:18:00): 31, pid=4242, MMU Fault\n"
        b"6,1237,5681,-;audit: somebody said NVRM: Xid (PCI:zz): 1\n"
    )
    rows = [("0000:18:00.0", 31), ("0000:3b:00.0", 79)]
    assert gpu_health.xids(log) == [{"address": address, "number": number} for address, number in rows]


def test_a_log_that_nobody_may_read_is_empty(tmp_path: Path) -> None:
    assert gpu_health.kernel_log(str(tmp_path)) == b""


def test_the_newest_kernel_boots_next(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        **{
            "boot/vmlinuz-6.1.0-9-amd64": "",
            "boot/vmlinuz-6.1.0-30-amd64": "",
            "boot/vmlinuz-7.0-removed": "",
            "lib/modules/6.1.0-9-amd64/updates/dkms/nvidia.ko.xz": "",
            "lib/modules/6.1.0-30-amd64/modules.dep": "kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko: x.ko\n",
        },
    )
    assert gpu_health.next_kernel(str(root)) == {"release": "6.1.0-30-amd64", "modules": ["amdgpu"]}
    tree(tmp_path, **{"lib/modules/6.1.0-30-amd64/updates/dkms/nvidia.ko": ""})
    assert gpu_health.next_kernel(str(root))["modules"] == ["nvidia", "amdgpu"]
    builtin = "kernel/drivers/gpu/drm/i915/i915.ko\n"  # in the kernel's own file
    tree(tmp_path, **{"lib/modules/6.1.0-30-amd64/modules.builtin": builtin})
    assert gpu_health.next_kernel(str(root))["modules"] == ["nvidia", "amdgpu", "i915"]


def test_a_container_has_no_kernel(tmp_path: Path) -> None:
    assert gpu_health.next_kernel(str(tmp_path)) == {"release": "", "modules": []}
