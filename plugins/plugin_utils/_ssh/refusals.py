# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reasons to refuse an SSH mesh, and warnings about one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import distribution
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.keys import fingerprint

from .mesh import (
    BACKDATED,
    DAY,
    UNMADE,
    Member,
    Mesh,
    false_claims,
    keeper,
    max_startups,
)


def refusals(
    mesh: Mesh, before: Mapping[str, Member], revoked: Mapping[str, str], accepted: Sequence[str], now: float
) -> list[str]:
    """Return the reasons to refuse this mesh, each in one line, the most important first.

    `before` are the members as of the last setup, `revoked` the host keys of removed nodes with their names, `now` is
    the controller's clock.
    """
    twins = one_machine_twice(mesh.members)
    found = [cloned(key, owners) for key, owners in twins.items()]
    found += [line for member in mesh.members for line in returned(member, revoked, accepted)]
    reported = {owner.name for owners in twins.values() for owner in owners}
    for member in mesh.members:
        found += [] if member.name in reported else changed_host_keys(member, before, accepted)
    found += [] if found else same_address(mesh.members)
    found += [line for member in mesh.members for line in cannot_take_part(mesh, member)]
    found += left_behind([member for member in mesh.members if member.sshd == "system" and runs_as_unit(member)])
    if mesh.certificates:
        found += [line for member in mesh.members for line in wrong_clock(member, now)]
    return found


def renamed(former: tuple[str, Sequence[str]], before: Mapping[str, Member], names: Sequence[str]) -> list[str]:
    """Return a line if these nodes have a mesh of their inventory's path, and now the cluster has a name of its own.

    Under the new name there would be a second mesh, and the first would stay trusted.
    """
    name, nodes = former
    left = [node for node in nodes if node in names]
    if not left or before:
        return []
    return [
        f"until now this cluster was called {name}, by the path of its inventory: keep that name (torchfleet_cluster: "
        f"{name}); or remove that mesh first: "
        f"ansible-playbook setup.yml --tags ssh_mesh -e ssh_mesh_state=absent -e ssh_mesh_cluster={name}"
    ]


def shut_out(mesh: Mesh, keys: Collection[str], accepted: Sequence[str]) -> list[str]:
    """Return a line for each node that is a machine which was shut out, by its host key, whatever its name."""
    return [
        f"{member.name} was shut out (host key {fingerprint(key)}): write it into group away, or delete it from the "
        f"inventory; if it is safe again, add -e replace={member.name}"
        for member in mesh.members
        if member.name not in accepted
        for key in [key for key in member.host_keys if key in keys][:1]
    ]


def changed_host_keys(member: Member, before: Mapping[str, Member], accepted: Sequence[str]) -> list[str]:
    """Return a line if the node's host key has changed, and we did not just create it."""
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
        f"{fingerprint(is_)} ({is_.split()[0]}); if the machine was reinstalled or replaced, add -e replace="
        f"{member.name}, else find out which machine answers at its address"
    ]


def returned(member: Member, revoked: Mapping[str, str], accepted: Sequence[str]) -> list[str]:
    """Return a line if the node has a host key that was revoked with another node: it could pose as that one."""
    keys = [key for key in member.host_keys if revoked.get(key, member.name) != member.name]
    return [
        f"{member.name} has the host key of {revoked[key]} ({fingerprint(key)}), which was removed or replaced: if "
        f"it is that machine under another name, add -e replace={member.name}; else find out why it has this key"
        for key in keys[: member.name not in accepted]
    ]


def one_machine_twice(members: Sequence[Member]) -> dict[str, list[Member]]:
    """Return a host key of each group of nodes that share some, with these nodes."""
    owners: dict[str, list[Member]] = {}
    for member in members:
        for key in member.host_keys:
            owners.setdefault(key, []).append(member)
    groups = {tuple(twin.name for twin in twins): key for key, twins in reversed(owners.items()) if len(twins) > 1}
    return {key: owners[key] for key in groups.values()}


def cloned(key: str, twins: Sequence[Member]) -> str:
    """Return the line about several nodes with the same host key."""
    names = [twin.name for twin in twins]
    if all(twin.addresses and twin.addresses == twins[0].addresses for twin in twins):
        return f"{' and '.join(names)} are one machine (host key {fingerprint(key)}): keep one of these names"
    return (
        f"{' and '.join(names)} have the same host key ({fingerprint(key)}): they were cloned; on all "
        "but one type: sudo rm /etc/ssh/ssh_host_*; sudo ssh-keygen -A; sudo systemctl restart sshd (Debian, Ubuntu: "
        "ssh); and add the new keys to known_hosts here"
    )


def same_address(members: Sequence[Member]) -> list[str]:
    """Return a line for each address and port that several nodes have in the inventory."""
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
    """Return why others cannot log in to a node in its present state."""
    where = f"{member.name}: "
    if member.tenant:
        return [
            f"{where}{member.directory} has the keys of cluster {member.tenant}: give each its own torchfleet_home; "
            "or remove that one first: ansible-playbook setup.yml --tags ssh_mesh -e ssh_mesh_state=absent "
            f"-e ssh_mesh_cluster={member.tenant}; or, if it is this one, whose inventory lay elsewhere, write "
            f"torchfleet_cluster: {member.tenant} into the inventory"
        ]
    if member.sshd == "own":
        return (
            [] if member.sshd_path else [f"{where}sshd is missing; as root: {distribution.install('ssh_server', '')}"]
        )
    if member.become and mesh.certificates:
        return [
            f"{where}{file} is of another cluster, set up by an older torchfleet, and would hide ours: run setup.yml "
            f"of that cluster with this version first; or set ssh_mesh_become: false, or ssh_mesh_sshd: own"
            for file in member.others[:1]
        ]
    found = []
    if not member.authorized_keys:
        found.append(
            f"{where}sshd reads no user's keys (AuthorizedKeysFile none): set ssh_mesh_become: true or "
            "ssh_mesh_sshd: own"
        )
    elif member.loose:
        found.append(f"{where}other users can write to {member.loose}, so sshd refuses keys: chmod go-w {member.loose}")
    return found


def keyless(members: Sequence[Member]) -> list[str]:
    """Return a line for each node without a key. Only check mode, which creates none, accepts that."""
    return [
        f"{member.name} has no {'host key' if member.key or not member.client else 'key'}: run setup again"
        for member in members
        if not member.host_keys or (member.client and not member.key)
    ]


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
    """Return a line if files on the nodes belong to root, which this run cannot change."""
    left = [member for member in members if member.root_files and not member.become]
    return [
        f"{names_of(left)}: {member.root_files[0]} is root's, from a run with ssh_mesh_become: "
        "add -e ssh_mesh_become=true"
        for member in left[:1]
    ]


def findings(mesh: Mesh, fresh: Sequence[Member]) -> list[str]:
    """Return the warnings."""
    found = false_claims(mesh.members) + (few_logins(mesh, fresh) if mesh.any_to_any else [])
    left = [member for member in fresh if member.root_files and not member.become]
    if left:
        found.append(
            f"{names_of(left)}: {left[0].root_files[0]} remains from a run with ssh_mesh_become and is still active: "
            "-e ssh_mesh_become=true keeps it up to date"
        )
    found += ends_with_the_machine(fresh)
    away = [member for member in mesh.members if member not in fresh]
    if away:
        found.append(f"{names_of(away)}: in the mesh, but not in this run, so nothing was changed there")
    return found


def ends_with_the_machine(members: Sequence[Member]) -> list[str]:
    """Return a line about nodes whose own sshd no systemd keeps: no job reaches them after a reboot."""
    plain = [member for member in members if member.sshd == "own" and not keeper(member)]
    return [
        f"{names_of(plain)}: the sshd of your own does not come back after a reboot until setup.yml --tags ssh_mesh: "
        "loginctl enable-linger there, or -e ssh_mesh_become=true, makes it a unit of systemd"
    ] * bool(plain)


def names_of(members: Sequence[Member]) -> str:
    """Return the names of nodes; of many, the first ones and the number of the others."""
    names = [member.name for member in members]
    return ", ".join(names) if len(names) < 6 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def few_logins(mesh: Mesh, members: Sequence[Member]) -> list[str]:
    """Return a line if an sshd drops logins when all nodes log in at once, and the role may not change that."""
    count, few = len(mesh.members), []
    for member in members:
        start = ((member.limits or {}).get("maxstartups") or "10:30:100").split(":", 1)[0]
        if member.sshd == "system" and not member.become and start.isdigit() and int(start) < count:
            few.append(member)
    return [
        f"{names_of(few)}: sshd drops logins when {count} nodes log in at once (MaxStartups): -e ssh_mesh_become=true "
        f"raises the limit, or put 'MaxStartups {max_startups(count)}' into /etc/ssh/sshd_config"
    ] * bool(few)
