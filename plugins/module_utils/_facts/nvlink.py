# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The NVLink fabric of a node's GPUs as nvidia-smi tells it: its state and health, and which GPUs are in one clique.

On machines whose NVSwitches join several nodes (GB200 NVL72) the GPUs of one cluster UUID and clique reach each other's
memory over NVLink, if nvidia-imex runs on all their nodes.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import TypedDict

from .reading import output_of, program

GPU = re.compile(r"GPU ([0-9A-Fa-f:.]{12,20})$")
FIELD = re.compile(r"( +)([A-Za-z][A-Za-z ]{0,60}?) *: (.{1,80})$")
NOTHING = ("N/A", "Not Supported", "Unknown Error")  # of a driver that does not tell, or hardware without a fabric
# Parts of the health, and what they are when all is well (NVML, fabric definitions).
SOUND = {
    "Summary": "Healthy",
    "Bandwidth": "Full",
    "Route Recovery in progress": "False",
    "Route Unhealthy": "False",
    "Access Timeout Recovery": "False",
    "Incorrect Configuration": "None",
}
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


class NvlinkFabric(TypedDict):
    """The NVLink fabric of a GPU. Empty texts: the driver does not tell."""

    address: str  # of the GPU on the PCI bus
    state: str
    status: str
    cluster: str
    clique: str
    flaws: list[str]  # the parts of its health that are not well


def fabrics(root: str = "/") -> list[NvlinkFabric]:
    """Return a row for each GPU that has an NVLink fabric. Nothing is raised: what cannot be read is not there."""
    path = program("nvidia-smi") if os.path.isdir(os.path.join(root, "sys/module/nvidia")) else ""
    return fabrics_in(asked(path)) if path else []


@lru_cache(maxsize=1)
def asked(path: str) -> str:
    """Return what nvidia-smi tells of all GPUs. It takes seconds, and two kinds of facts need it."""
    return output_of([path, "--query"])


def fabrics_in(text: str) -> list[NvlinkFabric]:
    """Return the rows of the output of nvidia-smi --query."""
    found: list[NvlinkFabric] = []
    address, inside = "", False
    for line in text.splitlines():
        gpu = GPU.match(line.rstrip())
        field = FIELD.match(line.rstrip())
        if gpu:
            address, inside = gpu.group(1), False
        elif line.strip() == "Fabric" and address:
            inside = True
            found.append({"address": pci(address), "state": "", "status": "", "cluster": "", "clique": "", "flaws": []})
        elif inside and len(line) - len(line.lstrip()) <= 4:
            inside = False
        elif inside and field and field.group(3).strip() not in NOTHING:
            take(found[-1], field.group(2), field.group(3).strip())
    return [row for row in found if row["state"]]


def take(row: NvlinkFabric, name: str, value: str) -> None:
    """Put a field into a row, if it is one that counts."""
    if name == "State":
        row["state"] = value
    elif name == "Status":
        row["status"] = value
    elif name == "CliqueId":
        row["clique"] = value
    elif name == "ClusterUUID":
        row["cluster"] = value.lower()
    elif name in SOUND and value != SOUND[name]:
        row["flaws"].append(f"{name}: {value}")


def pci(text: str) -> str:
    """Return a PCI address as sysfs writes it: nvidia-smi has a domain of eight digits."""
    domain, _colon, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if re.fullmatch("[0-9a-f]{8}", domain) else text.lower()


def domain_of(row: NvlinkFabric) -> str:
    """Return cluster UUID and clique of a GPU that shares NVLink with other nodes, "UUID/32766"; else nothing.

    Where the NVSwitches are in the machine itself, the UUID has zeros only.
    """
    cluster, clique = row["cluster"], row["clique"]
    shares = UUID.match(cluster) and cluster.strip("0-") and re.fullmatch(r"\d{1,10}", clique)
    done = (row["state"], row["status"]) == ("Completed", "Success")
    return f"{cluster}/{clique}" if shares and done else ""


def domain(rows: list[NvlinkFabric]) -> str:
    """Return the one domain of all GPUs of a node; nothing if they are in several, or any is in none."""
    domains = {domain_of(row) for row in rows}
    return domains.pop() if len(domains) == 1 else ""
