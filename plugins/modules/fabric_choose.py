#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fabric_choose
short_description: Choose the network that carries the cluster
description:
  - Takes what M(torchfleet.cluster.fabric_probe) found on every node, and returns what comes next. The role
    C(torchfleet.cluster.fabric) shows the order.
  - A network is chosen if every node has an address in it and reaches every other node by it, in both directions, with
    full packets, and by the NIC that has the address. If there are several, the fastest.
  - Fails with the reason of each network if there is none.
version_added: 0.1.0
author:
  - The torchfleet authors (@torchfleet)
options:
  nodes:
    description: The nodes of the cluster.
    type: list
    elements: str
    required: true
  listened:
    description: What O(torchfleet.cluster.fabric_probe#module:state=listen) returned on each node.
    type: dict
    default: {}
  seen:
    description:
      - What each node told before, as O(listened) but without an agent. A choice that is published and rests on the
        same facts stands, and nothing has to be tried; else RV(state) is V(listen).
    type: dict
  reached:
    description: What O(torchfleet.cluster.fabric_probe#module:state=connect) returned on each node.
    type: dict
    default: {}
  measuring:
    description: What a second V(listen) returned on each node, if there is something to measure.
    type: dict
    default: {}
  measured:
    description: What O(torchfleet.cluster.fabric_probe#module:state=collect) returned on each node.
    type: dict
    default: {}
  earlier:
    description: RV(batches) of the choice before, if it was to measure once more.
    type: list
    elements: dict
    default: []
    version_added: 0.5.0
  subnet:
    description: The network that the user asks for.
    type: str
    default: ''
  nccl_gid:
    description: Whether C(NCCL_IB_GID_INDEX) is published. See the role.
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
- name: Choose
  torchfleet.cluster.fabric_choose:
    nodes: "{{ ansible_play_hosts_all }}"
    listened: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'found'))) }}"
    reached: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'reached'))) }}"
  register: choice
  run_once: true
"""

RETURN = r"""
state:
  description: What comes next, V(listen), V(connect), V(measure) or V(done).
  returned: success
  type: str
peers:
  description: For each node, whom it has to reach.
  returned: with V(connect)
  type: dict
steps:
  description: For each node, its part of the measurement. Empty until O(measuring) is given.
  returned: with V(measure)
  type: dict
batches:
  description:
    - What was measured so far, for O(earlier). A network is slow if it was so three times, seconds apart.
  returned: with V(measure)
  type: list
  elements: dict
fabric:
  description: For each node, what becomes its C(fabric.json).
  returned: with V(done)
  type: dict
files:
  description: For each node, the text of C(fabric.json) and C(fabric.env).
  returned: with V(done)
  type: dict
publish:
  description: For each node, whether it does not have those files yet.
  returned: with V(done)
  type: dict
msg:
  description: The choice for people.
  returned: with V(done)
  type: str
  sample: '10.91.0.0/24, the only network that joins all nodes; eth0 on n1, n2'
"""
