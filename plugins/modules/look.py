#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: look
short_description: Tell why a job does not go on
description:
  - Looks at the ranks of a job that runs, twice within some seconds, and tells in one sentence who keeps it from going
    on, with host, file and line, and the collective that the others wait in. Then come the stacks of all ranks, those
    that are the same together.
  - Any controller that reaches the head as the same user may do so. The job is not ended, and goes on as before.
  - What moves between the two looks is slow, and nobody is named. Where something is not known the sentence says so.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  job_id:
    description: The job. Without it the only job that runs.
    type: str
  runs_dir:
    description: Directory on this controller for the runs. All evidence is written to C(<job id>/diagnosis) there.
    type: path
    default: runs
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
attributes:
  check_mode:
    description: Nothing is changed in any case.
seealso:
  - module: torchfleet.cluster.launch
  - module: torchfleet.cluster.jobs
"""

EXAMPLES = r"""
- name: Look at a job
  torchfleet.cluster.look:
    job_id: 20261120-101500-mnist-3f9a2c
  run_once: true
"""

RETURN = r"""
job_id:
  description: The job.
  returned: success
  type: str
  sample: 20261120-101500-mnist-3f9a2c
verdict:
  description: >-
    C(blamed), C(mismatch) (all wait, in different calls), C(all_wait) (in the same call), C(slow), C(no_wait) (no rank
    waits for another) or C(unknown).
  returned: success
  type: str
  sample: blamed
ranks:
  description: The ranks to blame; with C(mismatch) those of the smaller side. Empty where that is not known.
  returned: success
  type: list
  elements: int
  sample: [1]
sentence:
  description: The verdict for people.
  returned: success
  type: str
  sample: >-
    rank 1 on n2 is sleeping or waiting at train.py:40 in load; ranks 0,2-3 wait for it in all_reduce #17 at train.py:31
diagnosis:
  description: Directory on the controller with all evidence.
  returned: success
  type: str
  sample: /home/me/torchfleet/runs/20261120-101500-mnist-3f9a2c/diagnosis
"""
