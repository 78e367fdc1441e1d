#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gather
short_description: Bring home the runs whose controller had died
description:
  - A job outlives a controller that is killed just long enough to end cleanly; its files then wait on the head.
    This brings them to the run directory they were meant for. Only runs that this controller had started are taken, and
    the one that O(job_id) names.
  - A controller is a random word in C(~/.torchfleet/controller) of its user, made once. Runs of others are listed.
  - Run it after M(torchfleet.cluster.reap), as C(clean.yml) does.
version_added: 0.1.0
author:
  - The torchfleet authors (@torchfleet)
options:
  job_id:
    description: A run to fetch whoever started it, into O(runs_dir) if this controller has no plan of it.
    type: str
    default: ''
    version_added: 0.5.0
  drop_run:
    description: The run that O(job_id) names is not fetched but dropped, with all its files.
    type: bool
    default: false
    version_added: 0.5.0
  drop_after:
    description: Drops the runs of other controllers that nobody fetched for this many days, more than 0.
    type: float
    version_added: 0.5.0
  runs_dir:
    description: Directory on the controller for runs that were planned elsewhere.
    type: path
    default: runs
    version_added: 0.5.0
  fetch_limit:
    description: Bytes of all files of a run that come home, such as C(2G), where half of the free disk is more.
    type: str
    version_added: 0.5.0
  only_check:
    description: Refuses mistakes in the other options and does no more. C(clean.yml) asks for that before it acts.
    type: bool
    default: false
    version_added: 0.5.0
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
attributes:
  check_mode:
    description: Says what would come home and brings nothing.
seealso:
  - module: torchfleet.cluster.launch
  - module: torchfleet.cluster.reap
"""

EXAMPLES = r"""
- name: Bring home the runs that wait on the head
  torchfleet.cluster.gather:
  run_once: true
"""

RETURN = r"""
runs:
  description: One entry for each run that came home, or would in check mode. One that was home already is not fetched
    again; the head lets it go.
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
  description: The same of the runs that were dropped, or would be.
  returned: success
  type: list
  elements: dict
others:
  description: The same of the runs of other controllers, which stay where they are.
  returned: success
  type: list
  elements: dict
"""
