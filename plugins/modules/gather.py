#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gather
short_description: Fetch the results of runs whose controller died
description:
  - If the controller is killed, its job ends cleanly and keeps its files on the head. This module fetches them to the
    planned run directory. It takes the runs that this controller started, and the run that O(job_id) names.
  - A controller is identified by a random word in its user's C(~/.torchfleet/controller), created once. Runs of other
    controllers are listed.
  - Use it after M(torchfleet.cluster.reap), as C(clean.yml) does.
version_added: 0.1.0
author:
  - The torchfleet authors (@torchfleet)
options:
  job_id:
    description: A run to fetch, whoever started it. It goes to O(runs_dir) if this controller did not plan it.
    type: str
    default: ''
    version_added: 0.5.0
  drop_run:
    description: Delete the run that O(job_id) names, with all its files, instead of fetching it.
    type: bool
    default: false
    version_added: 0.5.0
  drop_after:
    description: Delete runs of other controllers that were not fetched for this many days, more than 0.
    type: float
    version_added: 0.5.0
  runs_dir:
    description: Directory on this controller for runs that another controller planned.
    type: path
    default: runs
    version_added: 0.5.0
  fetch_limit:
    description: Limit for the bytes of a run's files that are fetched, such as C(2G), besides half of the free disk.
    type: str
    version_added: 0.5.0
  only_check:
    description: Check the other options and do nothing else. C(clean.yml) does this before it changes anything.
    type: bool
    default: false
    version_added: 0.5.0
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
attributes:
  check_mode:
    description: Lists the runs that would be fetched, and fetches none.
seealso:
  - module: torchfleet.cluster.launch
  - module: torchfleet.cluster.reap
"""

EXAMPLES = r"""
- name: Fetch the runs that are stored on the head
  torchfleet.cluster.gather:
  run_once: true
"""

RETURN = r"""
runs:
  description: One entry for each run that was fetched, or would be in check mode. A run that was fetched before is not
    fetched again, and its files on the head are deleted.
  returned: success
  type: list
  elements: dict
  sample:
    - job_id: 20261120-101500-mnist-3f9a2c
      run_dir: /home/me/torchfleet/runs/20261120-101500-mnist-3f9a2c
      state: lost
      own: true
      seconds: 3600.5
dropped:
  description: The same for the runs that were deleted, or would be.
  returned: success
  type: list
  elements: dict
others:
  description: The same for the runs of other controllers, which are left alone.
  returned: success
  type: list
  elements: dict
"""
