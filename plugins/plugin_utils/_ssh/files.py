# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of the SSH mesh for ssh and sshd, and the work of each node. Pure.

Sources: ssh_config(5), sshd_config(5), sshd(8) for authorized_keys and known_hosts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh import shared
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.apply import digest
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.work import (
    AuthorizedKeys,
    RootStep,
    Service,
    UserStep,
    Work,
)

from .mesh import (
    UNMADE,
    Member,
    Mesh,
    aliases,
    identities,
    keeper,
    least_startups,
    max_sessions,
    max_startups,
    principal,
    reached_at,
    sources,
)

MANAGED = shared.MANAGED
SOCKET_LIMIT = 107  # bytes of a socket's path (unix(7)); %C is 40, and ssh adds 17 while it makes the socket
PENALTIES = (9, 8)  # the first OpenSSH that blocks addresses after failed logins

STAGED = (".next", ".next.pub")  # a new key until it is activated

Json = dict[str, object]


# --- the side that logs in ------------------------------------------------------------------------------------------


def ssh_config(mesh: Mesh, by: Member) -> str:
    """Return ssh's configuration on one node, to reach every other node with `ssh -F <file> <name>`."""
    names = aliases(mesh.members)
    blocks = [host_block(member, names[member.name], reached_at(member, by)) for member in mesh.members]
    return "\n".join([MANAGED, *blocks, *common_block(mesh, by)]) + "\n"


def host_block(member: Member, names: tuple[str, ...], address: str) -> str:
    """Return the section of one host. HostKeyAlias: whatever the address, the host key must be this node's."""
    return (
        f"Host {' '.join(names)}\n    HostName {address}\n    Port {member.port}\n    User {member.user}\n"
        f"    HostKeyAlias {member.name}"
    )


def common_block(mesh: Mesh, by: Member) -> list[str]:
    """Return the section for all hosts. A host outside the mesh is refused."""
    directory = by.directory
    lines = [
        f"IdentityFile {quoted(f'{directory}/id_ed25519')}",
        *([f"CertificateFile {quoted(f'{directory}/id_ed25519-cert.pub')}"] if mesh.certificates else []),
        "IdentitiesOnly yes",
        "IdentityAgent none",
        f"UserKnownHostsFile {quoted(f'{directory}/known_hosts')}",
        "GlobalKnownHostsFile /dev/null",
        "StrictHostKeyChecking yes",
        "UpdateHostKeys no",
        "VerifyHostKeyDNS no",
        "BatchMode yes",
        "PreferredAuthentications publickey",
        "ClearAllForwardings yes",
        "ForwardAgent no",
        "RequestTTY no",
        "ConnectTimeout 10",
        "ServerAliveInterval 5",
        "ServerAliveCountMax 2",
        "LogLevel ERROR",
        *control_path(directory),
    ]
    return ["Host *", *(f"    {line}" for line in lines)]


def control_path(directory: str) -> list[str]:
    """Return the settings for a multiplexed connection, if a user opens one (`ssh -fNM`); ssh itself opens none.

    A connection that ssh opened by itself would remain as a process of the first user. A path that is too long would
    make every login fail.
    """
    path = f"{directory}/cm-%C"
    return [f"ControlPath {quoted(path, tokens=True)}"] if len(path.encode()) + 38 + 17 <= SOCKET_LIMIT else []


def quoted(path: str, tokens: bool = False) -> str:
    """Return a path quoted for ssh's and sshd's files. ssh expands % in paths, so a literal % is doubled."""
    return f'"{path if tokens else path.replace("%", "%%")}"'


def known_hosts(mesh: Mesh) -> str:
    """Return known_hosts: each node with all its names, and the keys that no node may show any more.

    The system's sshd shows one certificate, which may be that of another cluster: so its keys are listed as well.
    """
    names, lines = aliases(mesh.members), [MANAGED]
    for member in mesh.members:
        patterns = list(names[member.name])
        if member.port != 22:
            patterns += [f"[{name}]:{member.port}" for name in names[member.name]]
        if mesh.certifies(member):
            lines.append(f"@cert-authority {','.join(patterns)} {mesh.host_ca}")
        if member.sshd == "system" or not mesh.certificates:
            lines += [f"{','.join(patterns)} {key}" for key in member.host_keys or (UNMADE,)]
    lines += [f"@revoked * {key}" for key in mesh.revoked]
    return "\n".join(lines) + "\n"


# --- the side that is logged in to ----------------------------------------------------------------------------------


def authorized_keys(mesh: Mesh) -> list[str]:
    """Return the lines of authorized_keys for the mesh: only from its addresses, without terminal or forwarding."""
    lines = []
    for key, clients in identities(mesh).items():
        line = f"{limits_of(mesh, clients)} {key or UNMADE}"
        if mesh.certificates:
            line = f'cert-authority,{limits_of(mesh, clients)},principals="{principal(clients)}" {mesh.user_ca}'
        lines.append(f"{line} torchfleet {mesh.cluster} {clients[0].name}")
    return lines


def limits_of(mesh: Mesh, clients: Sequence[Member]) -> str:
    """Return what sshd allows to one key: commands only, from its own nodes."""
    return f'restrict,from="{",".join(sources(mesh, clients))}"'


def principals(mesh: Mesh) -> list[str]:
    """Return the lines of AuthorizedPrincipalsFile: the clients whose certificates are good."""
    return [f"{limits_of(mesh, clients)} {principal(clients)}" for clients in identities(mesh).values()]


def own_sshd_config(mesh: Mesh, member: Member) -> str:
    """Return the configuration of a node's own sshd: one user, keys only, only commands and file transfer."""
    place, count = member.own, len(mesh.members)
    lines = [
        MANAGED,
        f"Port {member.port}",
        f"HostKey {quoted(f'{place}/ssh_host_ed25519_key')}",
        f"PidFile {quoted(f'{place}/sshd.pid')}",
        f"AllowUsers {member.user}",
        f"PermitRootLogin {'prohibit-password' if member.user == 'root' else 'no'}",
        "PubkeyAuthentication yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        # PAM opens sessions for root's sshd only.
        f"UsePAM {'yes' if member.user == 'root' else 'no'}",
        "DisableForwarding yes",
        "PermitTTY no",
        "PermitUserRC no",
        "StrictModes yes",
        "PrintMotd no",
        f"MaxStartups {max_startups(count)}",
        f"MaxSessions {max_sessions(count)}",
        "ClientAliveInterval 15",
        "ClientAliveCountMax 4",
        "Subsystem sftp internal-sftp",
    ]
    if mesh.certificates:
        lines.append(f"HostCertificate {quoted(f'{place}/ssh_host_ed25519_key-cert.pub')}")
        lines.append(f"TrustedUserCAKeys {quoted(f'{place}/user_ca.pub')}")
        lines.append(f"AuthorizedPrincipalsFile {quoted(f'{place}/principals')}")
    lines.append(f"AuthorizedKeysFile {'none' if mesh.certificates else quoted(f'{place}/authorized_keys')}")
    if member.version >= PENALTIES:
        lines.append("PerSourcePenalties no")
    return "\n".join(lines) + "\n"


def part(mesh: Mesh, member: Member, host_certificate: str) -> str:
    """Return what this cluster needs of the system's sshd, which may serve others too (see _ssh/shared.py)."""
    needs = {
        "user": member.user,
        "user_ca": mesh.user_ca if mesh.certificates else "",
        "principals": principals(mesh) if mesh.certificates else [],
        "host_certificate": host_certificate,
        "startups": least_startups(len(mesh.members)),
        "sessions": max_sessions(len(mesh.members)),
        "exempt": sources(mesh, mesh.clients) if member.version >= PENALTIES else [],
    }
    return json.dumps(needs, indent=1, sort_keys=True) + "\n"


def unit(mesh: Mesh, member: Member, system: bool) -> str:
    """Return the systemd unit of a node's own sshd.

    Ranks are its children: they must outlive a restart (KillMode), may be many (TasksMax) and may have to lock memory
    for RDMA (LimitMEMLOCK, which only the system's manager may grant).
    """
    user = [f"User={member.user}", "LimitMEMLOCK=infinity", "LimitNOFILE=1048576"] if system else []
    # The directory for sshd's privilege separation, if it runs as root.
    place = ["ExecStartPre=/bin/mkdir -p /run/sshd"] if member.user == "root" else []
    return "\n".join(
        [
            MANAGED,
            "[Unit]",
            f"Description=sshd of the torchfleet cluster {mesh.cluster}",
            "After=network-online.target",
            "Wants=network-online.target",
            "[Service]",
            *user,
            *place,
            f'ExecStart={member.sshd_path} -D -e -f "{member.own.replace("%", "%%")}/sshd_config"',
            "ExecReload=/bin/kill -HUP $MAINPID",
            "KillMode=process",
            "OOMPolicy=continue",
            "TasksMax=infinity",
            "Restart=on-failure",
            "RestartSec=2",
            "[Install]",
            f"WantedBy={'multi-user' if system else 'default'}.target",
            "",
        ]
    )


# --- the work of each node ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Places:
    """The paths that the role writes on a node, below the user's home and as root."""

    mesh: Mesh
    member: Member

    @property
    def key(self) -> str:
        return f"{self.member.directory}/id_ed25519"

    @property
    def host_key(self) -> str:
        return f"{self.member.own}/ssh_host_ed25519_key"

    @property
    def sshd_config(self) -> str:
        return f"{self.member.own}/sshd_config"

    @property
    def part(self) -> str:
        return shared.part_of(self.mesh.cluster)

    @property
    def host_certificate(self) -> str:
        return shared.host_certificate_of(self.mesh.cluster)

    @property
    def unit(self) -> str:
        return f"torchfleet-sshd-{self.mesh.cluster}.service"

    @property
    def record(self) -> str:
        return f"{self.member.directory}/applied-{self.member.name}.json"

    def of_user(self) -> list[str]:
        """Return all paths that can be written below the user's home, each directory after its content."""
        pairs = [f"{key}{end}" for key in (self.key, self.host_key) for end in ("", ".pub", "-cert.pub", *STAGED)]
        mine = [f"{self.member.directory}/{name}" for name in ("config", "known_hosts")] + [self.record]
        names = ("sshd_config", "user_ca.pub", "principals", "authorized_keys", "sshd.pid", "sshd.log")
        return [*mine, *pairs, *(f"{self.member.own}/{name}" for name in names), self.member.own]

    def of_root(self) -> list[str]:
        """Return all paths that can be written as root, each directory after its content."""
        unit = f"/etc/systemd/system/{self.unit}"
        return [self.part, self.host_certificate, *shared.former_files(self.mesh.cluster), unit]


def node_work(mesh: Mesh, member: Member, issued: Mapping[str, str]) -> Work:
    """Return the work of ssh_mesh_apply on one node, in steps, some as the user and some as root.

    New access is added before old access is removed: the system's sshd trusts the authority before the user's list
    drops it. An sshd of the user's own has its files before systemd starts it.
    """
    own, places = member.sshd == "own", Places(mesh, member)
    files, roots_files = user_files(mesh, member, issued), root_files(mesh, member, issued)
    keys = [places.key] * member.client + [places.host_key] * own
    kept = {*files, places.record, *(f"{key}{end}" for key in keys for end in ("", ".pub", *STAGED))}
    kept |= {f"{member.own}/sshd.pid", f"{member.own}/sshd.log", member.own} if own else set()
    by_line = not own and not (member.become and mesh.certificates)
    user: UserStep = {
        "by": "user",
        "files": files,
        "promote": keys,
        "absent": [path for path in places.of_user() if path not in kept],
        "authorized_keys": {"path": member.authorized_keys, "lines": authorized_keys(mesh) if by_line else []},
        "sshd": own_service(mesh, member),
    }
    gone = [path for path in places.of_root() if path not in roots_files]
    root: RootStep = {"by": "root", "files": roots_files, "absent": gone, "sshd": own_service(mesh, member)}
    roots = [root] * member.become
    steps: list[UserStep | RootStep] = [user, *roots] if own else [*roots, user]
    work: Work = {"user": member.user, "record": places.record, "steps": steps}
    return work if digest(work) != member.applied else {**work, "steps": []}


def node_removal(mesh: Mesh, member: Member) -> Work:
    """Return the work of ssh_mesh_apply on one node that removes the mesh."""
    places = Places(mesh, member)
    service: Service = {"kind": "none", "config": places.sshd_config, "unit": places.unit}
    block: AuthorizedKeys = {"path": member.authorized_keys, "lines": []}
    gone = [*places.of_user(), member.directory]
    user: UserStep = {
        "by": "user",
        "files": {},
        "promote": [],
        "absent": gone,
        "authorized_keys": block,
        "sshd": service,
    }
    root: RootStep = {"by": "root", "files": {}, "absent": places.of_root(), "sshd": service}
    is_roots = member.become or bool(member.root_files)  # left from a run with ssh_mesh_become
    return {"user": member.user, "record": "", "steps": [*([root] * is_roots), user]}


def proof(mesh: Mesh) -> list[Json]:
    """Return the facts about each node for ssh_mesh_prove."""
    return [
        {
            "name": member.name,
            "address": member.address,
            "port": member.port,
            "config": f"{member.directory}/config" if member.client else "",
        }
        for member in mesh.members
    ]


def user_files(mesh: Mesh, member: Member, issued: Mapping[str, str]) -> dict[str, str]:
    """Return the files below the user's home by path, in the order of writing."""
    files, places = {}, Places(mesh, member)
    if member.client:
        if mesh.certificates:
            first = identities(mesh)[member.key][0]
            files[f"{places.key}-cert.pub"] = issued[f"{first.name}-user"]
        files[f"{member.directory}/known_hosts"] = known_hosts(mesh)
        files[f"{member.directory}/config"] = ssh_config(mesh, member)
    if member.sshd == "own":
        if mesh.certificates:
            files[f"{member.own}/user_ca.pub"] = f"{mesh.user_ca}\n"
            files[f"{member.own}/principals"] = "\n".join(principals(mesh)) + "\n"
            files[f"{places.host_key}-cert.pub"] = issued.get(f"{member.name}-host", UNMADE)
        else:
            files[f"{member.own}/authorized_keys"] = "\n".join(authorized_keys(mesh)) + "\n"
        files[places.sshd_config] = own_sshd_config(mesh, member)
    return files


def root_files(mesh: Mesh, member: Member, issued: Mapping[str, str]) -> dict[str, str]:
    """Return root's files by path: the cluster's part of the system's sshd, or the unit of the node's own."""
    places = Places(mesh, member)
    if member.sshd == "own":
        return {f"/etc/systemd/system/{places.unit}": unit(mesh, member, system=True)} if member.service else {}
    if not mesh.certificates:
        return {places.part: part(mesh, member, "")}
    certificate = {places.host_certificate: issued.get(f"{member.name}-host", UNMADE)}
    return {**certificate, places.part: part(mesh, member, places.host_certificate)}


def own_service(mesh: Mesh, member: Member) -> Service:
    """Return how the node's own sshd is kept running: by root's or the user's systemd, as a process, or not."""
    places = Places(mesh, member)
    service: Service = {"kind": "none", "config": places.sshd_config, "unit": places.unit}
    if member.sshd != "own":
        return service
    kind = keeper(member) or "plain"
    unit_text = unit(mesh, member, system=False) if kind == "user" else ""
    return {**service, "kind": kind, "program": member.sshd_path, "port": member.port, "unit_text": unit_text}
