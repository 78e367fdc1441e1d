"""Which GPUs a node has, from trees as the kernel shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import gpus
from ansible_collections.torchfleet.cluster.plugins.modules import accelerator_facts

H100, L4, V100, NVSWITCH = "10de:2330:030200", "10de:27b8:030200", "10de:1db6:030200", "10de:22a3:068000"
V520 = "1002:7362:038000"
MI300X, RADEON = "1002:74a1:120000", "1002:744c:030000"
XEON_SCREEN, PONTE_VECCHIO, NIC, BMC = "8086:4680:030000", "8086:0bd5:038000", "15b3:1021:020700", "1a03:2000:030000"
PCI_IDS = """\
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t74a1  Aqua Vanjaram [Instinct MI300X]
10de  NVIDIA Corporation
\t1db6  GV100GL [Tesla V100 PCIe 32GB]
\t\t10de 124a  Tesla V100
\t2330  GH100 [H100 SXM5 80GB]
"""


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def tree(root: Path, *devices: str) -> Path:
    """Make a PCI bus with these devices: vendor, device and class of each."""
    for number, device in enumerate(devices):
        words = dict(zip(("vendor", "device", "class"), device.split(":"), strict=True))
        for name, word in {**words, "numa_node": ""}.items():
            text = str(number % 2) if name == "numa_node" else f"0x{word}"
            put(root / f"sys/bus/pci/devices/0000:{number:02x}:00.0" / name, text + "\n")
    return root


@pytest.mark.parametrize(
    ("devices", "vendors"),
    [
        ([], []),
        ([NIC, BMC, XEON_SCREEN], []),
        ([H100, NIC, H100], ["nvidia", "nvidia"]),
        ([MI300X, RADEON], ["amd", "amd"]),
        ([L4, MI300X, PONTE_VECCHIO], ["nvidia", "amd", "intel"]),
    ],
)
def test_what_computes_is_a_gpu(tmp_path: Path, devices: list[str], vendors: list[str]) -> None:
    found = gpus.survey(str(tree(tmp_path, *devices)))
    assert [gpu["vendor"] for gpu in found["gpus"]] == vendors
    assert found["nvswitches"] == 0 and found["modules"] == {} and not any(found["usable"].values())


def test_what_is_told_of_a_gpu(tmp_path: Path) -> None:
    root = tree(tmp_path, NIC, H100)
    put(root / "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 43\n")
    (root / "sys/bus/pci/drivers/nvidia").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0000:01:00.0/driver").symlink_to("../../drivers/nvidia")
    assert gpus.survey(str(root))["gpus"] == [
        {
            "address": "0000:01:00.0",
            "vendor": "nvidia",
            "id": "10de:2330",
            "model": "NVIDIA H100 80GB HBM3",
            "target": "",
            "open_modules": True,
            "numa_node": 1,
            "driver": "nvidia",
        }
    ]


def test_without_a_driver_names_come_from_the_list_of_pci_devices(tmp_path: Path) -> None:
    root = tree(tmp_path, V100, MI300X, RADEON)
    put(root / "usr/share/misc/pci.ids", PCI_IDS)
    told = [(gpu["model"], gpu["target"]) for gpu in gpus.survey(str(root))["gpus"]]
    assert told == [
        ("GV100GL [Tesla V100 PCIe 32GB]", ""),
        ("Aqua Vanjaram [Instinct MI300X]", "gfx942"),
        ("", ""),
    ]


def test_the_driver_tells_the_target_of_any_gpu_of_amd(tmp_path: Path) -> None:
    """As the kernel's KFD does; the processor has a directory too."""
    root = tree(tmp_path, V100, RADEON, MI300X, V520)
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    put(nodes / "0/properties", "cpu_cores_count 64\nlocation_id 0\ndomain 0\ngfx_target_version 0\n")
    put(nodes / "1/properties", "simd_count 192\ngfx_target_version 110000\nlocation_id 256\ndomain 0\n")
    put(nodes / "2/properties", "gfx_target_version 90010\nlocation_id 512\ndomain 0\n")
    assert [gpu["target"] for gpu in gpus.survey(str(root))["gpus"]] == ["", "gfx1100", "gfx90a", "gfx1011"]


def test_open_kernel_modules_drive_turing_and_later(tmp_path: Path) -> None:
    found = gpus.survey(str(tree(tmp_path, V100, L4, MI300X)))
    assert [gpu["open_modules"] for gpu in found["gpus"]] == [False, True, False]


def test_switches_modules_and_what_can_be_used(tmp_path: Path) -> None:
    root = tree(tmp_path, H100, H100, NVSWITCH, NVSWITCH)
    put(root / "sys/module/nvidia/version", "580.95.05\n")
    (root / "sys/module/nouveau").mkdir()
    put(root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.575.57.08", "")
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        put(root / "dev" / name, "")
    found = gpus.survey(str(root))
    assert (found["infiniband"], found["nvlink_domain"]) == (0, "")
    assert found["nvswitches"] == 2 and found["usable"] == {"nvidia": 2, "amd": 0, "intel": 0}
    assert found["modules"] == {"nvidia": "580.95.05", "nouveau": ""}
    assert found["driver_library"] == "575.57.08"  # not what is loaded: a reboot is due


@pytest.mark.parametrize(("last", "told"), [(b"\x01", True), (b"\x00", False)])
def test_secure_boot(tmp_path: Path, last: bytes, told: bool) -> None:
    assert gpus.survey(str(tmp_path))["secure_boot"] is None
    path = tmp_path / "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x06\x00\x00\x00" + last)
    assert gpus.survey(str(tmp_path))["secure_boot"] is told


def test_libraries_are_found_by_their_headers(tmp_path: Path) -> None:
    assert set(gpus.survey(str(tmp_path), "/home/me")["libraries"].values()) == {""}
    for header in (
        "usr/local/cuda/include/cuda.h",
        "opt/rocm/core-10.0/include/hip/hip_runtime.h",
        "usr/include/ucp/api/ucp.h",
        "home/me/ucx/lib/python3.12/site-packages/libucx/include/ucp/api/ucp.h",
    ):
        put(tmp_path / header, "")
    assert gpus.survey(str(tmp_path), "/home/me")["libraries"] == {
        "cuda": "/usr/local/cuda",
        "rocm": "/opt/rocm/core-10.0",
        "verbs": "",
        "ucx": "/home/me/ucx/lib/python3.12/site-packages/libucx",
        "ucc": "",
    }
    assert gpus.survey(str(tmp_path))["libraries"]["ucx"] == "/usr"


def test_libraries_tell_their_versions(tmp_path: Path) -> None:
    ucx = "#define UCP_API_MAJOR    1\n#define UCP_API_MINOR    20\n#define UCP_API_VERSION UCP_VERSION(1, 20)\n"
    texts = {
        "usr/local/cuda/include/cuda.h": "/**\n * CUDA API version number\n */\n#define CUDA_VERSION 13000\n",
        "opt/rocm/include/hip/hip_runtime.h": "",
        "opt/rocm/.info/version": "7.2.0-43\n",
        "usr/include/infiniband/verbs.h": "",
        "home/me/ucx/include/ucp/api/ucp.h": "",
        "home/me/ucx/include/ucp/api/ucp_version.h": ucx,
        "usr/include/ucp/api/ucp.h": "",
    }
    for name, text in texts.items():
        put(tmp_path / name, text)
    versions = {"cuda": "13000", "rocm": "7.2.0-43", "verbs": "", "ucx": "1.20", "ucc": ""}
    assert gpus.survey(str(tmp_path), "/home/me")["versions"] == versions


def test_a_driver_that_was_replaced_while_loaded_fails_the_task_on_demand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No program can use the GPUs then. A role that installs the driver asks for the facts all the same."""
    put(tmp_path / "sys/module/nvidia/version", "580.95.05\n")
    library = tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.575.57.08"
    put(library, "")

    def answer(**given: Any) -> dict[str, Any]:
        with patch_module_args({"root": str(tmp_path), **given}), pytest.raises(SystemExit):
            accelerator_facts.main()
        return dict(json.loads(capsys.readouterr().out))

    assert answer(usable_driver=True)["msg"] == (
        "module nvidia 580.95.05 is loaded, and the library is 575.57.08: no program can use the NVIDIA GPUs before "
        "the machine is rebooted"
    )
    assert answer()["facts"]["driver_library"] == "575.57.08"
    library.rename(library.with_name("libnvidia-ml.so.580.95.05"))
    assert answer(usable_driver=True)["facts"]["driver_library"] == "580.95.05"
