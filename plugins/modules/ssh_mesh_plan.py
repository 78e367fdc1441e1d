#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: ssh_mesh_plan
short_description: Decide on the controller how the nodes of a cluster trust each other
description:
  - Second step of the role P(torchfleet.cluster.ssh_mesh#role). Refuses what cannot work or must not be done silently
    (a changed host key, cloned machines, two nodes at one address, a wrong clock), keeps the certificate authorities
    of the cluster and signs, and returns the work of each node.
  - Nodes that were part of the mesh and are not in this play (C(--limit), unreachable) stay in it as they were.
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
    description: Directory on the controller for the certificate authorities and what is known about the nodes.
    type: path
    required: true
  members:
    description: What M(torchfleet.cluster.ssh_mesh_keys) returned for each node.
    type: list
    elements: dict
    required: true
  trust:
    description: How keys are trusted.
    type: str
    choices: [certificates, keys]
    default: certificates
  any_to_any:
    description: Whether every node logs in to every other.
    type: bool
    default: false
  extra_sources:
    description: Addresses or networks, besides the nodes' own, from which their keys may be used.
    type: list
    elements: str
    default: []
  valid_days:
    description: For how many days certificates are valid.
    type: int
    default: 365
  rotate:
    description: Make new authorities and certificates.
    type: bool
    default: false
  accept_changed:
    description: Nodes whose host key may have changed since the last setup.
    type: list
    elements: str
    default: []
  state:
    description: Whether there shall be a mesh.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Makes and signs nothing.
"""

EXAMPLES = r"""
- name: Decide how the nodes trust each other
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
  description: The nodes that have something to do.
  returned: success
  type: list
  elements: str
proof:
  description: The nodes of the mesh, for M(torchfleet.cluster.ssh_mesh_prove).
  returned: success
  type: list
  elements: dict
findings:
  description: What is no reason to refuse, but should be known.
  returned: success
  type: list
  elements: str
"""
