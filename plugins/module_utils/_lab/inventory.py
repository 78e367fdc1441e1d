# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The texts of an inventory that we write ourselves and its known_hosts: labs, node containers, EC2. Pure."""

from __future__ import annotations

import json
import re
from typing import Iterable, Mapping, NamedTuple, Sequence

MESH = "ssh_mesh"  # directory beside the inventory
PYTHON = "/usr/bin/python3"
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._-]*\Z")
NO_TEXTS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")  # YAML 1.1


class Member(NamedTuple):
    """A node of the inventory: how it is reached, and its other variables."""

    name: str
    addresses: tuple[str, ...]  # the first one is Ansible's
    port: int
    user: str
    variables: Mapping[str, object]


def inventory_text(header: str, head: Member, workers: Sequence[Member]) -> str:
    """Return the inventory. It names the private key and the host keys as lying beside it, wherever that is.

    `header`: its first lines, by which it is recognised. A head that is no worker runs no ranks.
    """
    runs_ranks = any(worker.name == head.name for worker in workers)
    lines = ["all:", "  children:", "    head:", "      hosts:"]
    lines += [f"        {key_of(head.name)}:"] if runs_ranks else [host_line(head), *common_vars()]
    lines += ["    workers:", "      hosts:", *(host_line(worker) for worker in workers), *common_vars()]
    return header + "\n".join(lines) + "\n"


def host_line(node: Member) -> str:
    """Return the line of a node: how to reach it, and its variables."""
    values = {"ansible_host": node.addresses[0], "ansible_user": node.user, **node.variables}
    if node.port != 22:
        values["ansible_port"] = node.port
    return f"        {key_of(node.name)}: {json.dumps(values)}"


def key_of(name: str) -> str:
    """Return the name of a node as YAML takes it for a text: `1` is a number there, and `no` is false."""
    return name if PLAIN.match(name) and name.lower() not in NO_TEXTS else json.dumps(name)


def common_vars() -> list[str]:
    """Return the variables of a group.

    Of groups of nodes only: this machine, which Ansible adds to every inventory by itself, has no inventory_dir.
    """
    options = ["'UserKnownHostsFile=\"{{ inventory_dir }}/known_hosts\"'", "GlobalKnownHostsFile=/dev/null"]
    options += ["StrictHostKeyChecking=yes", "IdentitiesOnly=yes"]
    lines = ["      vars:", f"        ansible_python_interpreter: {PYTHON}"]
    lines += ['        ansible_ssh_private_key_file: "{{ inventory_dir }}/key"']
    # The mesh's authority, and what it knows of host keys, go with the inventory: the next nodes of these names differ.
    lines += [f'        ssh_mesh_directory: "{{{{ inventory_dir }}}}/{MESH}"']
    return [*lines, "        ansible_ssh_common_args: >-", *(f"          -o {option}" for option in options)]


def known_hosts_text(nodes: Iterable[tuple[Member, Sequence[str]]]) -> str:
    """Return OpenSSH's known_hosts: every key (type and base64) of every node, under its name and all its addresses."""
    lines = []
    for node, keys in nodes:
        names = [node.name, *node.addresses]
        if node.port != 22:
            names = [f"[{name}]:{node.port}" for name in names]
        lines += [f"{','.join(names)} {key}" for key in keys]
    return "\n".join(lines) + "\n"
