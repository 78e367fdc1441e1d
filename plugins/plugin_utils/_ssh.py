# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The SSH mesh: who logs in to whom, by which names, with which certificates. Pure: no network, no files."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._sshkeys import (
    Certificate,
    KeyFailed,
    fingerprint,
    read_certificate,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cluster import ADDRESS, HOST_NAME
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError

CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
WORD = re.compile(r"[^\s\",%\\]+\Z")  # a user, as it stands in ssh's files
DIRECTORY = re.compile(r"/[^\n\r\"\\]*\Z")
OWN_PORT = 2222
DAY = 86400
BACKDATED = 3600  # seconds by which certificates start early, for nodes whose clock is behind
UNMADE = "ssh-ed25519 (made-by-the-run)"  # stands for a key in check mode, which makes none


@dataclass(frozen=True)
class Member:
    """A node of the mesh, as others reach it and as it found itself."""

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
    staged: bool = False  # its host key was made by us and is not in use yet
    primary: str = ""
    authorized_keys: str = ""  # where the system's sshd looks; "" if nowhere
    loose: str = ""
    service: str = ""
    sshd_path: str = ""
    version: tuple[int, ...] = (0, 0)
    limits: Mapping[str, str] | None = None
    root_files: tuple[str, ...] = ()
    clock: float = 0.0
    applied: str = ""  # the digest of the work that was done there last and still stands

    @property
    def own(self) -> str:
        """The directory of the node's own sshd."""
        return f"{self.directory}/sshd-{self.name}"


@dataclass(frozen=True)
class Mesh:
    """The mesh as it shall be."""

    cluster: str
    members: tuple[Member, ...]
    trust: str = "certificates"
    any_to_any: bool = False
    extra_sources: tuple[str, ...] = ()
    valid_days: int = 365
    user_ca: str = UNMADE
    host_ca: str = UNMADE

    @property
    def certificates(self) -> bool:
        return self.trust == "certificates"

    @property
    def clients(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.client)

    def certifies(self, member: Member) -> bool:
        """Whether the node's sshd shows a host certificate: only then can its configuration be changed."""
        return self.certificates and (member.sshd == "own" or member.become)


def check_request(given: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """Return the arguments of ssh_mesh_plan as they are. InputError for the first that is wrong."""
    if not CLUSTER_NAME.match(given["cluster"]):
        raise InputError("ssh_mesh_cluster", given["cluster"], "use letters, digits, '.', '-' and '_', at most 64")
    if given["valid_days"] < 1:
        raise InputError("ssh_mesh_valid_days", given["valid_days"], "give a number of days, 1 or more")
    for source in given["extra_sources"]:
        if not is_network(source):
            raise InputError("ssh_mesh_extra_sources", source, "give addresses or networks, such as 192.0.2.0/24")
    for name in given["accept_changed"]:
        if name not in names:
            raise InputError("ssh_mesh_accept_changed", name, f"give nodes of the inventory: {', '.join(names)}")
    return given


def mesh_of(
    request: Mapping[str, Any], fresh: Sequence[Member], before: Mapping[str, Member], names: Sequence[str]
) -> Mesh:
    """Return the mesh that is asked for: the nodes of this play, and those of the inventory that are known."""
    there = {member.name: member for member in fresh}
    known = {name: before[name] for name in names if name in before and name not in there}
    order = [name for name in dict.fromkeys([*names, *there]) if name in there or name in known]
    members = tuple({**known, **there}[name] for name in order)
    extra = tuple(request["extra_sources"])
    return Mesh(request["cluster"], members, request["trust"], request["any_to_any"], extra, request["valid_days"])


def refuse(lines: Sequence[str]) -> None:
    """Refused with all the lines in one, if there are any."""
    if lines:
        raise Refused("; ".join(lines))


class Refused(ValueError):
    """What was found on the nodes forbids the mesh that is asked for; one line says what to do."""


def member_from(found: Mapping[str, Any], variables: Mapping[str, Any]) -> Member:
    """Return a member from what ssh_mesh_keys found and the host's inventory variables. InputError for bad ones."""
    name, own = found["name"], found["sshd"] == "own"
    if not HOST_NAME.match(name):
        raise InputError("inventory", name, "a host name is made of letters, digits, '.', '-' and '_'")
    host = str(variables.get("ansible_host") or "")
    address = found["address"] or host or name
    if variables.get("ansible_connection") == "local" and not found["address"] and is_loopback(host or "localhost"):
        address = found["primary"]
    if not ADDRESS.match(address):
        raise InputError(f"address of {name}", address, "give a host name or an address (ssh_mesh_address)")
    port = found["port"] or (OWN_PORT if own else int(variables.get("ansible_port") or 22))
    if not 0 < port < 65536:
        raise InputError(f"ssh_mesh_port of {name}", port, "give a port: 1 to 65535")
    if not WORD.match(found["user"]):
        raise InputError(f"user of {name}", found["user"], "its name must be free of spaces, quotes, commas and '%'")
    if not DIRECTORY.match(found["directory"]):
        raise InputError(f"torchfleet_home of {name}", found["directory"], "it must be free of quotes and line ends")
    known = {field.name: found[field.name] for field in fields(Member) if field.name in found}
    return Member(**{**known, **tuples(found), "address": address, "port": port})


def tuples(found: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the lists of a survey, which JSON knows no tuples for."""
    return {name: tuple(found.get(name, ())) for name in ("host_keys", "addresses", "version", "root_files")}


def is_loopback(text: str) -> bool:
    return text == "localhost" or text.startswith("127.") or text == "::1"


# --- names and addresses --------------------------------------------------------------------------------------------


def aliases(members: Sequence[Member]) -> dict[str, tuple[str, ...]]:
    """Return by node all that means this node and no other: its name, its address, the addresses of its NICs.

    An address that several nodes have (a container bridge, a gateway in front of them) means none of them.
    """
    sets = {member.name: dict.fromkeys((member.name, member.address, *member.addresses)) for member in members}
    count = Counter(alias for names in sets.values() for alias in names)
    return {
        node: tuple(alias for alias in names if alias == node or (count[alias] == 1 and alias not in sets))
        for node, names in sets.items()
    }


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
    """Return the clients by their key: nodes that share a home directory share the key in it."""
    keys = dict.fromkeys(client.key for client in mesh.clients)
    return {key: tuple(client for client in mesh.clients if client.key == key) for key in keys}


# --- certificates ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """A certificate as it shall be. `name` names its file, on the controller."""

    name: str
    key: str
    is_host: bool
    principals: tuple[str, ...]
    sources: tuple[str, ...] = ()


def wanted_certificates(mesh: Mesh) -> tuple[Wanted, ...]:
    """Return the certificates of a mesh: one for each key that logs in, one for each host that can show one."""
    if not mesh.certificates:
        return ()
    users = tuple(dict.fromkeys(member.user for member in mesh.members))
    names = aliases(mesh.members)
    of_users = [
        Wanted(f"{clients[0].name}-user", key, False, users, tuple(sources(mesh, clients)))
        for key, clients in identities(mesh).items()
    ]
    of_hosts = [
        Wanted(f"{member.name}-host", member.host_keys[0], True, names[member.name])
        for member in mesh.members
        if mesh.certifies(member) and member.host_keys
    ]
    return (*of_users, *of_hosts)


def serves(wanted: Wanted, text: str, authority: str, now: float, valid_days: int) -> bool:
    """Whether a certificate that was issued before is what is wanted, and will be for another third of its time."""
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
    """Return ssh-keygen's arguments that sign wanted's public key. Without extensions: no terminal, no forwarding."""
    argv = ["-q", "-s", authority, "-I", f"{cluster}/{wanted.name}", "-n", ",".join(wanted.principals)]
    argv += ["-z", str(serial), "-V", f"-{BACKDATED}s:+{valid_days * DAY}s"]
    if wanted.is_host:
        return [*argv, "-h"]
    return [*argv, "-O", "clear", *(word for pair in options_of(wanted).items() for word in ("-O", "=".join(pair)))]


# --- what is refused ------------------------------------------------------------------------------------------------


def refusals(mesh: Mesh, before: Mapping[str, Member], accepted: Sequence[str], now: float) -> list[str]:
    """Return why this mesh must not be made, each in one line, most telling first.

    `before` are the members as they were when the mesh was last made, `now` the controller's clock.
    """
    twins = one_machine_twice(mesh.members)
    found = [cloned(key, owners) for key, owners in twins.items()]
    told = {owner.name for owners in twins.values() for owner in owners}
    for member in mesh.members:
        found += [] if member.name in told else changed_host_keys(member, before, accepted)
    found += [] if found else same_address(mesh.members)
    found += [line for member in mesh.members for line in cannot_take_part(mesh, member)]
    found += left_behind([member for member in mesh.members if member.sshd == "system" and runs_as_unit(member)])
    if mesh.certificates:
        found += [line for member in mesh.members for line in wrong_clock(member, now)]
    return found


def changed_host_keys(member: Member, before: Mapping[str, Member], accepted: Sequence[str]) -> list[str]:
    """Return a line if the node's host key is another than before, and not one that we have just made."""
    old = before.get(member.name)
    if old is None or old.sshd != member.sshd or member.name in accepted or member.staged:
        return []
    kept = {key.split()[0]: key for key in old.host_keys}
    changes = [(kept[key.split()[0]], key) for key in member.host_keys if kept.get(key.split()[0], key) != key]
    if not changes and set(old.host_keys) & set(member.host_keys):
        return []
    was, is_ = changes[0] if changes else (old.host_keys[0], (*member.host_keys, UNMADE)[0])
    if is_ == UNMADE:
        return []
    return [
        f"the host key of {member.name} changed since the last setup: it was {fingerprint(was)}, now it is "
        f"{fingerprint(is_)} ({is_.split()[0]}); if the machine was installed anew, say -e ssh_mesh_accept_changed="
        f"{member.name}, else find out which machine answers there"
    ]


def one_machine_twice(members: Sequence[Member]) -> dict[str, list[Member]]:
    """Return the host keys that several nodes have, each with these nodes."""
    owners: dict[str, list[Member]] = {}
    for member in members:
        for key in member.host_keys[:1]:
            owners.setdefault(key, []).append(member)
    return {key: twins for key, twins in owners.items() if len(twins) > 1}


def cloned(key: str, twins: Sequence[Member]) -> str:
    """Return the line about several nodes with one host key."""
    names = [twin.name for twin in twins]
    if all(twin.addresses and twin.addresses == twins[0].addresses for twin in twins):
        return f"{' and '.join(names)} are one machine (host key {fingerprint(key)}): keep one of these names"
    return (
        f"{' and '.join(names)} have the same host key ({fingerprint(key)}): they were cloned; on all but one "
        "say: sudo rm /etc/ssh/ssh_host_*; sudo ssh-keygen -A; sudo systemctl restart ssh; and tell Ansible the new "
        "keys (known_hosts)"
    )


def same_address(members: Sequence[Member]) -> list[str]:
    """Return a line for each address and port that several nodes are said to have."""
    places: dict[tuple[str, int], list[str]] = {}
    for member in members:
        places.setdefault((member.address, member.port), []).append(member.name)
    return [
        f"{' and '.join(names)} have the same address, {address} port {port}: give each its own ansible_host, "
        "ssh_mesh_address or ssh_mesh_port"
        for (address, port), names in places.items()
        if len(names) > 1
    ]


def cannot_take_part(mesh: Mesh, member: Member) -> list[str]:
    """Return why others could not log in to a node as it is set up."""
    where = f"{member.name}: "
    if member.sshd == "own":
        return [] if member.sshd_path else [f"{where}sshd is missing: apt install openssh-server (Debian, Ubuntu)"]
    if member.become and mesh.certificates:
        return []
    found = []
    if not member.authorized_keys:
        found.append(
            f"{where}sshd looks for no user's keys (AuthorizedKeysFile none): set ssh_mesh_become: true or "
            "ssh_mesh_sshd: own"
        )
    elif member.loose:
        found.append(f"{where}others may write to {member.loose}, so sshd refuses keys: chmod go-w {member.loose}")
    return found


def runs_as_unit(member: Member) -> bool:
    return any(path.endswith(".service") for path in member.root_files)


def wrong_clock(member: Member, now: float) -> list[str]:
    """Return a line if certificates would not be valid by the node's clock."""
    ahead = member.clock - now
    if not member.clock or -BACKDATED + 600 < ahead < DAY / 2:
        return []
    return [
        f"the clock of {member.name} is {abs(ahead) / 3600:.1f} h {'ahead of' if ahead > 0 else 'behind'} this "
        "machine's, so certificates are not valid there: timedatectl set-ntp true; or use -e ssh_mesh_trust=keys"
    ]


def left_behind(members: Sequence[Member]) -> list[str]:
    """Return a line if something on the nodes belongs to root that this run may not touch."""
    left = [member for member in members if member.root_files and not member.become]
    return [
        f"{names_of(left)}: {member.root_files[0]} is root's, from a run with ssh_mesh_become: "
        "add -e ssh_mesh_become=true"
        for member in left[:1]
    ]


def findings(mesh: Mesh, fresh: Sequence[Member]) -> list[str]:
    """Return what is no reason to refuse, but should be known."""
    found = few_logins(mesh, fresh) if mesh.any_to_any else []
    left = [member for member in fresh if member.root_files and not member.become]
    if left:
        found.append(
            f"{names_of(left)}: {left[0].root_files[0]} is left from a run with ssh_mesh_become and stays in force: "
            "-e ssh_mesh_become=true keeps it up to date"
        )
    away = [member for member in mesh.members if member not in fresh]
    if away:
        found.append(f"{names_of(away)}: in the mesh, but not in this run, so nothing was done there")
    return found


def names_of(members: Sequence[Member]) -> str:
    """Return the names of nodes, or how many there are besides the first ones."""
    names = [member.name for member in members]
    return ", ".join(names) if len(names) < 6 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def few_logins(mesh: Mesh, members: Sequence[Member]) -> list[str]:
    """Return a line if an sshd drops logins when all nodes come at once, and nobody may change that."""
    count, few = len(mesh.members), []
    for member in members:
        start = ((member.limits or {}).get("maxstartups") or "10:30:100").split(":", 1)[0]
        if member.sshd == "system" and not member.become and start.isdigit() and int(start) < count:
            few.append(member)
    return [
        f"{names_of(few)}: sshd drops logins when {count} nodes come at once (MaxStartups): -e ssh_mesh_become=true "
        f"raises that, or put 'MaxStartups {max_startups(count)}' into /etc/ssh/sshd_config"
    ] * bool(few)


def max_startups(count: int) -> str:
    """Return sshd's MaxStartups for so many nodes: all of them, twice, before any login is dropped."""
    start = max(100, 2 * count)
    return f"{start}:30:{2 * start}"


def max_sessions(count: int) -> int:
    """Return sshd's MaxSessions, the sessions of one multiplexed connection."""
    return max(64, 2 * count)
