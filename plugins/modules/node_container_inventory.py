#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_container_inventory
short_description: Write an inventory of node containers, with pinned host keys
description:
  - Writes C(hosts.yml) and C(known_hosts) from the answers of M(torchfleet.cluster.node_container), beside the key that
    opens the containers. Host keys that were read in the containers are pinned for their names and addresses.
  - The groups C(head) and C(workers), slots and addresses are those of the machines.
  - A directory with anything else is refused, and only our own files are removed.
version_added: 0.6.0
author:
  - The torchfleet authors (@torchfleet)
options:
  state:
    description:
      - V(key) makes the key unless it is there. V(present) writes the files. V(absent) removes all of it, and
        what the SSH mesh keeps beside them.
    type: str
    choices: [key, present, absent]
    default: present
  directory:
    description: The directory on the controller.
    type: path
    required: true
  answers:
    description: Name of the variable in which every machine has registered its result. Required for O(state=present).
    type: str
    default: ''
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
attributes:
  check_mode:
    description: Writes and removes nothing.
  diff_mode:
    description: Shows the files before and after.
    support: full
seealso:
  - module: torchfleet.cluster.node_container
"""

EXAMPLES = r"""
- name: Write the inventory
  torchfleet.cluster.node_container_inventory:
    directory: "{{ playbook_dir }}/inventory/nodes"
    answers: found
  run_once: true
"""

RETURN = r"""
key:
  description: The public key that opens the containers. Empty in check mode if it is not made yet.
  returned: success, with O(state=key)
  type: str
  sample: ssh-ed25519 AAAA... torchfleet-nodes
msg:
  description: The outcome as a sentence.
  returned: always
  type: str
"""
