#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: ssh_mesh_prove
short_description: Test the logins from the head to all nodes, and between all nodes
description:
  - Last step of the role P(torchfleet.cluster.ssh_mesh#role). Logs in to all nodes at the same time, as jobs do, with
    strict host keys. Lists every failed login with its cause, in one message.
version_added: 0.2.0
author:
  - The torchfleet authors (@torchfleet)
options:
  name:
    description: Inventory name of the node that the module runs on.
    type: str
    required: true
  nodes:
    description: The nodes to log in to, as M(torchfleet.cluster.ssh_mesh_plan) returns them.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the node.
        type: str
        required: true
      config:
        description: The mesh's ssh configuration on that node. Empty if that node does not log in to others.
        type: str
        default: ''
      address:
        description: Its address, for messages.
        type: str
        required: true
      port:
        description: Port of its sshd, for messages.
        type: int
        default: 22
  any_to_any:
    description: Whether to test the logins from each node to all others too.
    type: bool
    default: false
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Logs in as well, unless the mesh does not exist yet.
"""

EXAMPLES = r"""
- name: Log in to every node
  torchfleet.cluster.ssh_mesh_prove:
    name: n1
    nodes: "{{ plan.proof }}"
"""

RETURN = r"""
failures:
  description: The logins that failed.
  returned: always
  type: list
  elements: dict
  sample:
    - from: n1
      to: n3
      why: 'nothing listens on 192.0.2.13 port 2201: start sshd there, or set its port (ssh_mesh_port)'
certificate_days:
  description: For how many days the certificate of the node is valid; -1 if it has none.
  returned: always
  type: int
  sample: 364
  version_added: 0.5.0
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.proof import days_left, prove, tell

NODE = {
    "name": {"type": "str", "required": True},
    "config": {"type": "str", "default": ""},
    "address": {"type": "str", "required": True},
    "port": {"type": "int", "default": 22},
}
OPTIONS = {
    "name": {"type": "str", "required": True},
    "nodes": {"type": "list", "elements": "dict", "required": True, "options": NODE},
    "any_to_any": {"type": "bool", "default": False},
}


def main() -> None:
    """Entry of the module."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    nodes = {node["name"]: node for node in module.params["nodes"]}
    config = nodes[module.params["name"]]["config"]
    days = days_left(config)
    if module.check_mode and not os.path.exists(config):
        module.exit_json(changed=False, failures=[], certificate_days=days)
    failures = prove(module.params["name"], nodes, module.params["any_to_any"])
    if failures:
        module.fail_json(msg=f"ssh_mesh: {tell(failures)}", failures=failures, certificate_days=days)
    module.exit_json(changed=False, failures=[], certificate_days=days)


if __name__ == "__main__":
    main()
