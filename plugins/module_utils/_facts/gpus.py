# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which GPUs a node has and what drives them, read from sysfs and procfs: no lspci, no driver, no root."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import (
    MODULES,
    VENDORS,
    accelerators,
)

from . import nvlink
from .reading import text_of
from .versions import driver_library

BY_PCI = {row.pci: name for name, row in VENDORS.items()}
# PCI base class and subclass: VGA, 3D and other display controllers, processing accelerators.
GPU_CLASSES = {0x0300, 0x0302, 0x0380, 0x1200}
NVSWITCH = (VENDORS["nvidia"].pci, 0x0680)  # a bridge of another kind
# An InfiniBand controller of Mellanox: also what NVIDIA's fabric manager reaches the NVSwitches of HGX B200 by.
INFINIBAND = (0x15B3, 0x0207)
SCREENS = {(name, kind) for name, row in VENDORS.items() for kind in row.screens}
FIRST_TURING = 0x1E00  # of NVIDIA's device ids: older GPUs have neither open kernel modules nor CUDA 13
# AMD's device ids (amdgpu's table), for nodes where no driver tells the target yet.
TARGETS = {
    **dict.fromkeys((0x7360, 0x7362), "gfx1011"),  # Navi 12: Radeon Pro V520
    **dict.fromkeys((0x738C, 0x738E), "gfx908"),  # MI100
    **dict.fromkeys((0x7408, 0x740C, 0x740F, 0x7410), "gfx90a"),  # MI200
    **dict.fromkeys((0x74A0, 0x74A1, 0x74A2, 0x74A5, 0x74A9, 0x74B5), "gfx942"),  # MI300, MI325
    **dict.fromkeys((0x75A0, 0x75A3), "gfx950"),  # MI350
}
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# What others are built with: where it may be, and a header of it.
LIBRARIES = {
    "cuda": (("/usr/local/cuda",), "include/cuda.h"),
    "rocm": (("/opt/rocm", "/opt/rocm/core-*"), "include/hip/hip_runtime.h"),
    "verbs": (("/usr",), "include/infiniband/verbs.h"),
    "ucx": (("{home}/ucx", "{home}/ucx/lib/python3*/site-packages/libucx", "/usr"), "include/ucp/api/ucp.h"),
    "ucc": (("{home}/ucc", "/usr"), "include/ucc/api/ucc.h"),
}
# Which file of a library tells its version, and where: another version at the same place has what was built with it
# built anew. Verbs keep their binary interface (rdma-core has versions of symbols).
API_NUMBERS = r"define \w+_API_M(?:AJOR|INOR)\s+(\d+)"
VERSIONS = {
    "cuda": ("include/cuda.h", r"define CUDA_VERSION\s+(\d+)"),
    "rocm": (".info/version", r"^(\S+)"),
    "ucx": ("include/ucp/api/ucp_version.h", API_NUMBERS),
    "ucc": ("include/ucc/api/ucc_version.h", API_NUMBERS),
}
PCI_NAMES = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")


class PciDevice(TypedDict):
    """A device on the PCI bus. `kind`: base class and subclass."""

    address: str
    path: str
    vendor: int
    device: int
    kind: int


class Gpu(TypedDict):
    """A GPU. Empty texts, and None: not known."""

    address: str
    vendor: str
    id: str  # of vendor and device, as pci.ids has them
    model: str
    target: str  # of AMD's: to compile for
    open_modules: bool  # of NVIDIA's: whether open kernel modules drive it
    numa_node: int | None
    driver: str


class AcceleratorsLate(TypedDict, total=False):
    nvlink_domain: str
    infiniband: int


class Accelerators(AcceleratorsLate):
    """What a node has to compute with; module accelerator_facts explains the fields."""

    gpus: list[Gpu]
    nvswitches: int
    modules: dict[str, str]
    secure_boot: bool | None
    driver_library: str
    usable: dict[str, int]
    libraries: dict[str, str]
    versions: dict[str, str]


def survey(root: str = "/", home: str = "") -> Accelerators:
    """Return what a node has to compute with; module accelerator_facts lists the fields.

    `root` is where /sys, /proc, /dev and /usr are looked for; `home` is torchfleet's, which may have libraries too.
    Nothing is raised: what cannot be read is not there.
    """
    devices = list(pci_devices(root))
    libraries = {name: prefix(name, root, home) for name in LIBRARIES}
    gpus = [gpu(device, root) for device in devices if is_gpu(device)]
    return {
        "gpus": gpus,
        "nvlink_domain": nvlink.domain(nvlink.fabrics(root)),
        "nvswitches": sum((device["vendor"], device["kind"]) == NVSWITCH for device in devices),
        "infiniband": sum((device["vendor"], device["kind"]) == INFINIBAND for device in devices),
        "modules": modules(root),
        "secure_boot": secure_boot(root),
        "driver_library": driver_library(root),
        "usable": accelerators(root),
        "libraries": libraries,
        "versions": {name: version(name, root, place) for name, place in libraries.items()},
    }


def prefix(library: str, root: str, home: str) -> str:
    """Return the directory that a library is installed in with its headers, or an empty string."""
    places, header = LIBRARIES[library]
    patterns = [place.format(home=home) for place in places if home or "{home}" not in place]
    found = [path for pattern in patterns for path in sorted(glob.glob(os.path.join(root, pattern.lstrip("/"))))]
    there = [path for path in found if os.path.isfile(os.path.join(path, header))]
    return "/" + os.path.relpath(there[0], root) if there else ""


def version(library: str, root: str, place: str) -> str:
    """Return the version of a library in a directory; empty where it does not tell, or is not there."""
    if not place or library not in VERSIONS:
        return ""
    file, pattern = VERSIONS[library]
    text = text_of(os.path.join(root, place.lstrip("/"), file))
    return ".".join(re.findall(pattern, text, re.MULTILINE))


def pci_devices(root: str) -> Iterator[PciDevice]:
    """Yield everything on the PCI bus."""
    for path in sorted(glob.glob(os.path.join(root, "sys/bus/pci/devices/*"))):
        words = [text_of(os.path.join(path, name)).strip() for name in ("vendor", "device", "class")]
        if all(re.fullmatch("0x[0-9a-fA-F]+", word) for word in words):
            vendor, device, kind = (int(word, 16) for word in words)
            yield {
                "address": os.path.basename(path),
                "path": path,
                "vendor": vendor,
                "device": device,
                "kind": kind >> 8,
            }


def driven_targets(root: str) -> dict[str, str]:
    """Return AMD's targets by PCI address, as the driver tells them.

    The kernel's KFD has a directory for each GPU; gfx_target_version 90402 is gfx942, 90010 gfx90a; location_id is bus,
    device and function in 16 bits.
    """
    found = {}
    for path in glob.glob(os.path.join(root, "sys/class/kfd/kfd/topology/nodes/*/properties")):
        told = dict(re.findall(r"^(\w+) (\d{1,10})$", text_of(path), re.MULTILINE))
        version, place = (int(told.get(name, "0")) for name in ("gfx_target_version", "location_id"))
        if version:
            major, minor, step = version // 10000, version // 100 % 100, version % 100
            domain, bus, device = int(told.get("domain", "0")), place >> 8 & 0xFF, place >> 3 & 0x1F
            found[f"{domain:04x}:{bus:02x}:{device:02x}.{place & 7}"] = f"gfx{major}{minor:x}{step:x}"
    return found


def driver_mismatch(facts: Accelerators) -> str:
    """Return how NVIDIA's driver was replaced while loaded (no program can use it before a reboot), or nothing."""
    loaded, library = facts["modules"].get("nvidia", ""), facts["driver_library"]
    if not loaded or library in ("", loaded):
        return ""
    return f"module nvidia {loaded} is loaded, and the library is {library}"


def is_gpu(device: PciDevice) -> bool:
    """Say whether a PCI device can compute for a job."""
    vendor = BY_PCI.get(device["vendor"], "")
    return bool(vendor) and device["kind"] in GPU_CLASSES and (vendor, device["kind"]) not in SCREENS


def gpu(device: PciDevice, root: str) -> Gpu:
    """Return what is known of a GPU."""
    vendor = BY_PCI[device["vendor"]]
    node = text_of(os.path.join(device["path"], "numa_node")).strip()
    driver = os.path.join(device["path"], "driver")
    return {
        "address": device["address"],
        "vendor": vendor,
        "id": f"{device['vendor']:04x}:{device['device']:04x}",
        "model": model(device, root),
        "target": target(device, root) if vendor == "amd" else "",
        "open_modules": vendor == "nvidia" and device["device"] >= FIRST_TURING,
        "numa_node": int(node) if re.fullmatch(r"\d+", node) else None,
        "driver": os.path.basename(os.readlink(driver)) if os.path.islink(driver) else "",
    }


def target(device: PciDevice, root: str) -> str:
    """Return the target of a GPU of AMD's, or nothing where it is not known."""
    return driven_targets(root).get(device["address"]) or TARGETS.get(device["device"], "")


def model(device: PciDevice, root: str) -> str:
    """Return the name that the driver has for it, else that of the distribution's list of PCI names, else none."""
    information = text_of(os.path.join(root, "proc/driver/nvidia/gpus", device["address"], "information"))
    found = re.search(r"^Model:\s*(.+?)\s*$", information, re.MULTILINE)
    if found:
        return found.group(1)
    texts = (text_of(os.path.join(root, path)) for path in PCI_NAMES)
    return next(filter(None, (listed(device, text) for text in texts)), "")


def listed(device: PciDevice, names: str) -> str:
    """Return the name of a device in a list of PCI names (pci.ids), below its vendor. Empty if it is not there."""
    vendor = re.search(rf"^{device['vendor']:04x}  .*\n((?:[\t#].*\n)*)", names, re.MULTILINE)
    found = re.search(rf"^\t{device['device']:04x}  (.+)$", vendor.group(1), re.MULTILINE) if vendor else None
    return found.group(1).strip() if found else ""


def modules(root: str) -> dict[str, str]:
    """Return the kernel modules that drive GPUs and are loaded, and their versions, which may be empty."""
    return {
        name: text_of(os.path.join(root, "sys/module", name, "version")).strip()
        for name in MODULES
        if os.path.isdir(os.path.join(root, "sys/module", name))
    }


def secure_boot(root: str) -> bool | None:
    """Return whether the firmware lets only signed modules in; None where it does not tell (no EFI, a container)."""
    try:
        with open(os.path.join(root, SECURE_BOOT), "rb") as file:
            return file.read()[4:5] == b"\x01"  # four bytes of attributes come first
    except OSError:
        return None
