# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All facts of this node, read in one go and without a change: for preflight and for the drift table of verify."""

from __future__ import annotations

import os
import sys
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.nics import survey
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.home import home_path
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.containers.containers import image_of_node
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.survey import seat, torch_build
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launcher_programs import (
    on_search_path,
)

from . import gpus
from .base_python import python_facts
from .firewall import firewall
from .gpu_health import gpu_health
from .limits import limits, memory
from .machine import host_facts, system
from .ports import listening, local_port_range
from .prerequisites import prerequisites
from .reading import names_in
from .sshd import sshd_max_startups
from .storage import loose, place
from .user import sudo_state, user_name
from .versions import versions, wrappers

IMAGE_SECONDS = 15.0  # for each question to an engine: three of them are less than a look at a node may take
LINUX = sys.platform.startswith("linux")


class Request(TypedDict):
    """What a node is asked. Empty texts: the default."""

    home: str
    python: str  # of the ranks
    base_python: str  # makes their environment
    mpirun: str
    sudo: bool  # whether sudo may be tried
    container_image: str  # that ranks run in; empty: none
    engines: list[str]  # that may start it, the first choice first


def image(engines: list[str], name: str) -> str:
    """Return what tells an image from all others, shortened; empty if there is none."""
    kind, _colon, digits = image_of_node(engines, name, IMAGE_SECONDS)[1].rpartition(":") if name else ("", "", "")
    return f"{kind} {digits[:16]}".strip()


def node_facts(request: Request) -> dict[str, object]:
    """Return the facts of this node; sizes are bytes."""
    home = home_path(request["home"])
    python = os.path.expanduser(request["python"] or os.path.join(home, "pytorch", "bin", "python"))
    sudo, torch = sudo_state(request["sudo"]), torch_build(python)
    return {
        "system": system(),
        "user": {"name": user_name(), "uid": os.getuid(), "sudo": sudo},
        "python": python_facts(request["base_python"], home),
        "host": host_facts(),
        "home": {"path": home, "loose": loose(home), **place(home)},
        "tmp": place(os.environ.get("TMPDIR") or "/tmp"),
        "shm": place("/dev/shm"),
        "limits": limits(),
        "memory": memory(),
        "ports": {"local_range": local_port_range(), "listening": listening()},
        "sshd": sshd_max_startups(sudo),
        "ssh": on_search_path("ssh"),
        "compiler": on_search_path("g++"),
        "backends": os.path.exists(os.path.join(home, "backends", "torchfleet-receipt.json")),
        "firewall": firewall(sudo),
        "rdma": names_in("/sys/class/infiniband"),
        "prerequisites": prerequisites(),
        "accelerators": gpus.survey("/", home),
        "gpu_health": gpu_health(),
        "wrappers": wrappers(home),
        "torch": torch,
        "versions": {
            **versions(home, python, os.path.expanduser(request["mpirun"]), (torch or {}).get("version", "")),
            "image": image(request["engines"], request["container_image"]),
        },
        "networks": survey(home) if LINUX else None,
        "seat": seat(home) if LINUX else None,
    }
