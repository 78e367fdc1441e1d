#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: system_groups
short_description: Create groups that own devices, and add users to them, as root only where some are missing
description:
  - Looks as the user of the connection. Becomes root, if the task says C(become), only if something is missing.
  - Notes on the node what it added, for M(torchfleet.cluster.uninstall).
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  role:
    description: The role that needs the groups. Every message begins with it.
    type: str
    required: true
  names:
    description: The groups.
    type: list
    elements: str
    required: true
  users:
    description: The users that are added to each group. They have it from their next login on.
    type: list
    elements: str
    required: true
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Says whether anything is missing, and adds nothing. Needs no root.
seealso:
  - module: torchfleet.cluster.uninstall
"""

EXAMPLES = r"""
- name: Let a user open the GPUs
  torchfleet.cluster.system_groups:
    role: site
    names: [render, video]
    users: [me]
  become: true
"""

RETURN = r"""
added:
  description: The groups that were created, and C(group:user) for each user that was added.
  returned: success
  type: list
  elements: str
  sample: [render, "render:me"]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.groups import add, lacking
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.packages import PackageError


def main() -> None:
    """Entry of the module."""
    options = {
        "role": {"type": "str", "required": True},
        "names": {"type": "list", "elements": "str", "required": True},
        "users": {"type": "list", "elements": "str", "required": True},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    role = module.params["role"]
    try:
        wanted = lacking(module.params["names"], module.params["users"])
        if wanted and not module.check_mode:
            add(role, wanted)
    except (PackageError, OSError) as error:
        module.fail_json(msg=f"{role}: {error}")
    module.exit_json(changed=bool(wanted), added=[*wanted.groups, *wanted.members])


if __name__ == "__main__":
    main()
