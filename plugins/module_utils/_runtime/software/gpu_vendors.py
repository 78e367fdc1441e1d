# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The vendors of GPUs: one row each. Nodes and the controller take all else about vendors from it."""

from __future__ import annotations

import glob
import os
import re
from typing import Callable, Mapping, NamedTuple, Sequence


def count_nvidia(root: str) -> int:
    """Return the number of NVIDIA's device files."""
    return sum(bool(re.search(r"nvidia\d+\Z", path)) for path in glob.glob(os.path.join(root, "dev", "nvidia*")))


def count_amd(root: str) -> int:
    """Return the number of AMD's KFD nodes with a GPU."""
    count = 0
    for path in glob.glob(os.path.join(root, "sys/class/kfd/kfd/topology/nodes/*/gpu_id")):
        with open(path) as file:
            count += file.read().strip() not in ("", "0")
    return count


def count_intel(root: str) -> int:
    """Return the number of Intel's GPUs that compute. One whose PCI class is VGA (0x0300) drives a screen."""
    count = 0
    for path in glob.glob(os.path.join(root, "sys/class/drm/renderD*/device")):
        number, kind = (first_line(os.path.join(path, name)) for name in ("vendor", "class"))
        count += number == "0x8086" and not kind.startswith("0x0300")
    return count


def first_line(path: str) -> str:
    """Return the first line of a file, or an empty string."""
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


class Vendor(NamedTuple):
    """One vendor of GPUs."""

    title: str  # for people
    pci: int  # the vendor's number on the PCI bus
    modules: Sequence[str]  # kernel modules that drive its GPUs
    usable: Callable[[str], int] | None = None  # how many a program can open below a root; None: no job uses them
    role: str = ""  # that installs its driver: a word of `accelerators` in setup.yml
    device: str = ""  # what torch calls its GPUs
    device_file: str = ""  # that a program opens beside those in /dev/dri
    code: bool = False  # whether a torch has code for some of its GPUs only
    resource: str = ""  # what Kubernetes calls its GPUs
    build: str = ""  # name in torch/version.py that is set where torch is built for its GPUs
    ucx: str = ""  # UCX's transport for its memory
    ucc: str = ""  # UCC's layer for its own library of collectives
    screens: Sequence[int] = ()  # PCI class and subclass of those that drive a screen, and do not compute
    detours: Sequence[str] = ()  # variables: up to which size copies of GPU buffers take a detour through the host


VENDORS: Mapping[str, Vendor] = {
    "nvidia": Vendor(
        title="NVIDIA",
        pci=0x10DE,
        modules=("nvidia", "nouveau"),
        usable=count_nvidia,
        role="cuda",
        device="cuda",
        device_file="/dev/nvidiactl",
        code=True,
        resource="nvidia.com/gpu",
        build="cuda",
        ucx="cuda",
        ucc="nccl",
    ),
    "amd": Vendor(
        title="AMD",
        pci=0x1002,
        modules=("amdgpu",),
        usable=count_amd,
        role="rocm",
        device="cuda",
        device_file="/dev/kfd",
        code=True,
        resource="amd.com/gpu",
        build="hip",
        ucx="rocm",
        ucc="rccl",
        detours=(  # names from UCX, UCC and Open MPI
            *("UCX_ROCM_COPY_D2H_THRESH", "UCX_ROCM_COPY_H2D_THRESH"),
            *("UCC_EC_ROCM_REDUCE_HOST_LIMIT", "UCC_EC_ROCM_COPY_HOST_LIMIT"),
            *("OMPI_MCA_mpi_accelerator_rocm_memcpyD2H_limit", "OMPI_MCA_mpi_accelerator_rocm_memcpyH2D_limit"),
        ),
    ),
    "intel": Vendor(
        title="Intel",
        pci=0x8086,
        modules=("xe", "i915"),
        usable=count_intel,
        device="xpu",
        resource="gpu.intel.com/i915",
        build="xpu",
        screens=(0x0300,),  # a VGA controller in the processor: what computes is of the other classes
    ),
}
USABLE = tuple(name for name, row in VENDORS.items() if row.usable)  # whose GPUs a job can use
RESOURCES = {row.resource: name for name, row in VENDORS.items() if row.resource}
BUILDS = tuple(row.build for row in VENDORS.values() if row.build)
MODULES = tuple(module for row in VENDORS.values() for module in row.modules)


def accelerators(root: str = "/") -> dict[str, int]:
    """Return how many GPUs a program can open here, by vendor."""
    return {name: row.usable(root) for name, row in VENDORS.items() if row.usable}
