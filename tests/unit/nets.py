"""Networks of nodes for tests without any: values as the nodes tell them, and a sysfs tree to read them from."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.networks import (
    Address,
    Gid,
    Nic,
    NodeNet,
    Port,
)

FAULT = "no answer within 2 s"


def nic(name: str, *addresses: str, **changed: Any) -> Nic:
    """Return a NIC that is up; `ip/prefix` each, by default routed over itself."""
    route = changed.pop("route", name)
    found = []
    for number, text in enumerate(addresses):
        interface = ipaddress.ip_interface(text)
        found.append(Address(interface.ip, interface.network.prefixlen, route=route, first=number == 0))
    given = {
        "kind": "physical",
        "mtu": 1500,
        "speed_mbit": 10000,
        "up": True,
        "carrier": True,
        "operstate": "up",
        "port_of": "",
        **changed,
    }
    return Nic(name, addresses=tuple(found), **given)


LO = nic("lo", "127.0.0.1/8", "::1/128", kind="loopback", mtu=65536, speed_mbit=None, operstate="unknown")


def net(name: str, *nics: Nic, **changed: Any) -> NodeNet:
    """Return a node with a loopback and NICs."""
    return NodeNet(name, (*nics, LO), **changed)


def pair(*nics_of_both: tuple[str, str], **changed: Any) -> tuple[NodeNet, NodeNet]:
    """Return n1 and n2 with NICs (name, first three numbers of the /24) on both: n1 is .1 there, n2 is .2."""
    rows = [[nic(name, f"{start}.{host}/24") for name, start in nics_of_both] for host in (1, 2)]
    return net("n1", *rows[0], **changed), net("n2", *rows[1], **changed)


def reached(
    nodes: Sequence[NodeNet],
    networks: Sequence[str],
    broken: Mapping[tuple[str, str, str], str] | None = None,
    **mtu: int,
) -> dict[str, list[dict[str, Any]]]:
    """Return what all nodes found of the others; `broken` has reasons by (from, to, network)."""
    rows: dict[str, list[dict[str, Any]]] = {node.name: [] for node in nodes}
    for one in nodes:
        for two in nodes:
            for network in networks if one is not two else ():
                reason = (broken or {}).get((one.name, two.name, network), "")
                row = {"node": two.name, "network": network, "reason": reason}
                rows[one.name].append({**row, "mtu": None if reason else mtu.get("mtu", 1500)})
    return rows


def roce(device: str, *gids: tuple[int, str, str], netdev: str = "eth0", **changed: Any) -> Port:
    """Return a RoCE port that is up, with GIDs (index, type, address)."""
    table = tuple(Gid(index, ipaddress.ip_address(address), kind, netdev) for index, kind, address in gids)
    given = {"port": 1, "active": True, "link_layer": "Ethernet", "rate_gbit": 100.0, **changed}
    return Port(device, netdevs=(netdev,), gids=table, **given)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


class Sysfs:
    """A tree like /sys/class/net and /sys/class/infiniband."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def nic(self, name: str, *, flags: int = 0x1003, **files: str) -> Path:
        """Add a NIC; keyword arguments replace its files."""
        path = self.root / "class/net" / name
        plain = {"type": "1", "mtu": "1500", "ifindex": "2", "iflink": "2", "operstate": "up", "carrier": "1"}
        for file, text in {**plain, "flags": hex(flags), "uevent": f"INTERFACE={name}", **files}.items():
            write(path / file, text)
        return path

    def port(self, device: str, port: int = 1, *, state: str = "4: ACTIVE", layer: str = "Ethernet") -> Path:
        """Add an RDMA port with an empty GID table of 4: the type of an unused entry cannot be read."""
        path = self.root / "class/infiniband" / device / "ports" / str(port)
        for file, text in {"state": state, "link_layer": layer, "rate": "100 Gb/sec (4X EDR)"}.items():
            write(path / file, text)
        for index in range(4):
            write(path / "gids" / str(index), ":".join(["0000"] * 8))
        return path

    def gid(self, port: Path, index: int, address: str, kind: str, netdev: str = "eth0") -> None:
        """Fill an entry of a GID table; an IPv4 address is mapped."""
        ip = ipaddress.ip_address(address)
        mapped = ipaddress.IPv6Address(f"::ffff:{ip}") if ip.version == 4 else ip
        write(port / "gids" / str(index), mapped.exploded)
        write(port / "gid_attrs/types" / str(index), kind)
        write(port / "gid_attrs/ndevs" / str(index), netdev)

    def pci(self, path: str, driver: str = "", **files: str) -> Path:
        """Add a PCI device by the way to it from the host bridge: pci0000:15/0000:15:01.0/0000:16:00.0."""
        place = self.root / "devices" / path
        for file, text in {"class": "0x020000", "vendor": "0x15b3", **files}.items():
            write(place / file, text)
        if driver:
            bound = self.root / "bus/pci/drivers" / driver
            bound.mkdir(parents=True, exist_ok=True)
            (place / "driver").symlink_to(bound)
        known = self.root / "bus/pci/devices" / place.name
        known.parent.mkdir(parents=True, exist_ok=True)
        known.symlink_to(place)
        return place

    def on_pci(self, device: str, place: Path) -> None:
        """Say where an RDMA device is."""
        (self.root / "class/infiniband" / device / "device").symlink_to(place)
