#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_keys
short_description: Show the host keys of the nodes that are not known here, and save them
description:
  - Fails with one table of all host keys of the play that the controller's ssh does not know, and says what to type.
  - With O(accept), saves what is in the table in the user's C(known_hosts). Nothing else is trusted.
  - Uses Ansible's options of the connection, with jump hosts, ports and aliases. Skips nodes that Ansible does not
    reach by ssh, or whose host keys the user does not want to be checked, and nodes that do not answer.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  accept:
    description: The digest of the table that the user has compared. The table must still be the same.
    type: str
    default: ''
  replace:
    description: Nodes whose known key may be replaced by the one that they show now.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
attributes:
  check_mode:
    description: Saves nothing.
seealso:
  - module: torchfleet.cluster.preflight
"""

EXAMPLES = r"""
- name: Show the host keys that are not known here
  torchfleet.cluster.host_keys:
  run_once: true
"""

RETURN = r""" # """
