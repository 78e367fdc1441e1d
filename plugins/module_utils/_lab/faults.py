# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults of a lab's nodes, made from outside, without the node's own programs."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from typing import Callable, Mapping

from . import host, spec
from .lifecycle import (
    BOOT_SECONDS,
    Container,
    host_keys,
    look,
)
from .podman import inside, podman, run
from .spec import Network


def disturb(given: spec.FaultOptions, check: bool) -> dict[str, object]:
    """Apply an action to one node, to all, or to one of their NICs. Return whether anything changed."""
    name = spec.parse_name(given["name"])
    host.refuse_without_root()
    seen = look(name)
    if not seen.nodes:
        make = f"ansible-playbook playbooks/lab.yml -e lab_name={name}"
        raise ValueError(f"lab_name: there is no lab {name!r}; create it: {make}")
    asked = spec.parse_disturbance(given, list(seen.nodes), seen.networks)
    containers = [seen.nodes[node] for node in asked.nodes]
    require_running(asked.state, containers)
    if asked.state in LINKS:
        links = [(container, network) for container in containers for network in asked.networks]
        changed = [LINKS[asked.state](container.pid, network, asked.rate, check) for container, network in links]
        where = " on " + ", ".join(network.nic for network in asked.networks)
    else:
        changed = [NODES[asked.state](container, check) for container in containers]
        where = ""
    what = f"lab {name}: {asked.state} {', '.join(asked.nodes)}{where}" + ("" if any(changed) else ": nothing to do")
    return {"changed": any(changed), "nodes": list(asked.nodes), "packages": [], "msg": what}


def require_running(state: str, containers: list[Container]) -> None:
    """Raise ValueError for a node that does not run. Its network is gone, with all faults in it."""
    for container in containers:
        if state in (*LINKS, "pause") and container.state not in ("running", "paused"):
            raise ValueError(f"lab_node: {container.name} is {container.state}; start it with lab_state=restart")


# --- links ---------------------------------------------------------------------------------------------------------


def is_cut(pid: int, network: Network) -> bool:
    rules = inside(pid, "--net", "nft", "list", "table", "inet", spec.TABLE, check=False)
    return f"chain input_{network.nic} {{" in rules


def cut(pid: int, network: Network, _rate: str, check: bool) -> bool:
    """Drop all packets of a NIC."""
    if is_cut(pid, network):
        return False
    if not check:
        inside(pid, "--net", "nft", "-f", "-", stdin=spec.cut_rules(network))
    return True


def heal(pid: int, network: Network, _rate: str, check: bool) -> bool:
    """Undo cut() and shape()."""
    was_cut = is_cut(pid, network)
    shaped = [(where, device) for where, device in ends(pid, network) if rate_of(where, device)]
    if not check:
        if was_cut:
            inside(pid, "--net", "nft", "-f", "-", stdin=spec.heal_rules(network))
        for where, device in shaped:
            tc(where, "qdisc", "del", "dev", device, "root")
    return bool(was_cut or shaped)


def shape(pid: int, network: Network, rate: str, check: bool) -> bool:
    """Limit what a NIC sends, and at the other end of its wire what it receives."""
    todo = [(where, device) for where, device in ends(pid, network) if rate_of(where, device) != spec.parse_rate(rate)]
    if not check:
        for where, device in todo:
            tc(where, *spec.shape_argv(device, rate))
    return bool(todo)


def ends(pid: int, network: Network) -> list[tuple[int, str]]:
    """Return both ends of a NIC's wire: process in whose network it is (0: this one's), name of the device there."""
    index = inside(pid, "--mount", "cat", f"/sys/class/net/{network.nic}/iflink").strip()
    for device in os.listdir("/sys/class/net"):
        try:
            with open(f"/sys/class/net/{device}/ifindex") as file:
                if file.read().strip() == index:
                    return [(pid, network.nic), (0, device)]
        except OSError:  # the device was removed meanwhile
            pass
    raise ValueError(f"lab_nic: the other end of {network.nic} is not on this machine")


def tc(where: int, *argv: str) -> str:
    """Run tc in the network of a process, or in this one's."""
    return inside(where, "--net", "tc", *argv) if where else run("tc", *argv)


def rate_of(where: int, device: str) -> int:
    """Return the bit/s a device is limited to, 0 if it is not."""
    rows = json.loads(tc(where, "-json", "qdisc", "show", "dev", device) or "[]")
    return next((row["options"]["rate"] * 8 for row in rows if row.get("kind") == "tbf"), 0)


# --- nodes ---------------------------------------------------------------------------------------------------------


def pause(container: Container, check: bool) -> bool:
    """Stop every process of a node (freeze it)."""
    if container.state == "paused":
        return False
    if not check:
        podman("pause", container.name)
    return True


def resume(container: Container, check: bool) -> bool:
    """Continue them."""
    if container.state == "paused" and not check:
        podman("unpause", container.name)
    return container.state == "paused"


def kill(container: Container, check: bool) -> bool:
    """Kill every process of a node at once, like a power cut."""
    if container.state in ("running", "paused") and not check:
        resume(container, check)
        # Not `podman kill`: a node that is started right after it may get its old network back, rules and all.
        podman("stop", "--time", "0", container.name)
    return container.state in ("running", "paused")


def restart(container: Container, check: bool) -> bool:
    """Start a node from its files, and wait until logins work. Faults of its NICs are gone."""
    if not check:
        kill(container, check)
        podman("start", container.name)
        pid = int(podman("container", "inspect", "--format", "{{.State.Pid}}", container.name))
        host_keys(dataclasses.replace(container, pid=pid), time.monotonic() + BOOT_SECONDS)
    return True


LINKS: Mapping[str, Callable[[int, Network, str, bool], bool]] = {"cut": cut, "heal": heal, "shape": shape}
NODES: Mapping[str, Callable[[Container, bool], bool]] = {
    "pause": pause,
    "resume": resume,
    "kill": kill,
    "restart": restart,
}
