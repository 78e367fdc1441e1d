#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: preflight
short_description: Check an inventory and its machines before anything is changed
description:
  - Takes the results of M(torchfleet.cluster.node_facts) from every node, and finds problems before they cause
    failures. Each finding has an id, a severity, the nodes, what was seen, why it matters, the source, and the fix.
  - An error fails the task, a warning does not. All findings are shown, and stored as JSON in O(report).
  - Changes nothing on any node. Use it through the role C(preflight), whose variables are these options.
version_added: 0.2.0
author:
  - The torchfleet authors (@torchfleet)
options:
  answers:
    description: The results of M(torchfleet.cluster.node_facts) by host name. Empty for a host that was not asked.
    type: dict
    required: true
  report:
    description: File on the controller for the report, relative to the directory where C(ansible-playbook) runs.
    type: path
    default: reports/preflight.json
  ignore:
    description: Ids of findings that do not fail the task. They are shown as ignored.
    type: list
    elements: str
    default: []
  min_disk_gb:
    description: Free space in GB that a worker without PyTorch needs in torchfleet's home.
    type: float
    default: 3.0
  min_tmp_mb:
    description: Free space in MB that is needed for temporary files.
    type: int
    default: 200
  min_shm_mb:
    description: Size of C(/dev/shm) in MB below which there is a warning.
    type: int
    default: 256
  max_clock_offset:
    description: Seconds by which a clock may differ from the controller's.
    type: float
    default: 5.0
  python_min:
    description: The oldest Python version that PyTorch is installed with.
    type: str
    default: '3.11'
  python_max:
    description: The newest Python version that PyTorch is installed with.
    type: str
    default: '3.14'
  supported_os:
    description: Distributions that cause no warning, each as C(ID VERSION_ID) or C(ID) of os-release.
    type: list
    elements: str
    default: [debian 12, debian 13]
  needs_root:
    description: Whether it is an error if the user cannot become root.
    type: bool
    default: false
  compiles:
    description: Whether a backend is compiled. That needs a compiler, or root, on one machine of each kind.
    type: bool
    default: false
  installs_tools:
    description: Whether a compiler is installed where it is missing on the machine that compiles.
    type: bool
    default: true
  prerequisites:
    description:
      - The switches of M(torchfleet.cluster.prerequisites), by name. What it will mend is shown, and is no error.
      - Empty if it does not run.
    type: dict
    default: {}
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
seealso:
  - module: torchfleet.cluster.node_facts
"""

EXAMPLES = r"""
- name: Read the facts of every node
  torchfleet.cluster.node_facts:
  register: seen

- name: Judge the facts
  torchfleet.cluster.preflight:
    answers: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'seen'))) }}"
    ignore: [TF-OS-UNTESTED]
  run_once: true
"""

RETURN = r"""
report:
  description:
    - Path of the report. It has the findings, the clocks, the drift and the facts of all nodes.
  returned: always
  type: str
  sample: /home/me/torchfleet/reports/preflight.json
msg:
  description: The outcome in one line.
  returned: always
  type: str
  sample: "1 error: TF-NO-PYTHON on n2; report: /home/me/torchfleet/reports/preflight.json"
"""
