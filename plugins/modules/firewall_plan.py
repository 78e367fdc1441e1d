#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: firewall_plan
short_description: Work out which addresses the firewalls of a cluster must let in
description:
  - Takes the networks of all nodes. If the choice of role C(fabric) still stands, the addresses are those of the nodes
    in the chosen network. Otherwise they are those in every network that could be chosen, so that the networks can be
    tested. They are addresses of the nodes, never whole networks.
  - With O(chosen_only), they are those in the networks that nodes have published, now or in an earlier run.
  - Changes nothing.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  nodes:
    description: The nodes of the cluster.
    type: list
    elements: str
    required: true
  seen:
    description: The result of M(torchfleet.cluster.fabric_facts) on each node.
    type: dict
    required: true
  subnet:
    description: The variable C(fabric_subnet). C(fabric_nic), C(fabric_address) and C(fabric_rdma) are read
      from the variables of the hosts.
    type: str
    default: ''
  nccl_gid:
    description: The variable C(fabric_nccl_gid).
    type: str
    default: auto
  chosen_only:
    description: Whether to leave out networks that were not chosen, which are open only while they are tested.
    type: bool
    default: false
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
seealso:
  - module: torchfleet.cluster.firewall
  - module: torchfleet.cluster.fabric_choose
"""

EXAMPLES = r"""
- name: Plan whom the firewalls let in
  torchfleet.cluster.firewall_plan:
    nodes: "{{ ansible_play_hosts_all }}"
    seen: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'found'))) }}"
  register: plan
  run_once: true
"""

RETURN = r"""
admitted:
  description:
    - By the name of the node. C(addresses) may reach every port of it; by C(ssh_addresses), which may log in, Ansible
      reaches the nodes in other networks.
    - With O(chosen_only), only of nodes that have published a network which another one has published too.
  returned: success
  type: dict
  sample: {n1: {addresses: [10.91.0.11, 10.91.0.12], ssh_addresses: []}}
settled:
  description: Whether the network was chosen already. If not, the firewalls are to be narrowed after the choice.
  returned: success
  type: bool
  sample: true
"""
