# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The findings about GPUs that are missing or broken on a node. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.nvlink import NvlinkFabric

from .facts_types import GpuFacts
from .findings import Finding, Rule, found

# Errors after which a GPU computes wrongly or not at all until it is reset or replaced (NVIDIA, "XID Errors").
FATAL_XIDS = {
    48: "double bit ECC error",
    62: "internal micro-controller halt",
    64: "ECC page retirement or row remapping failed",
    74: "NVLink error",
    79: "fell off the bus",
    92: "high single-bit ECC error rate",
    95: "uncontained memory error",
    119: "GSP timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
}
RESET = "drain the node, reset the GPU (nvidia-smi --gpu-reset) or reboot; if it comes back, replace the GPU"

RULES: Mapping[str, Rule] = {
    "TF-GPU-MISSING": Rule(
        "error",
        "GPUs are missing",
        "jobs would silently run with fewer ranks",
        "torchfleet_gpus of the inventory",
        "look at the kernel's log (journalctl -k | grep -i -e nvrm -e amdgpu); or set torchfleet_gpus to what is there",
    ),
    "TF-GPU-UNUSABLE": Rule(
        "error",
        "GPUs cannot be used",
        "jobs would silently run with fewer ranks",
        "devices on the PCI bus against devices that programs can open",
        "look at the kernel's log (journalctl -k | grep -i -e nvrm -e amdgpu), and reboot",
    ),
    "TF-GPU-ECC": Rule("error", "GPU memory has errors", "results may be wrong", "nvidia-smi", RESET),
    "TF-GPU-FABRIC": Rule(
        "error",
        "NVLink fabric of GPUs is not ready",
        "CUDA fails with error 802 (system not yet initialized)",
        "nvidia-smi, NVIDIA Fabric Manager User Guide",
        "systemctl restart nvidia-fabricmanager; its version must be that of the driver. Where the NVSwitches are in "
        "other machines (GB200 NVL72), look at their controller",
    ),
    "TF-GPU-FABRIC-HEALTH": Rule(
        "error",
        "NVLink fabric of GPUs is not healthy",
        "NVLink is slower than it should be, or its routes change under load",
        "nvidia-smi --query, Fabric",
        "journalctl -u nvidia-fabricmanager, or the controller of the NVSwitches; then reset the GPUs",
    ),
    "TF-GPU-CLIQUE": Rule(
        "error",
        "GPUs of one node are in different NVLink cliques",
        "they cannot reach each other over NVLink, and nvidia-imex does not start",
        "nvidia-smi --query, CliqueId and ClusterUUID",
        "put all GPUs of the node into one NVLink partition",
    ),
    "TF-GPU-XID": Rule("error", "the GPU driver reported errors", "the GPU fails under load", "kernel log", RESET),
    "TF-GPU-NEXT-KERNEL": Rule(
        "warning",
        "the kernel that boots next has no GPU driver",
        "the GPUs are gone after the next reboot",
        "/boot and /lib/modules",
        "install its headers and build the module: apt-get install linux-headers-{release}, or dnf install "
        "kernel-devel-{release}; then dkms autoinstall -k {release}",
    ),
}


def gpu_findings(node: str, facts: GpuFacts, expected: int | None) -> Iterator[Finding]:
    """Yield the findings about the GPUs of a worker. `expected`: torchfleet_gpus of the inventory, if it is set."""
    gpus, usable = facts["accelerators"]["gpus"], facts["accelerators"]["usable"]
    there = sum(usable.values())
    if expected is not None and there != expected:
        yield found(RULES, "TF-GPU-MISSING", [node], f"{there} of {expected}")
    for vendor, count in usable.items():
        driven = [gpu for gpu in gpus if gpu["vendor"] == vendor and gpu["driver"] not in ("", "nouveau", "vfio-pci")]
        if count < len(driven):
            yield found(RULES, "TF-GPU-UNUSABLE", [node], f"{len(driven) - count} of {len(driven)} ({vendor})")
    yield from health_findings(node, facts)


def nvlink_findings(node: str, rows: Sequence[NvlinkFabric]) -> Iterator[Finding]:
    """Yield the findings about the NVLink fabric of GPUs that have registered with it."""
    for row in rows:
        if row["state"] == "Completed" and row["status"] not in ("", "Success"):
            yield found(RULES, "TF-GPU-FABRIC", [node], f"{row['address']}: {row['status']}")
        elif row["flaws"]:
            yield found(RULES, "TF-GPU-FABRIC-HEALTH", [node], f"{row['address']}: {', '.join(row['flaws'])}")
    cliques = {(row["cluster"], row["clique"]) for row in rows if row["state"] == "Completed"}
    if len(cliques) > 1:
        told = ", ".join(f"{row['address']}: {row['clique']} of {row['cluster'] or 'none'}" for row in rows)
        yield found(RULES, "TF-GPU-CLIQUE", [node], told)


def health_findings(node: str, facts: GpuFacts) -> Iterator[Finding]:
    """Yield the findings about GPUs that are there and not sound."""
    health = facts["gpu_health"]
    for row in health["nvidia"]:
        if row["ecc_errors"]:
            yield found(RULES, "TF-GPU-ECC", [node], f"{row['address']}: {row['ecc_errors']} uncorrected")
        if row["fabric"] and row["fabric"] != "Completed":
            yield found(RULES, "TF-GPU-FABRIC", [node], f"{row['address']}: {row['fabric']}")
    yield from nvlink_findings(node, health.get("nvlink", []))
    for xid in health["xids"]:
        if xid["number"] in FATAL_XIDS:
            seen = f"{xid['address']}: XID {xid['number']}, {FATAL_XIDS[xid['number']]}"
            yield found(RULES, "TF-GPU-XID", [node], seen)
    release, loaded = health["next_kernel"]["release"], facts["versions"]["driver"].partition(" ")[0]
    if release and loaded and release != facts["versions"]["kernel"] and loaded not in health["next_kernel"]["modules"]:
        yield found(RULES, "TF-GPU-NEXT-KERNEL", [node], f"{release} has no module {loaded}", release=release)
