#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: pods_clean
short_description: End jobs in the pods of a Kubernetes cluster, and take them away
description:
  - Deletes what M(torchfleet.cluster.launch) made in the cluster for a job, or for all jobs in a namespace, and looks
    whether anything is left. These are Jobs, or the job of an operator, pods, services, ConfigMaps and Secrets.
  - They are found by their labels; with O(job_id) whoever started the job. Pods have their time to save. Nothing else
    is touched.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  target:
    description:
      - Where the jobs are, as O(torchfleet.cluster.launch#module:target) says it. V(runai) needs O(pod_project), or its
        O(pod_namespace).
    type: str
    choices: [kubernetes, pytorchjob, trainjob, mpijob, runai]
    default: kubernetes
  job_id:
    description: The job. Without it all jobs in the namespace that this user of this controller started and that ended.
    type: str
  pod_namespace:
    description: The namespace. The default is that of the context.
    type: str
  pod_context:
    description: The context of C(kubectl). The default is its current one.
    type: str
  pod_project:
    description:
      - The project of Run:ai. Its namespace is C(runai-) and the project, unless O(pod_namespace) is given.
      - A workload that M(torchfleet.cluster.launch) submitted to Run:ai is deleted by C(runai), if it is of this one.
    type: str
requirements:
  - C(kubectl) on the controller, and C(runai) for what was submitted to Run:ai
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
attributes:
  check_mode:
    description: Names the jobs, and deletes nothing.
seealso:
  - module: torchfleet.cluster.launch
  - module: torchfleet.cluster.reap
"""

EXAMPLES = r"""
- name: End a job in the cluster
  torchfleet.cluster.pods_clean:
    job_id: 20261120-101500-mnist-3f9a2c
  run_once: true
"""

RETURN = r"""
jobs:
  description: The jobs that were ended and taken away.
  returned: success
  type: list
  elements: str
  sample: [20261120-101500-mnist-3f9a2c]
"""
