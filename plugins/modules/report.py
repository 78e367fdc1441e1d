#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: report
short_description: Make reports of runs, and lay several over each other
description:
  - Makes C(report.html) in the directory of each run anew, from the files that lie there. C(train.yml) makes it after
    every run; this is for runs of earlier versions, and after C(verify.yml) has measured the links.
  - Of several runs it also writes one page that says what differed between them, with their curves over each other.
  - A file that is missing or is not what it must be is named in the report.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  runs:
    description:
      - Ids of runs, or globs such as V(*mnist*), as a list or with commas between them. V(latest) is the newest.
    type: raw
    default: latest
  runs_dir:
    description: Directory on this controller with the runs.
    type: path
    default: runs
  verify_report:
    description:
      - The report of C(verify.yml). If it has links between nodes of a run, in the network of that run, they are
        shown.
    type: path
    default: reports/verify.json
  comparison:
    description: The page of several runs.
    type: path
    default: reports/runs.html
  export:
    description:
      - Write the run for programs of others too, as a list or with commas between them.
      - V(tensorboard) writes C(tensorboard/rank<n>) and C(tensorboard/node-<host>) into the run directory, event files
        of what ranks reported and of what they took of their nodes.
      - V(prometheus) writes C(metrics.prom), gauges for the textfile collector of node_exporter.
    type: raw
    default: []
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
attributes:
  check_mode:
    description: Writes nothing, and returns which pages it would write.
seealso:
  - module: torchfleet.cluster.launch
"""

EXAMPLES = r"""
- name: Make the report of the newest run anew
  torchfleet.cluster.report:
  run_once: true

- name: Compare two runs
  torchfleet.cluster.report:
    runs: [before, after]
  run_once: true
"""

RETURN = r"""
reports:
  description: The page of each run.
  returned: success
  type: list
  elements: str
  sample: [/home/me/torchfleet/runs/before/report.html, /home/me/torchfleet/runs/after/report.html]
comparison:
  description: The page that lays several runs over each other.
  returned: if there are several runs
  type: str
  sample: /home/me/torchfleet/reports/runs.html
not_comparable:
  description:
    - Why these runs cannot be compared, as codes; none if they can. The page and the terminal say what differs.
    - V(state), not all of them succeeded. V(program) and V(ranks), they ran different programs, or had different
      numbers of ranks. V(format), they computed in different number formats. V(silent), some reported nothing.
      V(metrics), they reported values of different names.
  returned: if there are several runs, not in check mode
  type: list
  elements: str
  sample: [ranks]
"""
