# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The RDMA devices of one node and the places of its GPUs, only read from sysfs."""

from __future__ import annotations

import glob
import os
import re

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import VENDORS

from .sysfs import driver, pci_path, read

GPU_VENDORS = tuple(f"0x{row.pci:04x}" for row in VENDORS.values())
GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # PCI: display controllers, processing accelerators
# In the vital product data of the ConnectX-7 that NVIDIA's fabric manager controls the NVSwitches of HGX B200 and B300
# by (nvidia-fabricmanager-start.sh looks for it). Its ports carry nothing else.
NVSWITCH = b"SW_MNG"
RATE = re.compile(r"([\d.]+)(?: Gb/sec \((\d+X [A-Z0-9]+)\))?")  # "400 Gb/sec (4X NDR)"
VPD_BYTES = 1 << 15  # the most that PCI allows


def rdma_ports(sysfs_root: str) -> list[dict[str, object]]:
    """Return the ports of /sys/class/infiniband with their GID tables."""
    base = os.path.join(sysfs_root, "class", "infiniband")
    found = []
    for device in sorted(os.listdir(base) if os.path.isdir(base) else []):
        ports = os.path.join(base, device, "ports")
        for port in sorted(os.listdir(ports) if os.path.isdir(ports) else [], key=int):
            path = os.path.join(ports, port)
            rate = RATE.match(read(os.path.join(path, "rate")))
            place = os.path.join(base, device, "device")
            netdevs = os.path.join(place, "net")
            found.append(
                {
                    "device": device,
                    "port": int(port),
                    "active": "ACTIVE" in read(os.path.join(path, "state")).split(),  # "4: ACTIVE"
                    "link_layer": read(os.path.join(path, "link_layer")),
                    "rate_gbit": float(rate.group(1)) if rate else None,
                    "width": (rate.group(2) or "") if rate else "",
                    "netdevs": sorted(os.listdir(netdevs)) if os.path.isdir(netdevs) else [],
                    "gids": gids(path),
                    "node_type": read(os.path.join(base, device, "node_type")).partition(": ")[2],  # "1: CA"
                    "driver": driver(place),
                    "use": use_of(place),
                    "pci": pci_path(place),
                    "board": read(os.path.join(base, device, "board_id"))
                    or read(os.path.join(base, device, "hca_type")),
                    "firmware": read(os.path.join(base, device, "fw_ver")),
                }
            )
    return found


def gids(port: str) -> list[dict[str, object]]:
    """Return the used entries of the GID table of a port: index, gid, type, netdev. Reading an unused one fails."""
    base = os.path.join(port, "gids")
    found = []
    for index in sorted((int(name) for name in os.listdir(base)) if os.path.isdir(base) else []):
        kind = read(os.path.join(port, "gid_attrs", "types", str(index)))
        text = read(os.path.join(base, str(index)))
        if kind and text:
            netdev = read(os.path.join(port, "gid_attrs", "ndevs", str(index)))
            found.append({"index": index, "gid": text, "type": kind, "netdev": netdev})
    return found


def use_of(device: str) -> str:
    """Return nvswitch or virtual for devices that can be no rail: a bridge to NVSwitches, a function of a guest."""
    if os.path.exists(os.path.join(device, "physfn")):
        return "virtual"
    try:
        with open(os.path.join(device, "vpd"), "rb") as file:
            return "nvswitch" if NVSWITCH in file.read(VPD_BYTES) else ""
    except OSError:  # most devices have none, and some kernels show it to root alone
        return ""


def gpus(sysfs_root: str) -> list[str]:
    """Return where on PCI the GPUs are, as pci_path()."""
    found = []
    for device in sorted(glob.glob(os.path.join(sysfs_root, "bus", "pci", "devices", "*"))):
        kind = read(os.path.join(device, "class"))[:6]
        if kind in GPU_CLASSES and read(os.path.join(device, "vendor")) in GPU_VENDORS:
            found.append(pci_path(device))
    return [path for path in found if path]
