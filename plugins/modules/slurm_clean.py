#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: slurm_clean
short_description: End a job on nodes of Slurm
description:
  - Cancels what M(torchfleet.cluster.launch) started with O(ignore:target=slurm), and looks whether it is gone.
  - Jobs are found in C(squeue) of the head by their name and comment, among those of the user that logs in there.
    Nothing else is touched. Without O(job_id) nothing is ended; jobs that run or wait are named.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  job_id:
    description: The job.
    type: str
requirements:
  - C(squeue) and C(scancel) on the head
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
attributes:
  check_mode:
    description: Names the jobs, and ends none.
seealso:
  - module: torchfleet.cluster.launch
  - module: torchfleet.cluster.pods_clean
"""

EXAMPLES = r"""
- name: End a job on nodes of Slurm
  torchfleet.cluster.slurm_clean:
    job_id: 20261120-101500-mnist-3f9a2c
  run_once: true
"""

RETURN = r"""
jobs:
  description: The jobs that were ended.
  returned: success
  type: list
  elements: str
  sample: [20261120-101500-mnist-3f9a2c]
"""
