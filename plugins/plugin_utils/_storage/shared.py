# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What role storage does on a node: who serves, who may mount, the files of NFS and systemd. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.answers import published

# What exports(5), fstab(5) and systemd take as it is, without quoting.
PATH = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+\Z")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z")
SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "root", "run", "sbin", "sys", "tmp", "usr")
SYSTEM_ITSELF = ("/home", "/media", "/mnt", "/opt", "/srv", "/var")  # directories in them are fine
MOST_CONNECTIONS = 16  # nfs(5), nconnect
MARK = "# Written by role storage of torchfleet, which removes it."
# sync: what was acknowledged survives a crash of the server (exports(5)).
EXPORT_OPTIONS = "rw,sync,root_squash,no_subtree_check"
# hard: a program waits for a dead server, and never takes an error for the end of a file (nfs(5)). No proto=tcp, the
# default: a small Debian without /etc/protocols would refuse it.
MOUNT_OPTIONS = "vers=4.2,hard,timeo=600,retrans=2,nconnect={connections},noatime,nosuid,nodev"


class Wanted(NamedTuple):
    """What the role was asked for. The options of the role, which documents them."""

    server: str
    address: str
    directory: str
    path: str
    connections: int


def wanted_of(options: Mapping[str, object]) -> Wanted:
    """Return the options by name. ValueError for a number that is none."""
    texts = {name: str(options[name]) for name in ("server", "address", "directory", "path")}
    return Wanted(**texts, connections=int(str(options["connections"])))


def refusal_of(options: Mapping[str, object], nodes: Sequence[str]) -> str:
    """Return why the options cannot be used, in one line; empty if they can. Nothing is asked of a node for it."""
    try:
        wanted = wanted_of(options)
    except ValueError:
        return f"storage_connections: got {options['connections']!r}; give a number from 1 to {MOST_CONNECTIONS}"
    if not (wanted.server or wanted.address):
        return ""
    if not 1 <= wanted.connections <= MOST_CONNECTIONS:
        return f"storage_connections: got {wanted.connections}; give a number from 1 to {MOST_CONNECTIONS}"
    return (
        wrong_server(wanted, nodes)
        or wrong_path("storage_path", wanted.path, of_system=False)
        or wrong_path("storage_directory", wanted.directory, of_system=bool(wanted.address))
        or overlap(wanted)
    )


def wrong_server(wanted: Wanted, nodes: Sequence[str]) -> str:
    """Return why there is no such server."""
    if wanted.server and wanted.address:
        return "storage_server and storage_address are both set: set the first for a node, the other for another server"
    if wanted.server and wanted.server not in nodes:
        return (
            f"storage_server: got {wanted.server!r}, which is no node of the cluster; give one of {', '.join(nodes)}, "
            "or storage_address for a server outside of the cluster"
        )
    if wanted.address and not is_host(wanted.address):
        return f"storage_address: got {wanted.address!r}; give an IP address or the name of a host"
    return ""


def is_host(text: str) -> bool:
    """Whether a text is an IP address without a zone (%eth0), which may be any text for Python, or a name of a host."""
    try:
        return bool(HOST.match(text)) or ("%" not in text and bool(ipaddress.ip_address(text)))
    except ValueError:
        return False


def wrong_path(option: str, path: str, of_system: bool) -> str:
    """Return why a path is refused. With `of_system`, directories of a system are not: it is on another machine."""
    if not PATH.match(path):
        return f"{option}: got {path!r}; give an absolute path of letters, digits, '_', '.' and '-', such as /shared"
    if not of_system and (path.split("/")[1] in SYSTEM or path in SYSTEM_ITSELF):
        return f"{option}: got {path!r}, which belongs to the system; give a directory of its own, such as /shared"
    return ""


def overlap(wanted: Wanted) -> str:
    """Return why two directories on the server cannot be used together."""
    inner, outer = sorted((wanted.path + "/", wanted.directory + "/"), key=len, reverse=True)
    if wanted.server and inner.startswith(outer):
        return f"storage_directory {wanted.directory!r} and storage_path {wanted.path!r}: neither may lie in the other"
    return ""


# --- one node ---------------------------------------------------------------------------------------------------------


def plan(
    options: Mapping[str, object],
    name: str,
    users: Mapping[str, str],
    files: Mapping[str, Mapping[str, str]],
    leaving: Sequence[str] = (),
) -> dict[str, object]:
    """Return what is done on a node, or the `refusal`. One of server and address is set.

    Of each node of the cluster, `users`: the number of its user; `files`: what it has published. Both are empty for a
    node that was not asked. `leaving`: nodes that are being removed.
    """
    refusal = refusal_of(options, list(users))
    if refusal:
        return {"refusal": refusal, "serves": False}
    wanted = wanted_of(options)
    staying = [node for node in users if node not in leaving]
    fabrics = {node: published(files[node].get("fabric.json") or "{}") for node in staying if wanted.server}
    addresses = {node: str(fabric.get("address", "")) for node, fabric in fabrics.items()}
    refusal = refused(wanted, name, users, addresses)
    if refusal:
        return {"refusal": refusal, "serves": False}
    serves = name == wanted.server
    unit = escaped(wanted.path)
    return {
        "refusal": "",
        "serves": serves,
        "exports": exports(wanted, [address for node, address in addresses.items() if node != wanted.server]),
        "unit": unit,
        "mount": mount_unit(wanted, wanted.address or addresses[wanted.server], local=serves),
        "automount": automount_unit(wanted),
        "reader_of": next_to(name, staying),
    }


def refused(wanted: Wanted, name: str, users: Mapping[str, str], addresses: Mapping[str, str]) -> str:
    """Return why the nodes cannot use the storage. Nodes need no address and no common user for a server outside."""
    without = [node for node, address in addresses.items() if not address]
    if without:
        return (
            f"no network was chosen on {', '.join(without)}: run setup.yml on all nodes, without --limit; "
            f"or leave them out: -e away={','.join(without)}"
        )
    if not wanted.server:
        return ""
    if wanted.server not in addresses:
        return f"{wanted.server} has the data and is being removed: remove all nodes, or set another storage_server"
    if users[name] == "0":
        return "the user of the connection is root, who may write nothing over NFS (root_squash): set ansible_user"
    if users[name] != users[wanted.server]:
        return (
            f"its user has the number {users[name]}, and that on {wanted.server} {users[wanted.server]}; NFS knows "
            "users by their number: give the user the same one on all nodes (usermod --uid)"
        )
    return ""


def exports(wanted: Wanted, clients: Sequence[str]) -> str:
    """Return the file of exports(5): the nodes' own addresses, never a network."""
    lines = [f"{wanted.directory} {address}({EXPORT_OPTIONS})" for address in clients]
    return "\n".join([MARK, *lines, ""])


def mount_unit(wanted: Wanted, address: str, local: bool) -> str:
    """Return the unit that mounts it: over NFS, or on the server itself the directory in a second place.

    Over NFS to itself a machine that is short of memory may wait for itself.
    """
    host = f"[{address}]" if ":" in address else address
    what = wanted.directory if local else f"{host}:{wanted.directory}"
    options = "bind" if local else MOUNT_OPTIONS.format(connections=wanted.connections)
    lines = [MARK, "[Unit]", "Description=Shared storage of the cluster", "StartLimitIntervalSec=0", "", "[Mount]"]
    lines += [f"What={what}", f"Where={wanted.path}", f"Type={'none' if local else 'nfs'}", f"Options={options}"]
    return "\n".join([*lines, "TimeoutSec=90", ""])


def automount_unit(wanted: Wanted) -> str:
    """Return the unit that mounts it when it is first used: a machine starts without the server, and nothing is ever
    written below the mount point."""
    lines = [MARK, "[Unit]", "Description=Shared storage of the cluster, mounted on use", "", "[Automount]"]
    return "\n".join([*lines, f"Where={wanted.path}", "", "[Install]", "WantedBy=multi-user.target", ""])


def escaped(path: str) -> str:
    """Return the name of a path among systemd's units, as systemd-escape --path makes it (systemd.unit(5))."""
    return path.strip("/").replace("-", "\\x2d").replace("/", "-")


def next_to(name: str, nodes: Sequence[str]) -> str:
    """Return the node whose file a node reads: each is read by one, and all are a ring."""
    return nodes[(nodes.index(name) - 1) % len(nodes)] if name in nodes else name
