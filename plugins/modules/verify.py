#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: verify
short_description: Plan the proof of a cluster, and judge what came of it
description:
  - The steps of the role P(torchfleet.cluster.verify#role) that are one for all nodes. V(plan) says which nodes answer,
    in which rounds they measure each other, and which launchers and backends are to be tried. V(judge) takes all that
    came back, shows it, keeps it as JSON, and fails if the cluster is not fit to train on.
  - One node's failure names the node and does not hide the others.
version_added: 0.2.0
author:
  - The torchfleet authors (@torchfleet)
options:
  state:
    description: The step.
    type: str
    choices: [plan, judge]
    required: true
  answers:
    description: What M(torchfleet.cluster.node_facts) returned, by the name of the host.
    type: dict
    required: true
  listened:
    description: What M(torchfleet.cluster.fabric_probe) with V(listen) returned, by the name of the host.
    type: dict
    required: true
  logins:
    description: The failures that M(torchfleet.cluster.ssh_mesh_prove) returned.
    type: list
    elements: dict
    default: []
  measured:
    description: What M(torchfleet.cluster.fabric_probe) with V(collect) measured, by the name of the host.
    type: dict
    default: {}
  runs:
    description: What M(torchfleet.cluster.launch) returned in a loop over RV(runs) of the plan.
    type: list
    elements: dict
    default: []
  report:
    description: File on the controller for the report.
    type: path
    default: reports/verify.json
  ignore:
    description: Ids of findings that do not fail the proof. They are still shown.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - torchfleet.cluster.attributes
"""

EXAMPLES = r"""
- name: Plan
  torchfleet.cluster.verify:
    state: plan
    answers: "{{ facts_by_host }}"
    listened: "{{ listened_by_host }}"
  run_once: true
"""

RETURN = r"""
nodes:
  description: The nodes that answer.
  returned: with O(state=plan)
  type: list
  elements: str
logins:
  description: The nodes to log in to, for M(torchfleet.cluster.ssh_mesh_prove).
  returned: with O(state=plan)
  type: list
  elements: dict
steps:
  description: The schedule of each node for M(torchfleet.cluster.fabric_probe).
  returned: with O(state=plan)
  type: dict
runs:
  description: What is to be launched.
  returned: with O(state=plan)
  type: list
  elements: dict
  sample:
    - {launcher: openmpi, backend: gloo}
report:
  description: Path of the report.
  returned: with O(state=judge)
  type: str
"""
