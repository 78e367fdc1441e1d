# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The networks of one node, only read: NICs and RDMA ports from sysfs, addresses and routes from the kernel."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from typing import Mapping, Sequence

from . import netlink, perftest
from .rdma import gpus, rdma_ports
from .sysfs import driver, number, read

IFF_UP, IFF_LOOPBACK, IFF_POINTOPOINT = 0x1, 0x8, 0x10  # netdevice(7)
# Types of links that are no LAN (linux/if_arp.h): ppp, none (tun, WireGuard), ipip, ip6tnl, sit, gre, ip6gre.
TUNNEL_TYPES = {512, 65534, 768, 769, 776, 778, 823}
FILES = ("fabric.json", "fabric.env")


def survey(home: str, sysfs_root: str = "/sys", hosts: str = "/etc/hosts") -> dict[str, object]:
    """Return the networks of this node, and its published files."""
    rows = named(netlink.addresses())
    name = socket.gethostname()
    return {
        "host_name": name,
        "host_name_addresses": addresses_in_hosts(read(hosts), name),
        "arrival": arrival(os.environ),
        "default_nic": default_nic(read("/proc/net/route")),
        "nics": nics(sysfs_root, rows),
        "rdma": rdma_ports(sysfs_root),
        "gpus": gpus(sysfs_root),
        "rdma_test": bool(perftest.tool()),
        "files": {file: read(os.path.join(home, file), strip=False) for file in FILES},
    }


def named(rows: Sequence[netlink.Address]) -> list[dict[str, object]]:
    """Return addresses with the name of their NIC, and the NIC over which the kernel sends to their subnet."""
    result = []
    for row in rows:
        try:
            nic = socket.if_indextoname(row["index"])
        except OSError:  # it has gone meanwhile
            continue
        neighbour = neighbour_of(row["address"], row["prefix"])
        result.append({**row, "nic": nic, "route": netlink.route_to(neighbour)[0] if neighbour else ""})
    return result


def neighbour_of(address: str, prefix: int) -> str:
    """Return another address of the same subnet; an empty text if it has none."""
    own = ipaddress.ip_interface(f"{address}/{prefix}")
    first = own.network.network_address
    others = [first + step for step in (1, 2) if first + step != own.ip and first + step in own.network]
    return str(others[0]) if others and own.network.num_addresses > 1 else ""


def nics(sysfs_root: str, addresses: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the NICs of /sys/class/net, sorted by name, with their addresses in the kernel's order."""
    base = os.path.join(sysfs_root, "class", "net")
    keys = ("address", "prefix", "peer", "stable", "route")
    found = []
    for name in sorted(os.listdir(base) if os.path.isdir(base) else []):
        path = os.path.join(base, name)
        if os.path.isdir(path):  # not bonding_masters, a file
            own = [{key: row[key] for key in keys} for row in addresses if row["nic"] == name]
            found.append({"name": name, **link(path), "addresses": own})
    return found


def link(path: str) -> dict[str, object]:
    """Return the facts about a NIC in sysfs."""
    flags = int(read(os.path.join(path, "flags")) or "0", 16)
    speed = number(read(os.path.join(path, "speed")))
    return {
        "kind": kind_of(path, flags),
        "driver": driver(os.path.join(path, "device")),
        "mtu": number(read(os.path.join(path, "mtu"))) or 0,
        "speed_mbit": speed if speed and speed > 0 else None,  # -1 or an error: the driver does not know
        "up": bool(flags & IFF_UP),
        "carrier": read(os.path.join(path, "carrier")) == "1",  # an error while it is down
        "operstate": read(os.path.join(path, "operstate")) or "unknown",
        "port_of": os.path.basename(os.path.realpath(os.path.join(path, "master")))
        if os.path.exists(os.path.join(path, "master"))
        else "",
    }


def kind_of(path: str, flags: int) -> str:
    """Return loopback, tunnel, the kernel's own word (bridge, bond, vlan, ...), physical, veth or virtual."""
    if flags & IFF_LOOPBACK:
        return "loopback"
    link_type = number(read(os.path.join(path, "type"))) or 0
    if flags & IFF_POINTOPOINT or link_type in TUNNEL_TYPES or os.path.exists(os.path.join(path, "tun_flags")):
        return "tunnel"
    said = re.search(r"^DEVTYPE=(\w+)$", read(os.path.join(path, "uevent")), re.MULTILINE)
    if said:
        return said.group(1)
    for name in ("bridge", "bonding"):
        if os.path.isdir(os.path.join(path, name)):
            return {"bonding": "bond"}.get(name, name)
    if os.path.exists(os.path.join(path, "device")):
        return "physical"
    return "veth" if read(os.path.join(path, "iflink")) != read(os.path.join(path, "ifindex")) else "virtual"


def addresses_in_hosts(text: str, name: str) -> list[str]:
    """Return the addresses that a hosts file gives a name. No DNS: it may take a minute to fail."""
    rows = [line.split("#")[0].split() for line in text.splitlines()]
    return [row[0] for row in rows if name in row[1:]]


def arrival(environ: Mapping[str, str]) -> str:
    """Return the address of this node that ssh came in by (sshd(8), SSH_CONNECTION); empty without ssh."""
    words = environ.get("SSH_CONNECTION", "").split()
    return words[2].split("%")[0] if len(words) == 4 else ""


def default_nic(table: str) -> str:
    """Return the NIC of the IPv4 default route with the lowest metric, from /proc/net/route; empty if there is none."""
    rows = [line.split() for line in table.splitlines()[1:]]
    routes = sorted((int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == row[7] == "00000000")
    return routes[0][1] if routes else ""
