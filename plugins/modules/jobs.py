#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: jobs
short_description: List, follow and end the jobs of a head
description:
  - Asks the head which jobs it runs or has run, follows one live, waits for it, shows what its ranks wrote, or ends it.
  - Any controller that reaches the head as the same user may do so. The files of a job that is over are fetched by the
    controller that started it, or by C(clean.yml).
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  do:
    description:
      - V(list) shows the jobs. With V(attach) the job's output and progress are shown until it is over, with V(wait)
        only how it ended. Ctrl-C leaves the job alone.
      - V(logs) fetches what ranks have written to stdout and stderr until now, and shows the end of it. A controller
        that did not start the job keeps nothing of it.
      - V(collect) also fetches the files that match O(torchfleet.cluster.launch#module:collect), on the controller that
        started the job. V(cancel) ends the job, or takes one that waits out of the queue.
    type: str
    choices: [list, attach, wait, logs, collect, cancel]
    default: list
  job_id:
    description: The job. Required unless O(do=list).
    type: str
  show_ranks:
    description: Ranks whose output V(logs) shows the end of, as a list, or V(all).
    type: raw
    default: [0]
  runs_dir:
    description: Directory on this controller for the runs.
    type: path
    default: runs
  fetch_limit:
    description: Limit for the bytes of a run's files that are fetched.
    type: str
    default: 1G
  collect_every:
    description:
      - Seconds from one collection to the next while V(attach) or V(wait) follows a job that this controller started.
        The first one is at once. The default is what O(torchfleet.cluster.launch#module:collect_every) was when the job
        was started.
    type: float
  result_query:
    description: JMESPath expression. Its value in C(result.json) is printed as JSON at the end.
    type: str
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
attributes:
  check_mode:
    description: Only V(cancel) changes something, and does nothing then.
seealso:
  - module: torchfleet.cluster.launch
  - module: torchfleet.cluster.gather
"""

EXAMPLES = r"""
- name: List the jobs
  torchfleet.cluster.jobs:
  run_once: true

- name: Wait for a job
  torchfleet.cluster.jobs:
    do: wait
    job_id: 20261120-101500-mnist-3f9a2c
  run_once: true
"""

RETURN = r"""
jobs:
  description: One entry for each job. C(position) is the place of one that waits in the queue, else 0;
    C(restarts) how often its head has started it again. C(owner) is who started it, as user@controller, and C(own)
    whether that was this controller. C(progress) is the share of its work that is done, 0 to 1, as its ranks reported
    it, and C(seconds_left) the seconds that one which runs still takes at its pace. Both are null if not known.
  returned: with O(do=list)
  type: list
  elements: dict
  sample:
    - job_id: 20261120-101500-mnist-3f9a2c
      state: running
      owner: alice@laptop
      own: true
      fetched: false
      seconds: 12.5
      restarts: 0
      position: 0
      ranks: 4
      hosts: [n1, n2]
      launcher: openmpi
      backend: gloo
      values: {step: 3, steps: 4, loss: 0.25}
      progress: 0.75
      seconds_left: 4.2
state:
  description: C(running), or how the job ended. C(cancelled) of one that was taken out of the queue, too.
  returned: unless O(do=list)
  type: str
  sample: succeeded
run_dir:
  description: Directory on the controller with the files of the job.
  returned: if they were fetched
  type: str
  sample: /home/me/torchfleet/runs/20261120-101500-mnist-3f9a2c
"""
