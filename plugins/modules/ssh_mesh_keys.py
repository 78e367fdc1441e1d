#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: ssh_mesh_keys
short_description: Read a node's SSH host keys and addresses, and create its keys for the mesh
description:
  - First step of the role P(torchfleet.cluster.ssh_mesh#role). Reads the public host keys on the node itself, over a
    connection that is already trusted, so no key is trusted on first use.
  - Creates the ed25519 key with which the node logs in to others, and the host key of an sshd of its own. Private keys
    stay on the node. A new key is stored beside the old one until M(torchfleet.cluster.ssh_mesh_apply) activates it.
  - This module has a corresponding action plugin. It checks form and size of every field of the node's answer, and
    fails if one is wrong. Name, address, port and the like are taken from the task, not from the answer.
version_added: 0.2.0
author:
  - The torchfleet authors (@torchfleet)
options:
  name:
    description: Name of the node in the inventory.
    type: str
    required: true
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  home:
    description: torchfleet's directory on the node.
    type: path
    default: ~/.torchfleet
  address:
    description: Address at which other nodes reach this one. The default is C(ansible_host).
    type: str
    default: ''
  port:
    description: Port at which other nodes reach its sshd. V(0) is Ansible's port, or 2222 for an sshd of its own.
    type: int
    default: 0
  sshd:
    description: The sshd that others log in to, the system's or the user's own.
    type: str
    choices: [system, own]
    default: system
  become:
    description: Whether the role may write files as root.
    type: bool
    default: false
  client:
    description: Whether the node logs in to others, for which it needs a key.
    type: bool
    default: false
  rotate:
    description: Create new keys even if the node has some.
    type: bool
    default: false
  state:
    description: With V(absent) no keys are created.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Creates no keys, and reads the rest.
seealso:
  - module: torchfleet.cluster.ssh_mesh_plan
"""

EXAMPLES = r"""
- name: Read the keys of the node
  torchfleet.cluster.ssh_mesh_keys:
    name: "{{ inventory_hostname }}"
    cluster: mine
"""

RETURN = r"""
member:
  description: The facts about the node that M(torchfleet.cluster.ssh_mesh_plan) takes.
  returned: success
  type: dict
  sample:
    name: n2
    user: fleet
    host_keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKxpMyBYQ2J6yQkL7oqJ1n5p0xMPVhFJcHwYQ0hQXv5d]
    addresses: [192.0.2.12, 198.51.100.12]
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.apply import applied
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.keys import KeyFailed
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.survey import Request, survey

OPTIONS = {
    "name": {"type": "str", "required": True},
    "cluster": {"type": "str", "required": True},
    "home": {"type": "path", "default": "~/.torchfleet"},
    "address": {"type": "str", "default": ""},
    "port": {"type": "int", "default": 0},
    "sshd": {"type": "str", "choices": ["system", "own"], "default": "system"},
    "become": {"type": "bool", "default": False},
    "client": {"type": "bool", "default": False},
    "rotate": {"type": "bool", "default": False},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def main() -> None:
    """Entry of the module."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    given = module.params
    present = given["state"] == "present"
    request = Request(
        name=given["name"],
        cluster=given["cluster"],
        home=given["home"],
        client=given["client"],
        sshd=given["sshd"],
        fresh=given["rotate"] and present,
    )
    try:
        found = survey(request, make=present and not module.check_mode)
    except KeyFailed as error:
        module.fail_json(msg=f"ssh_mesh: {given['name']}: {error}")
    found["applied"] = applied(os.path.join(str(found["directory"]), f"applied-{given['name']}.json"))
    passed_on = {name: given[name] for name in ("name", "address", "port", "sshd", "become", "client")}
    module.exit_json(changed=found.pop("made"), member={**found, **passed_on})


if __name__ == "__main__":
    main()
