# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's part of the SSH mesh: certificate authorities, issued certificates, and known nodes.

One directory per cluster, 0700: user_ca, host_ca (private, 0600) and their .pub, certificates/<node>-<user|host>.pub,
nodes.json (the nodes as of the last setup), lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.keys import (
    KeyFailed,
    locked,
    make_key,
    plain_key,
    ssh_keygen,
    strict_key,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .certified_names import Certified, certified_from, valid_at
from .mesh import (
    UNMADE,
    Member,
    Mesh,
    Wanted,
    known_member,
    revoked_keys,
    serves,
    signing_arguments,
    wanted_certificates,
)


def is_plain(path: Path) -> bool:
    """Whether a private key is here and not encrypted."""
    try:
        ssh_keygen(["-y", "-P", "", "-f", str(path)])
    except KeyFailed:
        return False
    return True


class Stored(NamedTuple):
    """What nodes.json says."""

    nodes: dict[str, Member]  # as of the last setup, by name
    revoked: dict[str, str]  # host keys of nodes that were removed or replaced, each with the name of its node
    shut_out: frozenset[str]  # those of them whose machine may be hostile
    certified: Certified


class Authority:
    """The directory of a cluster on the controller. With `dry_run` nothing in it changes.

    `inventory`: the directory of the inventory, of a cluster without a name of its own; else empty.
    """

    def __init__(self, directory: str, cluster: str, dry_run: bool, inventory: str = "") -> None:
        self.path = Path(directory).expanduser().absolute()
        self.cluster = cluster
        self.dry_run = dry_run
        self.inventory = inventory
        self.changed = False

    @contextlib.contextmanager
    def held(self, make: bool) -> Iterator[None]:
        """Lock out other playbooks. Raise InputError if the directory is unusable or other users can read it."""
        if not self.path.exists() and not (make and not self.dry_run):
            yield
            return
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = self.path.stat()
        except OSError as error:
            raise InputError("ssh_mesh_directory", str(self.path), f"cannot be used: {error.strerror}") from None
        if state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & 0o077:
            raise InputError("ssh_mesh_directory", str(self.path), "only you may have access to it: chmod 700")
        with locked(str(self.path)):
            yield

    # --- the nodes that it knows

    def known(self) -> dict[str, Member]:
        """Return the nodes as of the last setup."""
        return self.stored().nodes

    def revoked(self) -> dict[str, str]:
        """Return the host keys of nodes that were removed or replaced, each with the name of its node."""
        return self.stored().revoked

    def stored(self) -> Stored:
        """Return what nodes.json says. Raise InputError if it is damaged, or of another cluster."""
        try:
            there = json.loads((self.path / "nodes.json").read_text())
            cluster = there["cluster"]
            nodes = {name: known_member({**node, "name": name}) for name, node in there["nodes"].items()}
            revoked = {strict_key(key): str(name) for key, name in there.get("revoked", {}).items()}
            shut_out = frozenset(strict_key(key) for key in there.get("shut_out", []))
            certified = valid_at(time.time(), certified_from(there.get("certified", {})))
        except FileNotFoundError:
            return Stored({}, {}, frozenset(), {})
        except (ValueError, TypeError, LookupError, AttributeError, KeyFailed):
            allowed = "it is damaged: remove it, and setup reads the host keys again"
            raise InputError("ssh_mesh_directory", str(self.path / "nodes.json"), allowed) from None
        if cluster != self.cluster:
            allowed = f"it belongs to cluster {cluster}: give each cluster its own directory"
            raise InputError("ssh_mesh_directory", str(self.path), allowed)
        return Stored(nodes, revoked, shut_out, certified)

    def remember(
        self,
        members: Sequence[Member],
        revoked: Mapping[str, str],
        shut_out: Set[str] = frozenset(),
        certified: Certified | None = None,
    ) -> None:
        """Store the nodes, without values that change by themselves, so that a second run changes nothing."""
        moment = {
            "clock": 0.0,
            "limits": None,
            "root_files": (),
            "others": (),
            "tenant": "",
            "loose": "",
            "staged": False,
            "applied": "",
        }
        nodes = {member.name: {**asdict(member), **moment} for member in members}
        stored: dict[str, object] = {"cluster": self.cluster, "nodes": nodes, "revoked": dict(revoked)}
        stored["inventory"] = self.inventory  # for _inventory/cluster_name.py
        stored |= {"shut_out": sorted(shut_out & revoked.keys())} if shut_out & revoked.keys() else {}
        stored |= {"certified": certified} if certified else {}
        self.write("nodes.json", json.dumps(stored, indent=2, sort_keys=True) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a public file atomically."""
        path = self.path / name
        if self.dry_run or (path.exists() and path.read_text() == text):
            return
        path.parent.mkdir(mode=0o700, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.new")
        unfinished.write_text(text)
        unfinished.replace(path)
        self.changed = True

    # --- the authorities

    def public_key(self, name: str, fresh: bool) -> str:
        """Return the public key of an authority ("user_ca", "host_ca"), which is created if it does not exist.

        The private key may be encrypted, or not here at all: then an ssh-agent signs with it.
        """
        path, public = self.path / name, self.path / f"{name}.pub"
        is_elsewhere = public.exists() and not path.exists()
        if (fresh or not (path.exists() or is_elsewhere)) and not self.dry_run:
            path.unlink(missing_ok=True)
            make_key(str(path), f"torchfleet {self.cluster} {name}")
            self.changed = True
        if is_elsewhere and not fresh:
            return plain_key(public.read_text())
        if not path.exists():
            return UNMADE
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            allowed = "other users could read it: -e ssh_mesh_rotate=true creates a new one, chmod 600 keeps it"
            raise InputError("ssh_mesh_directory", str(path), allowed)
        if is_plain(path):
            return plain_key(ssh_keygen(["-y", "-P", "", "-f", str(path)]))
        if not public.exists():
            remedy = f"it is encrypted, and {public.name} is missing: ssh-keygen -y -f {path} >{public}"
            raise InputError("ssh_mesh_directory", str(path), remedy)
        return plain_key(public.read_text())

    def sign_for(self, mesh: Mesh, fresh: bool) -> Mesh:
        """Return the mesh with the authorities that it trusts; with `fresh`, new ones."""
        if not mesh.certificates:
            return mesh
        return replace(mesh, user_ca=self.public_key("user_ca", fresh), host_ca=self.public_key("host_ca", fresh))

    def issue(self, mesh: Mesh) -> dict[str, str]:
        """Return the text of each certificate by name: the present one if it is still good, else a new one."""
        issued = {}
        for wanted in wanted_certificates(mesh):
            authority = mesh.host_ca if wanted.is_host else mesh.user_ca
            issued[wanted.name] = self.certificate(wanted, authority, mesh.valid_days)
        for path in (self.path / "certificates").glob("*.pub"):
            if path.stem not in issued and not self.dry_run:
                path.unlink()
                self.changed = True
        return issued

    def certificate(self, wanted: Wanted, authority: str, valid_days: int) -> str:
        name = f"certificates/{wanted.name}.pub"
        path = self.path / name
        there = path.read_text() if path.exists() else ""
        if serves(wanted, there, authority, time.time(), valid_days):
            return there
        if self.dry_run:
            return UNMADE
        text = self.sign(wanted, valid_days)
        self.write(name, text)
        return text

    def sign(self, wanted: Wanted, valid_days: int) -> str:
        """Sign a public key with ssh-keygen."""
        with tempfile.TemporaryDirectory(dir=self.path) as place:
            key = Path(place, "key.pub")
            key.write_text(f"{wanted.key} torchfleet {self.cluster} {wanted.name}\n")
            signer = self.path / ("host_ca" if wanted.is_host else "user_ca")
            here = is_plain(signer)
            by = str(signer if here else signer.with_name(f"{signer.name}.pub"))
            words = [*signing_arguments(wanted, self.cluster, by, valid_days, time.time_ns()), str(key)]
            try:
                ssh_keygen(words if here else ["-U", *words])
            except KeyFailed as error:
                hint = "" if here else f": {signer} is encrypted, or not here: ssh-add it, and run this again"
                raise KeyFailed(f"{error}{hint}") from None
            return Path(place, "key-cert.pub").read_text()

    def forget(self, names: Sequence[str]) -> None:
        """Remove nodes, and after the last one all files of the cluster."""
        before, revoked, shut_out, certified = self.stored()
        left = [member for name, member in before.items() if name not in names]
        if self.dry_run or not self.path.exists():
            return
        if left:
            self.remember(left, revoked_keys(revoked, before, left), shut_out, certified)
            return
        for name in ("user_ca", "user_ca.pub", "host_ca", "host_ca.pub", "nodes.json"):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / "certificates", ignore_errors=True)
        self.changed = True
        with contextlib.suppress(OSError):
            self.path.rmdir()
