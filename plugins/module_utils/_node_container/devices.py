# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The devices and limits of a machine that its node container gets. Paths are below `root`, for tests."""

from __future__ import annotations

import glob
import os
import resource
import stat
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.host import limits

CDI = ("etc/cdi", "var/run/cdi")  # where CDI specifications lie (CDI's SPEC.md)
SYS_RESOURCE = 24  # CAP_SYS_RESOURCE (capability.h): who has it may raise limits


class Devices(NamedTuple):
    """Options of the engine for the devices of a machine."""

    words: list[str]
    gids: list[int]  # the groups that may open them


class NoDevice(Exception):
    """The machine has a device that no container gets; the message is one line."""


def devices_of(wanted: list[str], engine: str, node: str, root: str = "/") -> Devices:
    """Return the options for devices. `wanted`: paths and names of CDI; `auto` stands for what the machine has.

    Raise NoDevice for NVIDIA GPUs without a CDI specification, and for a path that is not there.
    """
    words: list[str] = []
    gids: set[int] = set()
    for each in wanted:
        if each == "auto":
            found = nvidia_words(engine, node, root) + dri_words(root) + rdma_words(root)
            words += found
            gids |= owners(root)
        elif each.startswith("/") and not os.path.exists(os.path.join(root, each[1:])):
            raise NoDevice(f"node_container_devices: there is no {each} on {node}; give what is there, or auto")
        else:
            words += ["--device", each]
            gids |= {owner for owner in [group_of(os.path.join(root, each[1:]))] if each.startswith("/") and owner}
    return Devices(words, sorted(gids))


def nvidia_words(engine: str, node: str, root: str) -> list[str]:
    """Return the options for NVIDIA's GPUs: by CDI, or of docker by its own toolkit."""
    if not os.path.exists(os.path.join(root, "dev/nvidiactl")):
        return []
    if any(says_nvidia(path) for place in CDI for path in glob.glob(os.path.join(root, place, "*"))):
        return ["--device", "nvidia.com/gpu=all"]
    if engine == "docker" and os.path.exists(os.path.join(root, "usr/bin/nvidia-container-runtime")):
        return ["--gpus", "all"]
    raise NoDevice(
        f"node_container_devices: {node} has NVIDIA GPUs and no CDI specification that gives them to containers; type: "
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml, or give -e '{\"node_container_devices\": []}'"
    )


def says_nvidia(path: str) -> bool:
    """Whether a CDI specification is one of NVIDIA's GPUs."""
    try:
        with open(path, errors="replace") as file:
            return "nvidia.com/gpu" in file.read(1 << 20)
    except OSError:
        return False


def dri_words(root: str) -> list[str]:
    """Return the options for the GPUs of AMD (kfd) and Intel, which have render nodes below /dev/dri."""
    kfd, dri = (os.path.exists(os.path.join(root, "dev", name)) for name in ("kfd", "dri"))
    words = ["--device", "/dev/kfd"] if kfd else []
    if dri:
        words += ["--device", "/dev/dri"]
    if os.path.exists(os.path.join(root, "dev/dri/by-path")):
        words += ["--volume", "/dev/dri/by-path:/dev/dri/by-path:ro"]  # by which Intel's runtime finds its GPUs
    return words


def rdma_words(root: str) -> list[str]:
    """Return the options for RDMA."""
    return ["--device", "/dev/infiniband"] if os.path.exists(os.path.join(root, "dev/infiniband")) else []


def owners(root: str) -> set[int]:
    """Return the groups, but root's, that own devices of GPUs and RDMA: those named render and video, by number."""
    places = ("dev/kfd", "dev/dri/card*", "dev/dri/renderD*", "dev/infiniband/*")
    paths = [path for place in places for path in glob.glob(os.path.join(root, place))]
    return {gid for gid in map(group_of, paths) if gid}


def group_of(path: str) -> int:
    """Return the group of a device that the group may open, else 0."""
    try:
        found = os.stat(path)
    except OSError:
        return 0
    return found.st_gid if found.st_mode & stat.S_IRGRP else 0


def limit_words() -> list[str]:
    """Return the options for limits: RDMA locks memory.

    A root that may not raise limits, as that of a container, may not even give the engine's own.
    """
    if may_raise_limits():
        return ["--ulimit", "memlock=-1:-1"]
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    return ["--ulimit", f"memlock={hard}:{hard}", *(limits() if os.geteuid() == 0 else [])]


def may_raise_limits(path: str = "/proc/self/status") -> bool:
    """Whether this process may raise limits above its own."""
    with open(path) as file:
        masks = [line.split()[1] for line in file if line.startswith("CapEff:")]
    return bool(masks) and bool(int(masks[0], 16) >> SYS_RESOURCE & 1)
