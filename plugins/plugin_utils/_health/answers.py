# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What nodes answer about themselves: facts, GPUs, slots and logins, checked at the border. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import prerequisites
from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.gpus import Accelerators
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.survey import PORTS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import (
    BUILDS,
    MODULES,
    USABLE,
    VENDORS,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import MPIS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import (
    Check,
    flag,
    like,
    listed,
    mapped,
    one_of,
    optional,
    whole,
    words,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Seat
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.limits_file import LIMITED
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.answers import FABRIC, FIREWALL, NETWORKS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import (
    DEVICE,
    DIGEST,
    FINGERPRINT,
    SIZE,
    STARTUPS,
    WORD,
    each_once,
    empty_or,
    exact,
    ip,
    or_nothing,
    port_range,
    rooted,
    short,
    take,
    those,
)

from .facts_types import Facts

PLACE: Mapping[str, Check] = {
    "near": short(4096),
    "free": SIZE,
    "size": SIZE,
    "free_inodes": optional(SIZE),
    "writable": flag,
    "read_only": flag,
    "noexec": flag,
    "source": short(500),
    "kind": short(64),
}
LOOSE = exact({"path": short(4096), "why": one_of("owner", "everybody")})
GPU = exact(
    {
        "address": DEVICE,
        "vendor": one_of(*VENDORS),
        "id": like(re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}\Z"), "the id of a device"),
        "model": short(100),
        "target": WORD,
        "open_modules": flag,
        "numa_node": optional(whole(0, 65535)),
        "driver": WORD,
    }
)
ACCELERATOR_COUNTS = mapped(one_of(*USABLE), whole(0, 64), len(USABLE))
NVLINK_DOMAIN = like(re.compile(r"[0-9a-f-]{36}/\d{1,10}\Z"), "a cluster UUID and a clique of NVLink")
NVLINK = exact(
    {
        "address": DEVICE,
        **dict.fromkeys(("state", "status", "cluster", "clique"), short(80)),
        "flaws": listed(short(150), 16),
    }
)
LIBRARY = one_of("cuda", "rocm", "verbs", "ucx", "ucc")
ACCELERATORS = exact(
    {
        "gpus": listed(GPU, 64),
        "nvswitches": whole(0, 256),
        "modules": mapped(one_of(*MODULES), WORD),
        "secure_boot": optional(flag),
        "driver_library": WORD,
        "usable": ACCELERATOR_COUNTS,
        "libraries": mapped(LIBRARY, empty_or(rooted)),
        "versions": mapped(LIBRARY, WORD),
    },
    {"nvlink_domain": empty_or(NVLINK_DOMAIN), "infiniband": whole(0, 256)},
)
RELEASE = like(re.compile(r"[A-Za-z0-9_.+~-]{0,128}\Z"), "the release of a kernel")  # a command to type has it
GPU_HEALTH = exact(
    {
        "nvidia": listed(
            exact({"address": DEVICE, "vbios": short(64), "ecc_errors": optional(SIZE), "fabric": short(64)}), 64
        ),
        "xids": listed(exact({"address": DEVICE, "number": whole(0, 9999)}), 1000),
        "next_kernel": exact({"release": RELEASE, "modules": those(one_of(*MODULES), len(MODULES))}),
    },
    {"nvlink": listed(NVLINK, 64)},
)
SEAT = exact(
    {
        "home": rooted,
        "cores": whole(1, 1 << 16),
        "accelerators": ACCELERATOR_COUNTS,
        "fabric": optional(FABRIC),
    }
)
SYSTEM = exact(dict.fromkeys(("kernel", "arch", "os", "os_version", "os_name", "libc"), short()))
PYTHON = {"path": short(4096), "version": short(64), "venv": flag, "headers": flag, "standalone": WORD}
UNIT = empty_or(one_of(*prerequisites.TIME_UNITS))
PREREQUISITES = exact(
    {
        "manager": empty_or(one_of(*prerequisites.MANAGERS)),
        "missing": mapped(one_of(*prerequisites.PARTS), listed(WORD, 8), len(prerequisites.PARTS)),
        "time_service": exact({"runs": UNIT, "installed": UNIT}),
        "limits": mapped(one_of(*LIMITED), WORD, len(LIMITED)),
        "logins": or_nothing(STARTUPS),
    }
)
VERSIONS = (
    *("kernel", "python", "torch", "torch_backends", "nccl", "driver", "driver_library", "ucx"),
    *MPIS,
)
FACTS = exact(
    {
        "system": SYSTEM,
        "user": exact(
            {
                "name": short(256),
                "uid": whole(0, (1 << 32) - 1),
                "sudo": one_of("root", "yes", "no", "missing", "not tried"),
            }
        ),
        "python": exact(PYTHON),
        "host": exact(
            {
                "name": short(255),
                "addresses": optional(those(ip, 1000)),
                "machine_id": empty_or(DIGEST),
                "network": empty_or(DIGEST),
                "host_keys": listed(FINGERPRINT, 16),
            }
        ),
        "home": exact({"path": rooted, "loose": listed(LOOSE, 100), **PLACE}),
        "tmp": exact(PLACE),
        "shm": exact(PLACE),
        "limits": exact(dict.fromkeys(("memlock", "nofile", "nproc"), optional(SIZE))),
        "memory": exact({"total": SIZE, "available": SIZE, "swap": SIZE, "limit": optional(SIZE)}),
        "ports": exact(
            {"local_range": port_range, "listening": each_once(whole(PORTS.start, PORTS.stop - 1), len(PORTS))}
        ),
        "sshd": exact({"max_startups": or_nothing(STARTUPS), "from": short(300)}),
        "ssh": short(4096),
        "compiler": short(4096),
        "backends": flag,
        "firewall": listed(FIREWALL, 16),
        "rdma": those(DEVICE, 256),
        "prerequisites": PREREQUISITES,
        "accelerators": ACCELERATORS,
        "gpu_health": GPU_HEALTH,
        "wrappers": those(DIGEST, 100_000),
        "torch": optional(exact(dict.fromkeys(("version", *BUILDS), short()))),
        "versions": exact(dict.fromkeys(VERSIONS, short()), {"image": short()}),
        "networks": optional(NETWORKS),
        "seat": optional(SEAT),
    }
)
USUAL = exact(
    {
        "system": short(64),
        "machine": short(64),
        "env": mapped(short(300), words, 10_000),
        "python": exact(
            {
                "executable": short(4096),
                "version": exact(dict.fromkeys(("major", "minor", "micro"), whole(0, 1000))),
            }
        ),
    }
)


def facts_of(node: str, value: object) -> Facts:
    """Return the facts of a node (module node_facts)."""
    found: Facts = take(node, "facts", FACTS, value)
    return found


def usual_facts_of(node: str, value: object) -> dict[str, object]:
    """Return the part of Ansible's own facts that a node reports. No other name becomes a variable of the host."""
    return dict(take(node, "ansible_facts", USUAL, value))


def accelerators_of(node: str, value: object) -> Accelerators:
    """Return the GPUs of a node (module accelerator_facts)."""
    found: Accelerators = take(node, "accelerators", ACCELERATORS, value)
    return found


def seat_of(node: str, value: object) -> Seat:
    """Return the facts of a node that a host file needs."""
    found: Seat = take(node, "seat", SEAT, value)
    return found


def failures_of(node: str, value: object, nodes: Collection[str]) -> list[dict[str, str]]:
    """Return the failed logins that the head reports."""
    row = exact({"from": one_of(*nodes), "to": one_of(*nodes), "why": short(500)})
    return list(take(node, "logins", listed(row, 100_000), value or []))
