# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The NIC and RDMA ports of a pod, which only the pod itself can find.

The way to the first pod says which NIC carries the job. RDMA is used where a port is up; of its GIDs the one of RoCE v2
with an IPv4 address is taken, as NCCL's documentation asks (NCCL_IB_GID_INDEX).
"""

from __future__ import annotations

import ipaddress
import socket
import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Sequence, cast

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric import netlink
from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.rdma import rdma_ports

PLACE = "@nic@"  # in the environment of an order: the NIC that the pod finds
ROCE2 = "RoCE v2"
LOOK_SECONDS = 0.5


class Network(NamedTuple):
    """What a pod found. `rdma`: device:port of each port; `said`: each decision with its reason."""

    nic: str
    rdma: tuple[str, ...]
    environment: dict[str, str]
    said: tuple[str, ...]


class Gid(NamedTuple):
    """A used entry of the GID table of a port."""

    number: int
    address: ipaddress.IPv6Address
    kind: str


class Port(NamedTuple):
    """A port of an RDMA device. `use`: why it is no rail, as rdma.use_of()."""

    name: str
    active: bool
    use: str
    ethernet: bool
    gids: tuple[Gid, ...]


def network_of(other: str, port: int, unit: str = "pod", sysfs_root: str = "/sys") -> Network:
    """Return the network of this node. `other`: name or address of another one, empty if there is none. OSError.

    `port` of the rendezvous; `unit`: what people call a node.
    """
    if not other:
        return Network("lo", (), {}, (f"lo: all ranks are in this {unit}",))
    address = own_address(other, port)
    nic = nic_of(address)
    said = [f"{nic}: it has {address}, from which the way to {other} leads"]
    ports = [found for found in map(port_of, rdma_ports(sysfs_root)) if usable(found)]
    rails = tuple(found.name for found in ports)
    if not rails:
        asked = ": ask for one with pod_resources and pod_annotations" if unit == "pod" else ""
        said.append(f"no RDMA port is in this {unit}, or none is up{asked}")
        return Network(nic, rails, {"NCCL_IB_DISABLE": "1"}, tuple(said))
    said.append(f"RDMA by {', '.join(rails)}: ports that are up and no virtual bridge")
    environment = {"NCCL_IB_HCA": "=" + ",".join(rails), **gid_of(ports, said)}
    return Network(nic, rails, environment, tuple(said))


def own_address(first: str, port: int) -> str:
    """Return the address of this pod from which packets go to the first one; nothing is sent. OSError."""
    family, kind, protocol, _name, address = socket.getaddrinfo(first, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0]).partition("%")[0]


def nic_of(address: str) -> str:
    """Return the NIC that has an address. OSError if none does."""
    wanted = ipaddress.ip_address(address)
    for row in netlink.addresses():
        if ipaddress.ip_address(str(row["address"]).partition("%")[0]) == wanted:
            return socket.if_indextoname(row["index"])
    raise OSError(f"no NIC here has {address}")


def port_of(row: Mapping[str, object]) -> Port:
    """Return a port of rdma_ports()."""
    rows = cast("List[Dict[str, str]]", row["gids"])
    gids = tuple(Gid(int(each["index"]), ipaddress.IPv6Address(each["gid"]), each["type"]) for each in rows)
    ethernet = row["link_layer"] == "Ethernet"
    return Port(f"{row['device']}:{row['port']}", bool(row["active"]), str(row["use"]), ethernet, gids)


def usable(port: Port) -> bool:
    """Whether a port can carry the job."""
    return port.active and not port.use and (not port.ethernet or best_gid(port) is not None)


def best_gid(port: Port) -> Gid | None:
    """Return the GID of RoCE v2 with an IPv4 address, else the first of RoCE v2 that is not link-local."""
    rows = [gid for gid in port.gids if gid.kind == ROCE2 and not gid.address.is_link_local]
    return next(iter([*(gid for gid in rows if gid.address.ipv4_mapped), *rows]), None)


def gid_of(ports: Sequence[Port], said: list[str]) -> dict[str, str]:
    """Return the index of the GID for NCCL, which takes one for all ports; nothing where they differ or need none."""
    found = [gid for gid in (best_gid(port) for port in ports if port.ethernet) if gid]
    indexes = sorted({gid.number for gid in found})
    if len(indexes) != 1:
        numbers = ", ".join(map(str, indexes))
        said += [f"GIDs {numbers} differ between the ports: NCCL chooses for each (from 2.21 on)"] * bool(indexes)
        return {}
    address = found[0].address
    said.append(f"GID {indexes[0]} of RoCE v2: {address.ipv4_mapped or address}")
    return {"NCCL_IB_GID_INDEX": str(indexes[0])}


def with_nic(environment: Mapping[str, str], network: Network) -> dict[str, str]:
    """Return the environment of ranks with what this pod found. What the user gave stays."""
    filled = {name: value.replace(PLACE, network.nic) for name, value in environment.items()}
    return {**network.environment, **filled}


def wait_for_name(name: str, seconds: float, stopped: Callable[[], str]) -> None:
    """Wait until a name of another pod can be resolved: it is known when that pod has an address. OSError.

    `stopped`: the signal that asked this pod to end, or an empty text.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            socket.getaddrinfo(name, None)
            return
        except socket.gaierror as error:
            if time.monotonic() > until:
                raise OSError(f"{name} has no address after {seconds:.0f} s: {error.strerror}") from None
        if stopped():
            raise OSError(f"{stopped()} came before {name} had an address")
        time.sleep(LOOK_SECONDS)
