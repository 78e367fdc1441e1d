#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fabric_choose
short_description: Choose the network for the jobs of the cluster
description:
  - Takes the results of M(torchfleet.cluster.fabric_probe) from every node, and returns the next step. The role
    C(torchfleet.cluster.fabric) shows the order of the steps.
  - A network qualifies if every node has an address in it and reaches every other node over it, in both directions,
    with full packets, and over the NIC that has the address. If several qualify, the fastest is chosen.
  - If the head is not among O(workers), a network of the workers alone qualifies too. Launchers then reach them by
    another one that joins all nodes.
  - Fails if no network qualifies, with the reason for each network.
version_added: 0.1.0
author:
  - The torchfleet authors (@torchfleet)
options:
  nodes:
    description: The nodes of the cluster.
    type: list
    elements: str
    required: true
  workers:
    description: The nodes that run ranks. RDMA is judged over them alone. The default is all nodes.
    type: list
    elements: str
    version_added: 0.5.0
  listened:
    description: The result of O(torchfleet.cluster.fabric_probe#module:state=listen) on each node.
    type: dict
    default: {}
  seen:
    description:
      - The facts of each node, as O(listened) but without an agent. If the nodes have published a choice that is based
        on the same facts, it is kept and nothing is tested. Otherwise RV(state) is V(listen).
    type: dict
  reached:
    description: The result of O(torchfleet.cluster.fabric_probe#module:state=connect) on each node.
    type: dict
    default: {}
  measuring:
    description: The result of a second V(listen) on each node, if speeds have to be measured.
    type: dict
    default: {}
  measured:
    description: The result of O(torchfleet.cluster.fabric_probe#module:state=collect) on each node.
    type: dict
    default: {}
  earlier:
    description: RV(batches) of the previous call, if that asked for another measurement.
    type: list
    elements: dict
    default: []
    version_added: 0.5.0
  subnet:
    description: The network that the user requires. The default is any.
    type: str
    default: ''
  firewalls:
    description: The firewalls of each node, of M(torchfleet.cluster.node_facts), to name them if they stop the test.
    type: dict
    default: {}
    version_added: 0.5.0
  nccl_gid:
    description: Whether C(NCCL_IB_GID_INDEX) is published. The role describes the choices.
    type: str
    choices: [auto, always, never]
    default: auto
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
seealso:
  - module: torchfleet.cluster.fabric_probe
  - module: torchfleet.cluster.publish
"""

EXAMPLES = r"""
- name: Choose the network
  torchfleet.cluster.fabric_choose:
    nodes: "{{ ansible_play_hosts_all }}"
    listened: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'found'))) }}"
    reached: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'reached'))) }}"
  register: choice
  run_once: true
"""

RETURN = r"""
state:
  description: The next step, V(listen), V(connect), V(measure) or V(done).
  returned: success
  type: str
peers:
  description: The nodes that each node has to reach.
  returned: with V(connect)
  type: dict
steps:
  description: The measurements of each node. Empty until O(measuring) is given.
  returned: with V(measure)
  type: dict
batches:
  description:
    - All measurements so far, for O(earlier). A network counts as slow if it was slow three times, seconds apart.
  returned: with V(measure)
  type: list
  elements: dict
fabric:
  description: The content of C(fabric.json) of each node.
  returned: with V(done)
  type: dict
files:
  description: The text of C(fabric.json) and C(fabric.env) of each node.
  returned: with V(done)
  type: dict
publish:
  description: Whether each node needs these files, because it does not have them yet.
  returned: with V(done)
  type: dict
msg:
  description: The choice as a sentence.
  returned: with V(done)
  type: str
  sample: '10.91.0.0/24, the only network that connects all nodes; eth0 on n1, n2'
"""
