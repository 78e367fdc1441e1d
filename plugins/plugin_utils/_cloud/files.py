# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of a cluster on the controller, beside its inventory: the same as a lab's, written by the same code."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import directory as lab
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import inventory as lab_inventory
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.file_locks import (
    try_lock,
    wait_for_lock,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .answers import Instance
from .contact import Pin, pins_in, pins_text
from .errors import CloudError
from .request import Address
from .template import Member, Plan
from .user_data import USER

HEADER = "---\n# Written by cluster.yml, which also removes it: -e cluster_state=absent\n"
WAIT_SECONDS = 900.0  # for another run: the boot of an instance, and the first contact
MADE_IN = "# made in "  # a comment of known_hosts, which is written before anything is billed


@contextlib.contextmanager
def alone(cluster: str, note: Callable[[str], object], seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Lock a cluster against other runs on this controller. CloudError if another run keeps it too long. OSError.

    Ansible's worker is in a session of its own: it works on for a while when ansible-playbook is killed. Two that
    change host keys at once would lock themselves out.
    """
    place = Path.home() / ".torchfleet" / "clusters"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = str(place / f"{cluster}.lock")
    held = try_lock(path, fcntl.LOCK_EX)
    if held is None:
        note(f"another cluster.yml works on cluster {cluster}: waiting for its end")
        held = wait_for_lock(path, fcntl.LOCK_EX, seconds)
    if held is None:
        raise CloudError("Busy", f"another cluster.yml holds cluster {cluster} since {seconds:.0f} s: end it")
    try:
        yield
    finally:
        os.close(held)


def how_to_remove(cluster: str) -> str:
    """Return what to type to remove a cluster."""
    return f"ansible-playbook cluster.yml -e cluster_name={cluster} -e cluster_state=absent"


@dataclass(frozen=True)
class Files:
    """The directory of a cluster: hosts.yml, known_hosts, key and key.pub. `place`: account and region in use."""

    cluster: str
    directory: Path
    place: str = ""

    def ours(self) -> bool:
        """Whether something of this cluster is there."""
        return self.directory.is_dir() and lab.is_ours(str(self.directory), HEADER)

    def refuse_others(self) -> None:
        """Raise InputError if the directory has something else in it, such as a lab."""
        if self.directory.is_dir() and any(self.directory.iterdir()) and not self.ours():
            told = f"{self.directory} exists and has no cluster's inventory; give another cluster_name"
            raise InputError("cluster_name", self.cluster, told)

    def refuse_elsewhere(self) -> None:
        """Raise InputError if these files are of a cluster elsewhere: without them nobody would see it any more."""
        was = self.made_in()
        if was and self.place and was != self.place:
            told = f"{self.directory} belongs to a cluster in {was}, and this is {self.place}"
            advice = "give that region (-e cluster_region=) and that account (AWS_PROFILE), or another cluster_name"
            raise InputError("cluster_name", self.cluster, f"{told}: {advice}")

    def made_in(self) -> str:
        """Return account and region of the cluster; nothing if no file says so."""
        lines = self.known_hosts.read_text().splitlines() if self.known_hosts.exists() else []
        return next((line[len(MADE_IN) :] for line in lines if line.startswith(MADE_IN)), "")

    def has_key(self) -> bool:
        """Whether this controller can log in: then it made the cluster."""
        return self.ours() and (self.directory / "key").exists()

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    def require_keys(self, nodes: Collection[str]) -> None:
        """Raise InputError if a cluster that exists was made elsewhere: nobody here can log in, or knows its keys."""
        pinned = {pin.node for pin in self.pins()}
        if not (self.directory / "key").exists() or not pinned.issuperset(nodes):
            told = "another controller made it, or files were removed: bring key and known_hosts back to"
            advice = f"{told} {self.directory}, or type {how_to_remove(self.cluster)}"
            raise InputError("cluster_name", self.cluster, advice)

    def make_key(self) -> str:
        """Make the private key unless it is there. Return the public one."""
        return lab.make_key(str(self.directory), f"torchfleet-{self.cluster}")

    def pins(self) -> list[Pin]:
        """Return the pinned host keys."""
        return pins_in(self.known_hosts.read_text()) if self.known_hosts.exists() else []

    def save_pins(self, pins: Sequence[Pin], addresses: Mapping[str, Sequence[str]]) -> bool:
        """Write the pinned host keys. Return whether they changed."""
        place = self.place or self.made_in()
        text = f"{MADE_IN}{place}\n" * bool(place) + pins_text(pins, addresses)
        return lab.write(str(self.known_hosts), text)

    def write(self, plan: Plan, instances: Mapping[str, Instance], addresses: Mapping[str, Sequence[str]]) -> bool:
        """Write the inventory, and the keys of its nodes. Return whether anything changed."""
        pins = self.save_pins([pin for pin in self.pins() if pin.node in instances], addresses)
        return lab.write(str(self.directory / "hosts.yml"), inventory(plan, instances)) or pins

    def remove(self) -> None:
        """Remove the files of the cluster."""
        if self.ours():
            lab.remove_files(lab.files_of(str(self.directory), HEADER), str(self.directory))


def inventory(plan: Plan, instances: Mapping[str, Instance]) -> str:
    """Return the inventory. Instances reach each other at their private addresses."""
    workers = [host(plan, member, instances[member.node]) for member in plan.workers]
    return lab_inventory.inventory_text(HEADER, host(plan, plan.head, instances[plan.head.node]), workers)


def host(plan: Plan, member: Member, instance: Instance) -> lab_inventory.Member:
    """Return a node of the inventory. verify.yml fails if it has fewer GPUs than its type."""
    public = plan.request.address is Address.PUBLIC
    kind = plan.kind_of(member)
    values: dict[str, object] = {"ssh_mesh_address": instance.private}
    if not kind.group.head:
        values["slots"] = kind.slots
        if kind.facts.gpus:
            values["torchfleet_gpus"] = kind.facts.gpus
    addresses = (instance.public, instance.private) if public else (instance.private,)
    return lab_inventory.Member(member.node, addresses, 22, USER, values)
