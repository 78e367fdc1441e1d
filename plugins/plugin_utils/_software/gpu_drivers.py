# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which packages of NVIDIA or AMD a machine's GPUs need, and whether the machine must be rebooted first. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.gpus import Accelerators, Gpu, driver_mismatch
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.packages import is_of

NVIDIA_CONFLICTS = (
    {
        "file": "/usr/bin/nvidia-uninstall",
        "says": "{seen}: the driver was installed by NVIDIA's .run file, so packages would conflict with it: "
        "run nvidia-uninstall --silent, then run this again",
    },
    {
        "package": "nvidia-driver*",
        "says": "{seen} is installed from another source: remove it ({remove} '*nvidia*'), "
        "or set cuda_branch to its branch",
    },
)
AMD_CONFLICTS = (
    {
        "package": "amdgpu-install",
        "says": "{seen} is installed, whose repositories would be mixed with these: "
        "remove it ({remove} amdgpu-install), and run this again",
    },
)


# GPUs of boards whose NVSwitches (NVLink 5) nvlsm controls, through four InfiniBand controllers of theirs: HGX B200 and
# HGX B300 (pci.ids; NVIDIA, Fabric Manager User Guide). The NVSwitches of GB200 and GB300 are in machines of their own.
NVLINK_5 = ("10de:2901", "10de:3182")
GPUS_OF_A_BOARD, BRIDGES_OF_A_BOARD = 8, 4


@dataclass(frozen=True)
class DriverPlan:
    """The packages of a machine. Names of packages and services; `refusal` and `reboot` are empty if there is none."""

    wanted: bool
    gpus: int
    refusal: str = ""
    reboot: str = ""  # why the machine has to be rebooted before anything is installed
    driver: str = ""  # the package whose version counts
    first: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    same_version: dict[str, str] = field(default_factory=dict)
    hold: list[str] = field(default_factory=list)
    repositories: list[dict[str, object]] = field(default_factory=list)
    conflicts: list[dict[str, object]] = field(default_factory=list)
    dnf_commands: dict[str, list[list[str]]] = field(default_factory=dict)
    services: list[str] = field(default_factory=list)
    kernel_modules: dict[str, list[str]] = field(default_factory=dict)  # by the service that needs them
    imex: bool = False  # the GPUs share NVLink with those of other machines
    prefix: str = ""  # of ROCm


def major(version: str) -> int:
    """Return the number that a version begins with."""
    return int(re.match(r"\d{0,9}", version)[0] or 0)  # type: ignore[index] # it always matches


class CudaOptions(TypedDict):
    """Options of role cuda, without `cuda_`. Versions may be numbers."""

    branch: object
    toolkit: object
    driver: object
    dcgm: bool
    epel: bool
    repository: Mapping[str, object]  # of versions.yml
    epel_repository: Mapping[str, object]


class RocmOptions(TypedDict):
    """Options of role rocm, without `rocm_`."""

    version: object
    driver: object
    driver_version: object
    targets: list[str]
    repository: Mapping[str, object]
    driver_repository: Mapping[str, object]


def of_vendor(facts: Accelerators, vendor: str) -> list[Gpu]:
    """Return the GPUs of a vendor."""
    return [gpu for gpu in facts["gpus"] if gpu["vendor"] == vendor]


def text(value: object) -> str:
    """Return a version or a name as text. YAML has 13.0 for a number, and nothing for none."""
    return "" if value is None else str(value)


# --- NVIDIA ---------------------------------------------------------------------------------------------------------


def has_nvlink_5(facts: Accelerators) -> bool:
    """Whether a machine has a whole board with NVLink 5. One with a part of it, as of a cloud, has no NVSwitches."""
    count = sum(gpu["id"] in NVLINK_5 for gpu in facts["gpus"])
    return count >= GPUS_OF_A_BOARD and facts.get("infiniband", 0) >= BRIDGES_OF_A_BOARD


def plan_cuda(facts: Accelerators, options: CudaOptions) -> DriverPlan:
    """Return NVIDIA's packages for a machine. `options` are those of role cuda, without `cuda_`."""
    gpus = of_vendor(facts, "nvidia")
    older = list(dict.fromkeys(gpu["id"] for gpu in gpus if not gpu["open_modules"]))
    branch, toolkit, asked = (text(options[name]) for name in ("branch", "toolkit", "driver"))
    kind = ("proprietary" if older else "open") if asked == "auto" else asked
    driver = {"open": "nvidia-open", "proprietary": "cuda-drivers"}.get(kind, "")
    wanted = asked != "auto" or bool(gpus)
    drivers = [driver, "nvidia-persistenced"] if driver else []
    toolkits = [f"cuda-toolkit-{toolkit.replace('.', '-')}"] if toolkit else []
    dcgm = [f"datacenter-gpu-manager-4-cuda{major(toolkit or '13')}"] if options["dcgm"] else []
    blackwell = has_nvlink_5(facts)
    imex = bool(driver and facts.get("nvlink_domain"))
    # It drives the switches between GPUs, and works with the driver of its own version only.
    managers = ["nvidia-fabricmanager"] * bool(facts["nvswitches"] or blackwell) + ["nvidia-imex"] * imex
    same_version = dict.fromkeys(managers, driver) if driver else {}
    subnet_manager = ["nvlsm"] if driver and blackwell else []
    stream = f"nvidia-driver:{branch}-{'open' if kind == 'open' else 'dkms'}"
    return DriverPlan(
        wanted=wanted,
        gpus=len(gpus),
        refusal=cuda_refusal(asked, branch if driver and wanted else "", toolkit, older),
        reboot=driver_mismatch(facts),
        driver=driver,
        first=[f"nvidia-driver-pinning-{branch}"] if driver else [],
        packages=[*drivers, *toolkits, *dcgm, *subnet_manager],
        same_version=same_version,
        # Not the package that chooses the branch: that of another branch has to be able to take its place.
        hold=[*drivers, *toolkits, *same_version],
        repositories=[
            dict(options["repository"]),
            *([dict(options["epel_repository"])] * bool(driver and options["epel"])),
        ],
        conflicts=[{**conflict, "branch": branch} for conflict in NVIDIA_CONFLICTS] if driver else [],
        dnf_commands={"rhel9": [["module", "enable", stream]], "rhel10": [["versionlock", f"*nvidia*{branch}*"]]},
        services=[
            *drivers[1:],
            *(name for name in same_version if name != "nvidia-imex"),  # it starts when it knows its nodes
            *(["nvidia-dcgm"] if options["dcgm"] else []),
        ],
        kernel_modules={"nvidia-fabricmanager": ["ib_umad"]} if subnet_manager else {},
        imex=imex,
    )


def cuda_refusal(asked: str, branch: str, toolkit: str, older: Sequence[str]) -> str:
    """Return why these GPUs, or NVIDIA's packages, do not allow what was asked for."""
    ids = ", ".join(older)
    if older and asked == "open":
        return (
            f"cuda_driver: got open; the open kernel modules do not drive {ids}, which is older than Turing: "
            "set cuda_driver=proprietary"
        )
    if older and toolkit and major(toolkit) >= 13:
        return (
            f"cuda_toolkit: got {toolkit}; CUDA 13 does not support {ids}, which is older than Turing: "
            "set cuda_toolkit=12.6"
        )
    if branch and major(branch) < 580:
        return (
            f"cuda_branch: got {branch}; give 580 or newer: of older branches NVIDIA's packages have other names "
            "(nvidia-fabricmanager-570)"
        )
    return ""


def would_come(driver: str, versions: Mapping[str, str], branch: object) -> bool:
    """Whether the driver is missing, or of another branch than this one; never if that is None."""
    there = versions.get(driver, "")
    return branch is not None and not (there and is_of(text(branch), there))


def cuda_reboot(facts: Accelerators, driver: str, versions: Mapping[str, str], branch: object = None) -> str:
    """Return why the machine has to be rebooted for the packages that are installed now. Empty if it has not.

    `branch`: in check mode, what would be installed; None for what is there.
    """
    loaded = facts["modules"].get("nvidia", "")
    if of_vendor(facts, "nvidia") and driver and would_come(driver, versions, branch):
        return f"module nvidia {loaded or 'none'} is loaded, and {driver} would be installed"
    installed = re.sub(r"^\d+:|-[^-]*$", "", versions.get(driver, ""))  # without epoch and revision
    if not of_vendor(facts, "nvidia") or not driver or loaded == installed:
        return ""
    if "nouveau" in facts["modules"]:
        return f"nouveau is loaded, and conflicts with nvidia {installed}"
    return f"module nvidia {loaded or 'none'} is loaded, and {installed} is installed"


# --- AMD ------------------------------------------------------------------------------------------------------------


def plan_rocm(facts: Accelerators, options: RocmOptions) -> DriverPlan:
    """Return AMD's packages for a machine. `options` are those of role rocm, without `rocm_`."""
    gpus = of_vendor(facts, "amd")
    version = text(options["version"])
    is_classic = bool(version) and major(version) < 10  # one package for all GPUs
    unknown = [gpu["id"] for gpu in gpus if not gpu["target"]] if not options["targets"] else []
    targets = list(options["targets"]) or sorted({gpu["target"] for gpu in gpus if gpu["target"]})
    wanted = options["driver"] != "auto" or bool(gpus)
    drivers = [] if options["driver"] == "none" else ["amdgpu-dkms"]
    rocm = ["rocm"] if is_classic else [f"amdrocm{version}-{target}" for target in targets] if version else []
    by_target = wanted and bool(version) and not is_classic
    repositories = [{**options["driver_repository"], "version": text(options["driver_version"])}] if drivers else []
    repositories += [{**options["repository"], "version": version}] if rocm else []
    return DriverPlan(
        wanted=wanted,
        gpus=len(gpus),
        refusal=rocm_refusal(targets, list(dict.fromkeys(unknown))) if by_target else "",
        driver=drivers[0] if drivers else "",
        packages=[*drivers, *rocm],
        hold=[*drivers, *rocm],
        repositories=repositories,
        conflicts=[dict(conflict) for conflict in AMD_CONFLICTS],
        prefix=f"/opt/rocm{'-' if is_classic else '/core-'}{version}" if rocm else "",
    )


def rocm_refusal(targets: Sequence[str], unknown: Sequence[str]) -> str:
    """Return why it is not known for which GPUs ROCm is to be installed."""
    advice = """as in -e '{"rocm_targets": ["gfx942"]}'"""
    if unknown:
        return (
            f"rocm_targets: got none, and what compilers call {', '.join(unknown)} is not known here: name it, {advice}"
        )
    if not targets:
        return (
            "rocm_targets: got none, and there is no AMD GPU here: name the GPUs that ROCm is for, "
            f"{advice}, or set rocm_version to nothing"
        )
    return ""


def rocm_reboot(facts: Accelerators, driver: str, versions: Mapping[str, str], branch: object = None) -> str:
    """Return why the machine has to be rebooted for the packages that are installed now. Empty if it has not.

    The version of the module and that of its package are not alike: what counts is that AMD's own module is loaded,
    and not the kernel's, which has no version. `branch` as of cuda_reboot.
    """
    if not of_vendor(facts, "amd") or not driver or facts["modules"].get("amdgpu"):
        return ""
    loaded = "of the kernel" if "amdgpu" in facts["modules"] else "none"
    if would_come(driver, versions, branch):
        return f"module amdgpu {loaded} is loaded, and {driver} would be installed"
    return f"module amdgpu {loaded} is loaded, and {driver} {versions.get(driver, '')} is installed"


PLANS: Mapping[str, Callable[..., DriverPlan]] = {"cuda": plan_cuda, "rocm": plan_rocm}
REBOOTS = {"cuda": cuda_reboot, "rocm": rocm_reboot}
