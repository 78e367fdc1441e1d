# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The specification of a lab: nodes in containers, their networks, and the resulting command lines and files.

Pure functions: nothing here starts a process or looks at the machine. Bad input raises ValueError with one line.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from dataclasses import dataclass
from typing import Iterable, Mapping, TypedDict

from .inventory import Member, inventory_text, known_hosts_text

LABEL = "torchfleet.lab"  # on every container and network of a lab; its value is the name of the lab
NODE_LABEL = "torchfleet.node"
SHAPE_LABEL = "torchfleet.shape"
RELEASES = ("bullseye", "bookworm", "trixie")
LINK_STATES = ("cut", "heal", "shape")
NAME = re.compile(r"[a-z][a-z0-9-]{0,29}")
USER = re.compile(r"[a-z][a-z0-9_-]{0,30}")
HOSTNAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+]")  # a - at the end would tell apt to remove it
MIRROR = re.compile(r"[a-z]+:/\S+")
RATE = re.compile(r"(\d{1,6})([kmg])bit")
BITS = {"k": 10**3, "m": 10**6, "g": 10**9}
POOL = ipaddress.IPv4Network("10.192.0.0/12")  # where labs find their /24s; a corner that few sites use
FIRST_ADDRESS = 10  # node k has address .10+k in every network
MOST_NODES = 200
MOST_NICS = 8
HEADER = "---\n# Written by playbooks/lab.yml, which also removes it: -e lab_state=absent\n"
TABLE = "torchfleet_lab"  # of nft rules, on the nodes


class FaultOptions(TypedDict):
    """The options of module lab for something that happens to nodes that run."""

    name: str
    state: str
    node: str
    nic: str
    rate: str


class Options(FaultOptions):
    """All options of module lab. Ansible has checked their types."""

    directory: str
    context: str
    nodes: int
    head_only: bool
    nics: int
    subnets: list[str]
    release: str
    image: str
    packages: list[str]
    mirror: str
    user: str
    slots: int
    shm_mb: int
    overrides: dict[str, object]  # by node
    mounts: list[str]
    ca_bundle: str
    pip_config: bool


@dataclass(frozen=True)
class Network:
    """One network of the lab, and the NIC that every node has in it."""

    name: str
    nic: str
    subnet: ipaddress.IPv4Network

    @property
    def gateway(self) -> str:
        return str(self.subnet[1])


@dataclass(frozen=True)
class Node:
    """One node."""

    name: str
    number: int
    release: str
    user: str
    port: int
    slots: int
    hostname: str


@dataclass(frozen=True)
class Lab:
    """A whole lab."""

    name: str
    nodes: tuple[Node, ...]
    networks: tuple[Network, ...]
    shm_mb: int
    mounts: tuple[tuple[str, str], ...] = ()  # read-only: path here, path on the nodes
    head_only: bool = False  # whether the first node, the head, runs no ranks

    def container(self, node: Node) -> str:
        return f"{self.name}-{node.name}"

    def addresses(self, node: Node) -> list[str]:
        """Return the node's address on each NIC."""
        return [str(network.subnet[FIRST_ADDRESS + node.number]) for network in self.networks]


def parse_lab(given: Options, subnets: Iterable[ipaddress.IPv4Network] = ()) -> Lab:
    """Return the lab that was asked for. `subnets` is one network for each NIC, or nothing if only input is checked."""
    name = parse_name(given["name"])
    within("lab_nics", given["nics"], 1, MOST_NICS)
    least = 2 if given["head_only"] else 1
    names = [f"n{number}" for number in range(1, within("lab_nodes", given["nodes"], least, MOST_NODES) + 1)]
    overrides = given["overrides"]
    strangers = set(overrides) - set(names)
    if strangers:
        raise ValueError(f"lab_overrides: there is no node {min(strangers)!r}; give {names[0]} to {names[-1]}")
    for package in given["packages"]:
        if not PACKAGE.fullmatch(package):
            raise ValueError(f"lab_packages: got {package!r}; give names of Debian packages")
    if given["mirror"] and not MIRROR.fullmatch(given["mirror"]):
        raise ValueError(f"lab_mirror: got {given['mirror']!r}; give an address such as http://deb.debian.org/debian")
    nodes = tuple(parse_node(given, node, number, overrides.get(node, {})) for number, node in enumerate(names, 1))
    networks = tuple(Network(f"{name}-{i}", f"eth{i}", subnet) for i, subnet in enumerate(subnets))
    shm_mb = within("lab_shm_mb", given["shm_mb"], 1, 1 << 20)
    mounts = tuple(parse_mount(text) for text in given["mounts"])
    return Lab(name, nodes, networks, shm_mb, mounts, given["head_only"])


def parse_name(name: str) -> str:
    """Return the name of a lab: part of container names and of a path."""
    if not NAME.fullmatch(name):
        raise ValueError(f"lab_name: got {name!r}; give at most 30 of a-z, 0-9 and -, beginning with a letter")
    return name


def within(what: str, value: object, least: int, most: int) -> int:
    """Return a whole number that lies in its range."""
    if not re.fullmatch(r"-?\d{1,9}", str(value)) or not least <= int(str(value)) <= most:
        raise ValueError(f"{what}: got {value!r}; give {least} to {most}")
    return int(str(value))


def parse_node(given: Options, name: str, number: int, override: object) -> Node:
    """Return a node: what all nodes have, changed by its entry in lab_overrides."""
    common = {"release": given["release"], "user": given["user"], "port": 22, "slots": given["slots"], "hostname": name}
    if not isinstance(override, Mapping) or set(override) - set(common):
        raise ValueError(f"lab_overrides: got {override!r} for {name}; give a mapping of any of {', '.join(common)}")
    values = {**common, **override}
    checks = {"user": (USER, "a user name"), "hostname": (HOSTNAME, "letters, digits, - and .")}
    checks["release"] = (re.compile("|".join(RELEASES)), ", ".join(RELEASES))
    for option, (pattern, wanted) in checks.items():
        if not pattern.fullmatch(str(values[option])):
            what = f"lab_overrides: {option} of {name}" if option in override else f"lab_{option}"
            raise ValueError(f"{what}: got {values[option]!r}; give {wanted}")
    port = within(f"lab_overrides: port of {name}", values["port"], 1, 65535)
    slots = within(f"lab_overrides: slots of {name}" if "slots" in override else "lab_slots", values["slots"], 1, 1024)
    return Node(name, number, str(values["release"]), str(values["user"]), port, slots, str(values["hostname"]))


def parse_mount(text: str) -> tuple[str, str]:
    """Return the path here and the path on the nodes of `here` or `here:there`."""
    here, _colon, there = text.partition(":")
    there = there or here
    if not (here.startswith("/") and there.startswith("/")) or ":" in there:
        raise ValueError(f"lab_mounts: got {text!r}; give /path/here or /path/here:/path/there")
    return here, there


@dataclass(frozen=True)
class Disturbance:
    """What is to happen to nodes, or to their NICs."""

    state: str
    nodes: tuple[str, ...]
    networks: tuple[Network, ...]
    rate: str = ""


def parse_disturbance(given: FaultOptions, nodes: list[str], networks: tuple[Network, ...]) -> Disturbance:
    """Return what is to be done to a lab that has these nodes and networks."""
    state, node, nic, rate = given["state"], given["node"], given["nic"], given["rate"]
    if node not in ("all", *nodes):
        raise ValueError(f"lab_node: got {node!r}; give {', '.join(nodes)} or all")
    if nic and state not in LINK_STATES:
        raise ValueError(f"lab_nic: {state} applies to whole nodes; leave lab_nic out")
    chosen = tuple(network for network in networks if nic in ("", network.nic))
    if not chosen:
        raise ValueError(f"lab_nic: got {nic!r}; give {' or '.join(network.nic for network in networks)}")
    if state == "shape":
        parse_rate(rate)
    elif rate:
        raise ValueError(f"lab_rate: leave it out with {state}")
    return Disturbance(state, tuple(nodes) if node == "all" else (node,), chosen, rate)


def parse_rate(text: str) -> int:
    """Return bit/s."""
    match = RATE.fullmatch(text)
    if not match or int(match[1]) == 0:
        raise ValueError(f"lab_rate: got {text!r}; give a whole number and kbit, mbit or gbit, such as 200mbit")
    return int(match[1]) * BITS[match[2]]


def parse_subnets(wanted: Iterable[str], nics: int) -> list[ipaddress.IPv4Network]:
    """Return the subnets that the user chose, one for each NIC."""
    subnets: list[ipaddress.IPv4Network] = []
    for text in wanted:
        try:
            subnet = ipaddress.IPv4Network(text)
        except ValueError as error:
            raise ValueError(f"lab_subnets: got {text!r} ({error}); give networks such as 10.200.1.0/24") from None
        if subnet.num_addresses < FIRST_ADDRESS + MOST_NODES:
            raise ValueError(f"lab_subnets: {subnet} is too small; give networks of /24 or larger")
        if any(subnet.overlaps(other) for other in subnets):
            raise ValueError(f"lab_subnets: {subnet} is given twice; give another network for each NIC")
        subnets.append(subnet)
    if subnets and len(subnets) != nics:
        raise ValueError(f"lab_subnets: got {len(subnets)} for {nics} NICs; give one for each, or none")
    return subnets


def free_subnets(name: str, count: int, taken: Iterable[ipaddress.IPv4Network]) -> list[ipaddress.IPv4Network]:
    """Return subnets that nothing on this machine uses. The search begins at a place that depends on the name."""
    used = list(taken)
    total = 1 << (24 - POOL.prefixlen)
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    found: list[ipaddress.IPv4Network] = []
    for step in range(total):
        if len(found) == count:
            return found
        subnet = ipaddress.IPv4Network((int(POOL.network_address) + (start + step) % total * 256, 24))
        if not any(subnet.overlaps(other) for other in used):
            found.append(subnet)
    raise ValueError(f"lab_subnets: no {count} free /24 in {POOL} on this machine; give some")


def network_argv(lab: Lab, network: Network) -> list[str]:
    """Return the words after `podman` that make a network. No DNS: it would answer with any of a node's addresses."""
    argv = ["network", "create", "--label", f"{LABEL}={lab.name}", "--subnet", str(network.subnet)]
    return [*argv, "--gateway", network.gateway, "--disable-dns", network.name]


def shape(lab: Lab, node: Node, image: str, key: str) -> str:
    """Return what a node is made from, by variable, as JSON. It is kept as a label and compared by difference()."""
    addresses = {network.nic: address for network, address in zip(lab.networks, lab.addresses(node))}
    parts: dict[str, object] = {"lab_nics": len(lab.networks), "lab_subnets": addresses, "lab_shm_mb": lab.shm_mb}
    parts.update({"lab_mounts": lab.mounts, "lab_user": node.user, "lab_overrides": [node.port, node.hostname]})
    parts.update({"lab_release, lab_image, lab_packages, lab_mirror or torchfleet itself": image, "lab_directory": key})
    return json.dumps(parts)


def difference(was: str, wanted: str) -> str:
    """Return the variable in which two shapes differ, or nothing."""
    old, new = json.loads(was), json.loads(wanted)
    return next((name for name in new if new[name] != old.get(name)), "")


def mac_of(address: str) -> str:
    """Return a NIC's hardware address. Another one after a restart would leave the node unreachable for seconds."""
    return "02:6c:" + ":".join(f"{int(byte):02x}" for byte in address.split("."))


def run_argv(lab: Lab, node: Node, image: str, key: str, surroundings: list[str]) -> list[str]:
    """Return the words after `podman` that start a node. `surroundings`: options that depend on this machine."""
    argv = ["run", "--detach", "--name", lab.container(node), "--hostname", node.hostname, "--systemd=always"]
    # NET_ADMIN and the writable /proc/sys let tests change routes, MTU and net.ipv4.* on a node; NET_RAW is for ping,
    # SYS_NICE for slurmd, which binds its users' ranks.
    # No /etc/hosts from podman: it would hold this machine's names, and the node's own in any order.
    argv += ["--cap-add=NET_ADMIN,NET_RAW,SYS_NICE", "--security-opt=unmask=ALL", "--pids-limit=-1", "--no-hosts"]
    argv += ["--shm-size", f"{lab.shm_mb}m"]
    labels = {LABEL: lab.name, NODE_LABEL: node.name, SHAPE_LABEL: shape(lab, node, image, key)}
    argv += [word for name, text in labels.items() for word in ("--label", f"{name}={text}")]
    for network, address in zip(lab.networks, lab.addresses(node)):
        argv += ["--network", f"{network.name}:interface_name={network.nic},ip={address},mac={mac_of(address)}"]
    for here, there in lab.mounts:
        argv += ["--volume", f"{here}:{there}:ro"]
    values = {"KEY": key, "USER": node.user, "PORT": node.port, "ADDRESS": lab.addresses(node)[0]}
    argv += [word for name, text in values.items() for word in ("--env", f"LAB_{name}={text}")]
    return [*argv, *surroundings, image]


def inventory(lab: Lab) -> str:
    """Return the inventory of a lab."""
    members = [member(lab, node) for node in lab.nodes]
    return inventory_text(HEADER, members[0], members[1:] if lab.head_only else members)


def member(lab: Lab, node: Node) -> Member:
    """Return how a node is reached, and its ranks."""
    return Member(node.name, tuple(lab.addresses(node)), node.port, node.user, {"slots": node.slots})


def known_hosts(lab: Lab, host_keys: Mapping[str, list[str]]) -> str:
    """Return OpenSSH's known_hosts. `host_keys`: type and base64 of every key, by node."""
    return known_hosts_text([(member(lab, node), host_keys[node.name]) for node in lab.nodes])


def cut_rules(network: Network) -> str:
    """Return nft's input that drops all a node sends and receives on a NIC but to and from this machine.

    A packet that is dropped, not rejected, is what a broken link looks like. This machine stays, so that Ansible gets
    in; a name server is mostly reached through it.
    """
    lines = []
    for hook, interface, address in (("input", "iifname", "saddr"), ("output", "oifname", "daddr")):
        lines += [f"chain {hook}_{network.nic} {{", f"type filter hook {hook} priority -300; policy accept;"]
        lines += [f'{interface} "{network.nic}" ip {address} != {network.gateway} drop']
        lines += [f'{interface} "{network.nic}" meta nfproto ipv6 drop', "}"]
    return "\n".join([f"table inet {TABLE} {{", *lines, "}"]) + "\n"


def heal_rules(network: Network) -> str:
    """Return nft's input that takes cut_rules() back."""
    return "".join(f"delete chain inet {TABLE} {hook}_{network.nic}\n" for hook in ("input", "output"))


def shape_argv(device: str, rate: str) -> list[str]:
    """Return the words after `tc` that limit what leaves a device. The bucket holds 4 ms or 128 kB (tc-tbf(8))."""
    burst = max(131072, parse_rate(rate) // 8 // 250)
    return ["qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", str(burst), "latency", "100ms"]
