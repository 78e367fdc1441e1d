# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which GPUs a build of PyTorch has code for: sm_90 (CUDA's compute capability 9.0), gfx942 (AMD's target)."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Mapping, Sequence

from ..types.records import GpuTargets
from .gpu_vendors import VENDORS

TARGET = re.compile(r"(sm_|compute_|gfx)[0-9a-z-]{1,20}\Z")
MOST = 256  # of one list
ASK_SECONDS = 60  # a cold import from a network file system takes half of it
# Imports torch, which takes seconds: only where there is a GPU, and a torch for it.
ASK = """if True:
    import json, torch
    def target(of):
        return of.gcnArchName.partition(":")[0] if torch.version.hip else f"sm_{of.major}{of.minor}"
    count = torch.cuda.device_count()
    gpus = sorted({target(torch.cuda.get_device_properties(number)) for number in range(count)})
    print(json.dumps({"torch": torch.cuda.get_arch_list(), "gpus": gpus}))
"""
# AMD's code for a family, and the targets that run it (LLVM's user guide for AMDGPU, "Generic processors").
FAMILIES: Mapping[str, Sequence[str]] = {
    "gfx9-generic": ("gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"),
    "gfx9-4-generic": ("gfx940", "gfx941", "gfx942", "gfx950"),
    "gfx10-1-generic": ("gfx1010", "gfx1011", "gfx1012", "gfx1013"),
    "gfx10-3-generic": ("gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"),
    "gfx11-generic": ("gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"),
    "gfx12-generic": ("gfx1200", "gfx1201"),
}


def gpu_targets(python: str, build: Mapping[str, str] | None, accelerators: Mapping[str, int]) -> GpuTargets:
    """Return what an interpreter's torch has code for, and what the GPUs of this node need; nothing if unknown.

    `build`: of that torch, as torch_build() has it.
    """
    asked = any(build and build[row.build] for name, row in VENDORS.items() if row.code and accelerators.get(name))
    return ask(python) if asked else {"torch": [], "gpus": []}


def ask(python: str) -> GpuTargets:
    """Return what torch says; nothing where it does not say."""
    try:
        done = subprocess.run(
            [python, "-c", ASK], capture_output=True, text=True, timeout=ASK_SECONDS, check=False, cwd=os.sep
        )
        found = json.loads(done.stdout)
        return {"torch": targets_in(found["torch"]), "gpus": targets_in(found["gpus"])}
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        return {"torch": [], "gpus": []}


def targets_in(names: Sequence[object]) -> list[str]:
    """Return those of the names that are targets, without the features that AMD's may end with (gfx90a:xnack-)."""
    words = (str(name).partition(":")[0] for name in names)
    return [word for word in words if TARGET.match(word)][:MOST]


def without_code(targets: GpuTargets) -> list[str]:
    """Return the targets of a node's GPUs that its torch has no code for; none where either is unknown."""
    built = targets["torch"]
    return [gpu for gpu in targets["gpus"] if built and not any(runs(gpu, code) for code in built)]


def runs(gpu: str, code: str) -> bool:
    """Whether a GPU runs code for a target.

    CUDA's rules (C++ Programming Guide, "Compute Capabilities" and "Just-in-Time Compilation"): compiled code runs on
    its major version from its minor one on; of a family (100f) too; of one architecture (90a) only there; compute_ is
    compiled at the start for that capability and all newer ones.
    """
    if gpu.startswith("gfx") or code.startswith("gfx"):
        return gpu == code or gpu in FAMILIES.get(code, ())
    kind, _, name = code.partition("_")
    needs, has, suffix = capability(name), capability(gpu.partition("_")[2]), name.lstrip("0123456789")
    if suffix == "a":
        return has == needs
    return has >= needs and (has[0] == needs[0] or (kind == "compute" and not suffix))


def capability(name: str) -> tuple[int, int]:
    """Return major and minor version of 90, 103 or 90a: the last digit is the minor one."""
    digits = re.match(r"\d+", name)
    number = int(digits.group()) if digits else 0
    return number // 10, number % 10
