#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: ssh_mesh_plan
short_description: Plan which nodes of a cluster trust each other, and sign their certificates
description:
  - Second step of the role P(torchfleet.cluster.ssh_mesh#role). Refuses what cannot work or needs a decision (a changed
    host key, cloned machines, two nodes at one address, a wrong clock), keeps the cluster's certificate authorities,
    signs certificates, and returns the work of each node.
  - Nodes of the mesh that are not in this play (C(--limit), unreachable) stay in the mesh unchanged.
  - This module has a corresponding action plugin and runs on the controller only.
version_added: 0.2.0
author:
  - The torchfleet authors (@torchfleet)
options:
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  directory:
    description: Directory on the controller for the certificate authorities and the known host keys of the nodes.
    type: path
    required: true
  members:
    description: The results of M(torchfleet.cluster.ssh_mesh_keys) from all nodes.
    type: list
    elements: dict
    required: true
  former:
    description: The directory of the cluster before it had a name of its own. Nodes must not be in both.
    type: str
    default: ''
    version_added: 0.5.0
  inventory:
    description:
      - The directory of the inventory, of a cluster that has no name of its own. It is noted, so that the cluster is
        known after the inventory was moved.
    type: str
    default: ''
    version_added: 0.6.0
  leaving:
    description: Nodes of the inventory that leave the cluster. The mesh forgets them.
    type: list
    elements: str
    default: []
    version_added: 0.5.0
  shut_out:
    description:
      - Those of O(leaving) that may be hostile. Their machines are known by their host keys, and refused from now on,
        until they are in O(accept_changed).
    type: list
    elements: str
    default: []
    version_added: 0.6.0
  trust:
    description: Whether nodes trust certificates or single keys.
    type: str
    choices: [certificates, keys]
    default: certificates
  any_to_any:
    description: Whether every node can log in to every other node, not only the head.
    type: bool
    default: false
  extra_sources:
    description: More addresses or networks from which the nodes' keys are accepted, besides the nodes' own addresses.
    type: list
    elements: str
    default: []
  valid_days:
    description: Days for which certificates are valid.
    type: int
    default: 365
  rotate:
    description: Create new certificate authorities and certificates.
    type: bool
    default: false
  accept_changed:
    description: Nodes whose host key may have changed since the last setup.
    type: list
    elements: str
    default: []
  state:
    description: V(present) sets the mesh up, V(absent) removes it.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Creates and signs nothing.
"""

EXAMPLES = r"""
- name: Plan the SSH mesh
  torchfleet.cluster.ssh_mesh_plan:
    cluster: mine
    directory: ~/.torchfleet/ca/mine
    members: "{{ ansible_play_hosts | map('extract', hostvars, 'keys') | map(attribute='member') }}"
  register: plan
  run_once: true
"""

RETURN = r"""
nodes:
  description: The work of each node by its name, for M(torchfleet.cluster.ssh_mesh_apply).
  returned: success
  type: dict
open:
  description: The nodes on which something has to change.
  returned: success
  type: list
  elements: str
proof:
  description: The nodes of the mesh, for M(torchfleet.cluster.ssh_mesh_prove).
  returned: success
  type: list
  elements: dict
findings:
  description: Warnings.
  returned: success
  type: list
  elements: str
"""
