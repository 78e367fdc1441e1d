# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The inventory of node containers, from the inventory of their machines and from what the machines told. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.inventory import (
    PYTHON,
    Member,
    inventory_text,
    known_hosts_text,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import like, listed, whole
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import exact, take
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import ADDRESS

HEADER = "---\n# Written by playbooks/containers.yml, which also removes it: -e container_state=absent\n"
# Variables of a machine that hold for its node container too.
KEPT = ("slots", "ssh_mesh_address", "torchfleet_gpus")
HOST_KEY = like(re.compile(r"(ssh-ed25519|ecdsa-sha2-nistp256|ssh-rsa) [A-Za-z0-9+/]{40,1000}={0,2}\Z"), "a host key")
USER = like(re.compile(r"[a-z_][a-z0-9_-]{0,30}\Z"), "a user name")
INTERPRETER = like(re.compile(r"/[\w./+-]{1,200}\Z", re.ASCII), "the path of a Python")
ANSWER = exact({"port": whole(1, 65535), "user": USER, "python": INTERPRETER, "host_keys": listed(HOST_KEY, 8)})
LOOPBACK = "127.0.0.1"


class Answer(TypedDict):
    """What module node_container answers of a node."""

    port: int
    user: str
    python: str
    host_keys: list[str]


def member_of(name: str, machine: Mapping[str, object], answer: Mapping[str, object]) -> tuple[Member, list[str]]:
    """Return how a node container is reached, and its host keys.

    `machine`: the variables of its machine; `answer`: that of module node_container. Raise InputError for an answer
    that the module never gives, and for a machine whose address cannot stand in an inventory.
    """
    told: Answer = take(name, "node", ANSWER, answer)
    if not told["host_keys"]:
        raise InputError(f"answer of {name}", "no host key", "the node cannot be pinned: run the playbook again")
    address = address_of(name, machine)
    variables = {key: machine[key] for key in KEPT if machine.get(key) is not None}
    if told["python"] != PYTHON:
        variables["ansible_python_interpreter"] = told["python"]
    jump = machine.get("ansible_ssh_common_args")
    if jump:  # as far as it leads there; what our own inventory says of host keys comes first, and ssh takes that
        variables["ansible_ssh_extra_args"] = str(jump)
    return Member(name, (address,), told["port"], told["user"], variables), told["host_keys"]


def address_of(name: str, machine: Mapping[str, object]) -> str:
    """Return the address of a machine, which its node container shares."""
    given = str(machine.get("ansible_host") or name)
    address = LOOPBACK if given == "localhost" else given
    if not ADDRESS.match(address):
        raise InputError(f"ansible_host of {name}", address, "give a host name or an address, without user or options")
    return address


def texts(nodes: Mapping[str, tuple[Member, list[str]]], head: str, workers: Sequence[str]) -> dict[str, str]:
    """Return hosts.yml and known_hosts. `nodes`: by name, as of member_of()."""
    inventory = inventory_text(HEADER, nodes[head][0], [nodes[name][0] for name in workers])
    return {"known_hosts": known_hosts_text(nodes.values()), "hosts.yml": inventory}
