# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of a cluster that torchfleet made itself (lab, EC2): its inventory, and the host keys beside it. Pure."""

from __future__ import annotations

import json
from typing import Mapping, Sequence, Tuple

Host = Tuple[str, Mapping[str, object]]  # its name and its variables
MESH = "ssh_mesh"  # directory beside the inventory
FILES = ("hosts.yml", "known_hosts", "key.pub", "key")


def inventory_text(head: Host, workers: Sequence[Host]) -> str:
    """Return the inventory. It names the private key and the host keys as lying beside it, wherever that is."""
    alone = head[0] not in [name for name, _values in workers]
    lines = ["all:", "  children:", "    head:", "      hosts:"]
    lines += [host_line(head), *common_vars()] if alone else [f"        {head[0]}:"]
    lines += ["    workers:", "      hosts:", *map(host_line, workers), *common_vars()]
    return "\n".join(lines) + "\n"


def host_line(host: Host) -> str:
    """Return the line of a host."""
    return f"        {host[0]}: {json.dumps(host[1])}"


def common_vars() -> Sequence[str]:
    """Return the variables of a group.

    Of groups of nodes only: this machine, which Ansible adds to every inventory by itself, has no inventory_dir.
    """
    options = ["'UserKnownHostsFile=\"{{ inventory_dir }}/known_hosts\"'", "GlobalKnownHostsFile=/dev/null"]
    options += ["StrictHostKeyChecking=yes", "IdentitiesOnly=yes"]
    lines = ["      vars:", "        ansible_python_interpreter: /usr/bin/python3"]
    lines += ['        ansible_ssh_private_key_file: "{{ inventory_dir }}/key"']
    # The mesh's authority and what it knows of host keys go with the cluster: the next one by this name has others.
    lines += [f'        ssh_mesh_directory: "{{{{ inventory_dir }}}}/{MESH}"']
    return [*lines, "        ansible_ssh_common_args: >-", *(f"          -o {option}" for option in options)]


def known_host(names: Sequence[str], port: int, key: str) -> str:
    """Return a line of OpenSSH's known_hosts: a key under all names and addresses of a host."""
    return f"{','.join(names if port == 22 else [f'[{name}]:{port}' for name in names])} {key}"
