# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The SSH mesh: which nodes log in to which, with which names and certificates. Pure: no network, no files."""

from __future__ import annotations

import hashlib
import ipaddress
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.keys import (
    Certificate,
    KeyFailed,
    read_certificate,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.shared import startups
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import ADDRESS, HOST_NAME

from .answers import CLUSTER_NAME, NodeAnswer, checked, shown

OWN_PORT = 2222
DAY = 86400
BACKDATED = 3600  # seconds by which certificates start early, for nodes whose clock is behind
UNMADE = "ssh-ed25519 (made-by-the-run)"  # placeholder for a key in check mode, which creates none


@dataclass(frozen=True)
class Member:
    """A node of the mesh: how others reach it, and its own answer."""

    name: str
    address: str
    port: int
    user: str
    directory: str  # <torchfleet_home>/ssh
    sshd: str  # "system" or "own"
    become: bool
    client: bool
    key: str
    host_keys: tuple[str, ...]
    addresses: tuple[str, ...]
    staged: bool = False  # we created its host key, and it is not in use yet
    primary: str = ""
    authorized_keys: str = ""  # the file that the system's sshd reads; "" if none
    loose: str = ""
    service: str = ""
    sshd_path: str = ""
    version: tuple[int, ...] = (0, 0)
    limits: Mapping[str, str] | None = None
    root_files: tuple[str, ...] = ()
    tenant: str = ""  # another cluster whose files are in the same directory
    others: tuple[str, ...] = ()  # drop-ins of other clusters for the system's sshd
    clock: float = 0.0
    applied: str = ""  # the digest of the last work done there, if that is still in place

    @property
    def own(self) -> str:
        """The directory of the node's own sshd."""
        return f"{self.directory}/sshd-{self.name}"


def keeper(member: Member) -> str:
    """Return whose systemd keeps a node's own sshd, also after a reboot: "system", "user", or "" for none."""
    return "system" if member.become and member.service else "user" if member.service == "user" else ""


@dataclass(frozen=True)
class Mesh:
    """The requested mesh."""

    cluster: str
    members: tuple[Member, ...]
    trust: str = "certificates"
    any_to_any: bool = False
    extra_sources: tuple[str, ...] = ()
    valid_days: int = 365
    user_ca: str = UNMADE
    host_ca: str = UNMADE
    revoked: tuple[str, ...] = ()  # host keys of nodes that were removed or replaced

    @property
    def certificates(self) -> bool:
        return self.trust == "certificates"

    @property
    def clients(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.client)

    def certifies(self, member: Member) -> bool:
        """Whether the node's sshd shows a host certificate, which needs a change of its configuration."""
        return self.certificates and (member.sshd == "own" or member.become)


class Request(TypedDict):
    """The arguments of ssh_mesh_plan, which documents them. Its members are apart: member_from() takes each."""

    cluster: str
    directory: str
    former: str
    inventory: str
    shut_out: list[str]
    trust: str
    any_to_any: bool
    extra_sources: list[str]
    valid_days: int
    rotate: bool
    accept_changed: list[str]
    state: str


def parse_cluster(name: str, value: object) -> str:
    """Return the name of a cluster. It is part of the names of files, on nodes and on the controller."""
    if not CLUSTER_NAME.match(str(value)):
        raise InputError(name, value, "use letters, digits, '.', '-' and '_', at most 64")
    return str(value)


def check_request(given: Request, names: Sequence[str]) -> Request:
    """Return the arguments of ssh_mesh_plan. Raise InputError for the first invalid one."""
    parse_cluster("ssh_mesh_cluster", given["cluster"])
    if given["valid_days"] < 1:
        raise InputError("ssh_mesh_valid_days", given["valid_days"], "give a number of days, 1 or more")
    for source in given["extra_sources"]:
        if not is_network(source):
            raise InputError("ssh_mesh_extra_sources", source, "give addresses or networks, such as 192.0.2.0/24")
    for name in given["accept_changed"]:
        if name not in names:
            raise InputError(
                "replace (ssh_mesh_accept_changed)", name, f"give nodes of the inventory: {', '.join(names)}"
            )
    return given


def mesh_of(request: Request, fresh: Sequence[Member], before: Mapping[str, Member], names: Sequence[str]) -> Mesh:
    """Return the requested mesh: the nodes of this play, and known nodes of the inventory."""
    there = {member.name: member for member in fresh}
    known = {name: before[name] for name in names if name in before and name not in there}
    order = [name for name in dict.fromkeys([*names, *there]) if name in there or name in known]
    members = tuple({**known, **there}[name] for name in order)
    extra = tuple(request["extra_sources"])
    return Mesh(request["cluster"], members, request["trust"], request["any_to_any"], extra, request["valid_days"])


def revoked_keys(revoked: Mapping[str, str], before: Mapping[str, Member], members: Sequence[Member]) -> dict[str, str]:
    """Return the host keys that no node may show any more, each with the name of the node that had it.

    `revoked`: those until now, `before`: the nodes as of the last setup, `members`: the nodes from now on. A node that
    is gone, or has another key for the same sshd, loses its old key. A key that comes back to a node is good again.
    """
    now = {member.name: member.sshd for member in members}
    gone = {
        key: old.name for old in before.values() if now.get(old.name, old.sshd) == old.sshd for key in old.host_keys
    }
    in_use = {key for member in members for key in member.host_keys}
    return {key: name for key, name in {**revoked, **gone}.items() if key not in in_use}


def shut_out_keys(known: Collection[str], revoked: Mapping[str, str], names: Sequence[str]) -> frozenset[str]:
    """Return the revoked host keys of machines that may be hostile.

    `known`: those until now, `revoked`: all keys with their nodes, `names`: nodes that are shut out from now on.
    """
    return frozenset(key for key, name in revoked.items() if key in known or name in names)


def refuse(lines: Sequence[str]) -> None:
    """Raise Refused with all reasons in one line, if there are any."""
    if lines:
        raise Refused("; ".join(lines))


class Refused(ValueError):
    """The state of the nodes rules out the requested mesh; one line says what to do."""


def member_from(found: Mapping[str, object], variables: Mapping[str, object]) -> Member:
    """Return a member from the answer of ssh_mesh_keys and the inventory variables. Raise InputError for bad ones.

    The action of ssh_mesh_keys sets name, address, port, sshd, become and client to the user's values.
    """
    own = found["sshd"] == "own"
    host = str(variables.get("ansible_host") or "")
    address = found["address"] or host or found["name"]
    if variables.get("ansible_connection") == "local" and not found["address"] and is_loopback(host or "localhost"):
        address = found.get("primary")
    port = found["port"] or (OWN_PORT if own else int(str(variables.get("ansible_port") or 22)))
    return known_member({**found, "address": address, "port": port})


def known_member(given: Mapping[str, object]) -> Member:
    """Return a member from its fields, none of which is trusted. Raise InputError for the first invalid one.

    `given` comes from a node, or from a file that was written when answers were not checked yet.
    """
    name, address, port = given["name"], given["address"], given["port"]
    if not isinstance(name, str) or not HOST_NAME.match(name):
        raise InputError("inventory", shown(name), "a host name consists of letters, digits, '.', '-' and '_'")
    if not isinstance(address, str) or not ADDRESS.match(address):
        raise InputError(f"address of {name}", shown(address), "give a host name or an address (ssh_mesh_address)")
    if type(port) is not int or not 0 < port < 65536:
        raise InputError(f"ssh_mesh_port of {name}", port, "give a port: 1 to 65535")
    own = given["sshd"] == "own"
    found = checked(name, given)
    become, client = bool(given["become"]), bool(given["client"])
    fields: NodeAnswer = {**found, "key": found["key"] if client else "", "staged": found["staged"] and own}
    sshd = "own" if own else "system"
    return Member(name=name, address=address, port=port, sshd=sshd, become=become, client=client, **fields)


def is_loopback(text: str) -> bool:
    return text == "localhost" or text.startswith("127.") or text == "::1"


# --- names and addresses --------------------------------------------------------------------------------------------


def aliases(members: Sequence[Member]) -> dict[str, tuple[str, ...]]:
    """Return all names and addresses that belong to one node only, by node.

    An address that several nodes have (a container bridge, a gateway) belongs to none of them. An address in the
    inventory belongs to that node, even if another one claims it.
    """
    given = Counter(member.address for member in members)
    believed = {
        member.name: [one for one in member.addresses if one not in given or one == member.address]
        for member in members
    }
    sets = {member.name: dict.fromkeys((member.name, member.address, *believed[member.name])) for member in members}
    count = Counter(alias for names in sets.values() for alias in names)
    return {
        node: tuple(alias for alias in names if alias == node or (count[alias] == 1 and alias not in sets))
        for node, names in sets.items()
    }


def false_claims(members: Sequence[Member]) -> list[str]:
    """Return a line for each node that claims another node's address in the inventory."""
    owners = {member.address: member.name for member in members}
    claims = {
        member.name: [one for one in member.addresses if one in owners and one != member.address] for member in members
    }
    return [
        f"{name} claims {', '.join(taken[:3])}, the address of {owners[taken[0]]} in the inventory: the claim is "
        f"ignored; check whether {name} is still the machine that you set up"
        for name, taken in claims.items()
        if taken
    ]


def reached_at(member: Member, by: Member) -> str:
    """Return the address at which one node reaches another. A node's own name may mean a loopback address to it."""
    if member.name == by.name and not is_address(member.address):
        return member.primary or member.address
    return member.address


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def sources(mesh: Mesh, clients: Sequence[Member]) -> list[str]:
    """Return the addresses from which these nodes' keys may be used."""
    own = aliases(mesh.members)
    found = [alias for client in clients for alias in own[client.name] if is_address(alias)]
    return list(dict.fromkeys([*found, *mesh.extra_sources]))


def identities(mesh: Mesh) -> dict[str, tuple[Member, ...]]:
    """Return the clients by key: nodes that share a home directory share its key."""
    keys = dict.fromkeys(client.key for client in mesh.clients)
    return {key: tuple(client for client in mesh.clients if client.key == key) for key in keys}


def principal(clients: Sequence[Member]) -> str:
    """Return the name in the certificate of a client key, which is of this key alone.

    Nodes let in the names of the present clients. So a certificate for a key that its node lost, or of a node that was
    removed, is worth nothing, however long it is valid.
    """
    return f"{clients[0].name}-{hashlib.sha256(clients[0].key.encode()).hexdigest()[:16]}"


# --- certificates ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """A requested certificate. `name` is that of its file on the controller."""

    name: str
    key: str
    is_host: bool
    principals: tuple[str, ...]
    sources: tuple[str, ...] = ()


def wanted_certificates(mesh: Mesh) -> tuple[Wanted, ...]:
    """Return the certificates of a mesh: one for each client key, one for each host that can show one."""
    if not mesh.certificates:
        return ()
    names = aliases(mesh.members)
    of_users = [
        Wanted(f"{clients[0].name}-user", key, False, (principal(clients),), tuple(sources(mesh, clients)))
        for key, clients in identities(mesh).items()
    ]
    of_hosts = [
        Wanted(f"{member.name}-host", member.host_keys[0], True, names[member.name])
        for member in mesh.members
        if mesh.certifies(member) and member.host_keys
    ]
    return (*of_users, *of_hosts)


def serves(wanted: Wanted, text: str, authority: str, now: float, valid_days: int) -> bool:
    """Whether an issued certificate is as requested, and has more than a third of its time left."""
    try:
        there: Certificate = read_certificate(text)
    except KeyFailed:
        return False
    return (
        (there.key, there.authority, there.is_host) == (wanted.key, authority, wanted.is_host)
        and there.principals == wanted.principals
        and there.options == options_of(wanted)
        and not there.extensions
        and now + valid_days * DAY / 3 <= there.valid_before <= now + valid_days * DAY
    )


def options_of(wanted: Wanted) -> dict[str, str]:
    return {"source-address": ",".join(wanted.sources)} if wanted.sources else {}


def signing_arguments(wanted: Wanted, cluster: str, authority: str, valid_days: int, serial: int) -> list[str]:
    """Return ssh-keygen's arguments to sign a public key. No extensions: no terminal, no forwarding."""
    argv = ["-q", "-s", authority, "-I", f"{cluster}/{wanted.name}", "-n", ",".join(wanted.principals)]
    argv += ["-z", str(serial), "-V", f"-{BACKDATED}s:+{valid_days * DAY}s"]
    if wanted.is_host:
        return [*argv, "-h"]
    return [*argv, "-O", "clear", *(word for pair in options_of(wanted).items() for word in ("-O", "=".join(pair)))]


# --- how many at once ----------------------------------------------------------------------------------------------


def max_startups(count: int) -> str:
    """Return sshd's MaxStartups for a number of nodes: all can log in twice before a login is dropped."""
    return startups(least_startups(count))


def least_startups(count: int) -> int:
    """Return how many logins at once no sshd may drop, for a number of nodes."""
    return max(100, 2 * count)


def max_sessions(count: int) -> int:
    """Return sshd's MaxSessions, the sessions of one multiplexed connection."""
    return max(64, 2 * count)
