# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is compared between nodes (drift.py), as a text for each property, from the facts of a node. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.gpus import Accelerators
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Fabric
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.fabric_types import NetworkFacts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.publication import rails_in_use

from .facts_types import Facts


def versions_of(facts: Facts, wrapper: str) -> dict[str, str]:
    """Return the compared properties of a node, from its facts. `wrapper` is the digest of the controller's code."""
    system, laid, seat = facts["system"], facts["wrappers"], facts.get("seat")
    return {
        "arch": system["arch"],
        "os": f"{system['os']} {system['os_version']}".strip(),
        "libc": system["libc"],
        "base_python": facts["python"]["version"],
        "gpus": gpus_text(facts["accelerators"]),
        "nvlink_domain": facts["accelerators"].get("nvlink_domain", ""),
        "vbios": ", ".join(sorted({row["vbios"] for row in facts["gpu_health"]["nvidia"]})),
        "next_kernel": facts["gpu_health"]["next_kernel"]["release"],
        **of_networks(facts.get("networks"), seat["fabric"] if seat else None),
        "memory": memory_text(facts["memory"]["total"]),
        "wrapper": wrapper if wrapper in laid else (laid[-1] if laid else ""),
        **facts["versions"],
    }


def of_networks(networks: NetworkFacts | None, fabric: Fabric | None) -> dict[str, str]:
    """Return what is compared of RDMA devices and of the chosen NICs. Rails are one text: their names differ."""
    ports = [port for port in (networks.get("rdma", []) if networks else []) if port.get("use", "") != "virtual"]
    rails = {(rail["device"], rail["port"]) for rail in (rails_in_use(fabric) if fabric else ())}
    used = [port for port in ports if (port["device"], port["port"]) in rails]
    boards = {port["device"]: port.get("board", "") for port in ports}
    firmware = {f"{port.get('board', '')} {port['firmware']}".strip() for port in ports if port.get("firmware")}
    links = [f"{port['rate_gbit'] or 0:g} Gbit/s {port.get('width', '')}".strip() for port in used]
    return {
        "rdma_cards": counted([board for board in boards.values() if board]),
        "rdma_firmware": ", ".join(sorted(firmware)),
        "rdma_links": counted(links),
        "mtu": mtu_text(networks, fabric),
    }


def counted(values: Collection[str]) -> str:
    """Return "8 x MT_0000000838, 2 x MT_0000000540"."""
    return ", ".join(f"{count} x {value}" for value, count in sorted(Counter(values).items()))


def mtu_text(networks: NetworkFacts | None, fabric: Fabric | None) -> str:
    """Return the MTU of the chosen NIC and of those of the rails: "9000", or "1500, rails 4200 and 9000"."""
    mtus = {nic["name"]: nic["mtu"] for nic in (networks.get("nics", []) if networks else [])}
    own = mtus.get(fabric.get("nic", "")) if fabric else None
    rails = sorted(
        {mtus[name] for rail in (rails_in_use(fabric) if fabric else ()) if (name := rail["netdev"]) in mtus}
    )
    more = f", rails {' and '.join(map(str, rails))}" if rails and rails != [own] else ""
    return f"{own}{more}" if own else ""


def gpus_text(accelerators: Accelerators) -> str:
    """Return "8 x NVIDIA H100 80GB HBM3" of the GPUs that programs can open; empty where there is none."""
    counts = {vendor: count for vendor, count in accelerators["usable"].items() if count}
    models = {
        vendor: " and ".join(
            sorted({gpu["model"] or gpu["id"] for gpu in accelerators["gpus"] if gpu["vendor"] == vendor})
        )
        for vendor in counts
    }
    return ", ".join(f"{count} x {models[vendor] or vendor}" for vendor, count in counts.items())


def memory_text(total: int) -> str:
    """Return the memory of a machine as it was bought: the kernel and the firmware keep some percent of it.

    It is rounded up to a sixteenth of the next power of two: 503 GiB are 512 GiB.
    """
    gib = total / 2**30
    step = max(2.0 ** math.ceil(math.log2(gib)) / 16, 0.5) if gib > 0 else 1.0
    return f"{math.ceil(gib / step) * step:g} GiB"
