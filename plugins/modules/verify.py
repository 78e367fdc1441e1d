#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: verify
short_description: Plan the tests of a cluster, and judge their results
description:
  - The steps of the role P(torchfleet.cluster.verify#role) that run once for all nodes. V(plan) returns the nodes that
    answer, the measurements between them, and the launchers and backends to test. V(judge) takes all results, shows
    them, stores them as JSON, and fails if the cluster cannot run training.
  - A failure names its node and does not hide those of other nodes.
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
    description: The results of M(torchfleet.cluster.node_facts) by host name.
    type: dict
    required: true
  listened:
    description: The results of M(torchfleet.cluster.fabric_probe) with V(listen) by host name.
    type: dict
    required: true
  launchers:
    description: The launchers to test, of those that are installed. The default is all.
    type: list
    elements: str
    version_added: 0.6.0
  logins:
    description: The failures returned by M(torchfleet.cluster.ssh_mesh_prove).
    type: list
    elements: dict
    default: []
  certificate_days:
    description: RV(torchfleet.cluster.ssh_mesh_prove#module:certificate_days) of the head.
    type: int
    default: -1
    version_added: 0.5.0
  measured:
    description: The measurements of M(torchfleet.cluster.fabric_probe) with V(collect) by host name.
    type: dict
    default: {}
  runs:
    description: The results of M(torchfleet.cluster.launch) in a loop over RV(runs) of the plan.
    type: list
    elements: dict
    default: []
  container_image:
    description:
      - The image that jobs are to run in. One all-reduce is then run in it as well, which an entry of RV(runs) says.
      - V(none) is no image. The default is that of the inventory, C(torchfleet_container_image).
    type: str
    version_added: 0.5.0
  report:
    description: File on the controller for the report.
    type: path
    default: reports/verify.json
  floor_gbps:
    description:
      - The least bus bandwidth of every all-reduce, in GB/s (10^9 bytes a second, as nccl-tests tells it). The default
        is half of what the RDMA devices can carry for V(nccl) and V(xccl), and no limit for the others.
    type: float
  baseline:
    description:
      - File on the controller with the best rates that were measured on this cluster. It is made by the first proof. A
        run that is much slower is a finding.
    type: path
    default: reports/baseline.json
  cluster:
    description: Name of the cluster, by which its rates are kept apart from those of others in O(baseline).
    type: str
    default: ''
    version_added: 0.6.0
  baseline_reset:
    description: Make the baseline anew from this proof, because the cluster was changed on purpose.
    type: bool
    default: false
  matrix:
    description:
      - File on the controller with the links that were measured without a fault, and of which nodes. Every proof writes
        it.
    type: path
    default: reports/matrix.json
    version_added: 0.5.0
  all:
    description:
      - Test all links. With V(false), where some pairs of nodes are not in O(matrix), or one of their nodes has changed
        since, only those are tested, and the other links are kept as they were measured. If no pair is new, all are
        tested all the same.
    type: bool
    default: true
    version_added: 0.5.0
  ignore:
    description: Ids of findings that do not fail the task. They are still shown.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.choices.verify
"""

EXAMPLES = r"""
- name: Plan the tests
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
  description: The measurements of each node, for M(torchfleet.cluster.fabric_probe).
  returned: with O(state=plan)
  type: dict
runs:
  description: The jobs to launch.
  returned: with O(state=plan)
  type: list
  elements: dict
  sample:
    - workload: all_reduce_bench
      launcher: openmpi
      backend: gloo
      workload_args: [--min-bytes, 1M, --max-bytes, 16M, --factor, "16", --iterations, "5"]
      job_env: {}
      ranks_per_node: 1
      in_image: false
report:
  description: Path of the report.
  returned: with O(state=judge)
  type: str
baseline:
  description: Path of the baseline.
  returned: with O(state=judge), if it was changed
  type: str
"""
