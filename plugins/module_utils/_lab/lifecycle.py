# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Creation and removal of a lab: the labels of containers and networks are compared with the requested lab."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Callable, Iterable, Mapping, Sequence, TypeVar

from . import host, image, spec
from .directory import files_of, is_ours, make_key, public_key, remove_files, write
from .podman import ContainerRow, NetworkRow, all_containers, all_networks, inside, podman, run
from .spec import LABEL, NODE_LABEL, SHAPE_LABEL, Lab, Node

Item = TypeVar("Item")
Result = TypeVar("Result")
AT_ONCE = 8  # podman commands at a time
BOOT_SECONDS = 60.0  # and two more for every node: all boot at once
READ_KEYS = "while [ -e /run/nologin ]; do sleep 0.05; done; cat /etc/ssh/ssh_host_*_key.pub"


@dataclass(frozen=True)
class Container:
    """An existing node."""

    name: str
    shape: str
    state: str
    pid: int

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each NIC, as its shape tells."""
        return dict(json.loads(self.shape)["lab_subnets"])

    @property
    def port(self) -> int:
        """Where SSH answers."""
        return int(json.loads(self.shape)["lab_overrides"][0])


class Seen:
    """The state of podman on this machine, and the lab's part of it: `nodes` (by name) and `networks` (by NIC)."""

    def __init__(self, lab: str, containers: list[ContainerRow], networks: list[NetworkRow]) -> None:
        labels = [(row["Labels"] or {}, row) for row in containers]
        mine = [(of_it, row) for of_it, row in labels if of_it.get(LABEL) == lab]
        mine.sort(key=lambda pair: int(pair[0][NODE_LABEL][1:]))
        self.nodes = {
            of_it[NODE_LABEL]: Container(row["Names"][0], of_it[SHAPE_LABEL], row["State"], row["Pid"])
            for of_it, row in mine
        }
        subnets = {row["name"]: [subnet["subnet"] for subnet in row.get("subnets") or []] for row in networks}
        own = sorted(row["name"] for row in networks if (row.get("labels") or {}).get(LABEL) == lab)
        self.networks = tuple(
            spec.Network(name, f"eth{i}", ipaddress.IPv4Network(subnets[name][0])) for i, name in enumerate(own)
        )
        self.strangers = {row["Names"][0] for of_it, row in labels if of_it.get(LABEL) != lab} | (
            set(subnets) - set(own)
        )
        self.running = sum(1 for of_it, row in labels if LABEL in of_it and row["State"] == "running")
        self.subnets = [text for texts in subnets.values() for text in texts]


def look(lab: str) -> Seen:
    """Return the state of this machine."""
    return Seen(lab, all_containers(), all_networks())


def in_parallel(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Apply a function to all items, some at a time. The first error is raised after all have ended."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(function, items))


# --- present -------------------------------------------------------------------------------------------------------


def present(given: spec.Options, check: bool) -> dict[str, object]:
    """Start the requested lab, and write its inventory."""
    asked = spec.parse_lab(given)  # mistakes are refused before anything else
    spec.parse_subnets(given["subnets"], given["nics"])
    host.require_files(asked.mounts, given["ca_bundle"])
    host.refuse_without_root()
    packages = host.missing_packages()
    if packages:
        return without_tools(packages, check)
    seen = look(given["name"])
    lab = spec.parse_lab(given, choose_subnets(given, seen))
    images = {node.release: image.node_tag(node.release, given) for node in lab.nodes}
    refuse_others(lab, seen, images, given["directory"])
    todo = [node for node in lab.nodes if node.name not in seen.nodes or seen.nodes[node.name].state != "running"]
    raised = host.raise_limits(seen.running + len(todo), len(lab.networks), check)
    changed = bool(todo)
    if not check:
        start(lab, seen, todo, images, given)
        changed = settle(lab, given["directory"]) or changed
    message = tell(lab, given["directory"], raised)
    return {"changed": changed, "nodes": [node.name for node in lab.nodes], "packages": [], "msg": message}


def without_tools(packages: list[str], check: bool) -> dict[str, object]:
    """Return the missing packages in check mode. Raise ValueError for them otherwise."""
    line = f"apt install --no-install-recommends {' '.join(packages)}"
    message = f"not installed: {', '.join(packages)}; type: {line}, or add -e lab_install=true"
    if not check:
        raise ValueError(message)
    return {"changed": True, "nodes": [], "packages": packages, "msg": f"lab: {message}"}


def choose_subnets(given: spec.Options, seen: Seen) -> list[ipaddress.IPv4Network]:
    """Return the subnet of each NIC: those the lab has, those that were asked for, or free ones."""
    there = [network.subnet for network in seen.networks]
    wanted = spec.parse_subnets(given["subnets"], given["nics"])
    if wanted[: len(there)] not in ([], there):
        raise ValueError(f"lab_subnets: {how_to_remake(given['name'])}")
    routes = [row["dst"] for row in json.loads(run("ip", "-json", "-4", "route", "show", "table", "all"))]
    taken = [ipaddress.IPv4Network(text) for text in routes + seen.subnets if text != "default" and ":" not in text]
    for subnet in wanted[len(there) :]:
        if any(subnet.overlaps(other) for other in taken):
            raise ValueError(f"lab_subnets: {subnet} is in use on this machine; give another")
    subnets = wanted or there + spec.free_subnets(given["name"], max(0, given["nics"] - len(there)), taken)
    return subnets[: given["nics"]]


def how_to_remake(lab: str) -> str:
    """Return the message about a lab that differs from the requested one."""
    remove = f"ansible-playbook playbooks/lab.yml -e lab_name={lab} -e lab_state=absent"
    return f"lab {lab!r} exists with another value; give that value, or remove the lab first: {remove}"


def refuse_others(lab: Lab, seen: Seen, images: Mapping[str, str], directory: str) -> None:
    """Raise ValueError if something else has a name that the lab needs, or if the lab that exists is different."""
    if os.path.isdir(directory) and os.listdir(directory) and not is_ours(directory, spec.HEADER):
        raise ValueError(f"lab_name: {directory} exists and has no lab's inventory; give another lab_name")
    names = {lab.container(node) for node in lab.nodes} | {network.name for network in lab.networks}
    if names & seen.strangers:
        stranger = min(names & seen.strangers)
        raise ValueError(f"lab_name: {stranger} exists and is not part of lab {lab.name!r}; give another lab_name")
    wanted = {node.name: spec.shape(lab, node, images[node.release], public_key(directory)) for node in lab.nodes}
    for name, container in seen.nodes.items():
        variable = spec.difference(container.shape, wanted[name]) if name in wanted else "lab_nodes"
        if variable:
            raise ValueError(f"{variable}: {how_to_remake(lab.name)}")


def start(lab: Lab, seen: Seen, todo: list[Node], images: Mapping[str, str], given: spec.Options) -> None:
    """Create everything that does not exist yet."""
    for release in images:
        image.build(release, given)
    for network in lab.networks[len(seen.networks) :]:
        podman(*spec.network_argv(lab, network))
    around = host.surroundings(given["ca_bundle"], given["pip_config"]) if todo else []
    key = make_key(given["directory"], "torchfleet-lab")

    def bring_up(node: Node) -> None:
        container = seen.nodes.get(node.name)
        if container is None:
            podman(*spec.run_argv(lab, node, images[node.release], key, around))
        else:
            podman("unpause" if container.state == "paused" else "start", container.name)

    in_parallel(bring_up, todo)


def settle(lab: Lab, directory: str) -> bool:
    """Wait for all nodes, write inventory and host keys. Return whether a file changed."""
    seen = look(lab.name)
    deadline = time.monotonic() + BOOT_SECONDS + 2 * len(lab.nodes)
    keys = in_parallel(lambda node: host_keys(seen.nodes[node.name], deadline), lab.nodes)
    known = {node.name: lines for node, lines in zip(lab.nodes, keys)}
    files = {"known_hosts": spec.known_hosts(lab, known), "hosts.yml": spec.inventory(lab)}
    written = [write(os.path.join(directory, name), text) for name, text in files.items()]
    return any(written)


def host_keys(container: Container, deadline: float) -> list[str]:
    """Wait for a node to let users in. Return its public host keys, read from its files, not over the network."""
    wait_for_ssh(container, deadline)
    text = inside(container.pid, "--mount", "timeout", "30", "sh", "-c", READ_KEYS)
    return [" ".join(line.split()[:2]) for line in text.splitlines()]


def wait_for_ssh(container: Container, deadline: float) -> None:
    """Return as soon as an SSH server greets."""
    where = (container.addresses["eth0"], container.port)
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(where, timeout=1) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        time.sleep(0.05)
    raise TimeoutError(f"no SSH server on {where}; see: podman exec {container.name} systemctl status")


def tell(lab: Lab, directory: str, raised: Sequence[str]) -> str:
    """Return the outcome as a line for the user."""
    nodes = f"{len(lab.nodes)} node{'s' * (len(lab.nodes) > 1)}, {len(lab.networks)} NIC{'s' * (len(lab.networks) > 1)}"
    reach = f"ansible -i {directory}/hosts.yml all -m ansible.builtin.ping"
    return f"lab {lab.name}: {nodes}; reach them with: {'; '.join([reach, *raised])}"


# --- absent --------------------------------------------------------------------------------------------------------


def absent(given: spec.Options, check: bool) -> dict[str, object]:
    """Remove what carries the lab's label, and the files that were written for it."""
    name = spec.parse_name(given["name"])
    host.refuse_without_root()
    seen = look(name)
    directory = given["directory"]
    files = files_of(directory, spec.HEADER)
    changed = bool(seen.nodes or seen.networks or files)
    if not check:
        remove(seen, files, directory)
    gone = f"removed {', '.join(seen.nodes) or 'its remains'}" if changed else "it does not exist"
    return {"changed": changed, "nodes": list(seen.nodes), "packages": [], "msg": f"lab {name}: {gone}"}


def remove(seen: Seen, files: list[str], directory: str) -> None:
    """Remove containers, then their networks, then the files."""
    if seen.nodes:
        podman("rm", "--force", "--time", "0", *(container.name for container in seen.nodes.values()))
    if seen.networks:
        podman("network", "rm", *(network.name for network in seen.networks))
    remove_files(files, directory)
