#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: ssh_mesh_apply
short_description: Set up a node's part of the SSH mesh
description:
  - Third step of the role P(torchfleet.cluster.ssh_mesh#role). Activates new keys, writes ssh's files and our block in
    C(authorized_keys), and runs an sshd of the user's own if the plan has one.
  - As root (with C(become)) it also writes a drop-in for the system's sshd, which is tested with C(sshd -t) before it
    is activated, or the systemd unit of the user's own sshd. The user's files are still written as the user.
  - A reload of sshd does not close open sessions.
version_added: 0.2.0
author:
  - The torchfleet authors (@torchfleet)
options:
  cluster:
    description: Name of the cluster. It marks our block in C(authorized_keys).
    type: str
    required: true
  work:
    description: The result of M(torchfleet.cluster.ssh_mesh_plan) for this node.
    type: dict
    required: true
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Reports what would change, and changes nothing.
seealso:
  - module: torchfleet.cluster.ssh_mesh_plan
"""

EXAMPLES = r"""
- name: Set up this node's part of the mesh
  torchfleet.cluster.ssh_mesh_apply:
    cluster: mine
    work: "{{ plan.nodes[inventory_hostname] }}"
"""

RETURN = r"""
changes:
  description: The changes that were made, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [/home/fleet/.torchfleet/ssh/config written]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.apply import apply
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.files import MeshFailed


def main() -> None:
    """Entry of the module."""
    options = {"cluster": {"type": "str", "required": True}, "work": {"type": "dict", "required": True}}
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    try:
        changes = apply(module.params["cluster"], module.params["work"], module.check_mode)
    except MeshFailed as error:
        module.fail_json(msg=f"ssh_mesh: {error}")
    module.exit_json(changed=bool(changes), changes=changes)


if __name__ == "__main__":
    main()
