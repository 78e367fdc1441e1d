#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: hostfile
short_description: Write the host files of a cluster, one for each kind of MPI launcher
description:
  - Writes C(hostfiles/openmpi) and C(hostfiles/hydra) (for MPICH and Intel MPI) below C(torchfleet_home) of the head.
    Addresses and slots are those that a job would use.
  - Fails if a worker's slots and address are unknown, and for an address that a launcher would misread.
  - Run it on the first host of group C(head). This module has a corresponding action plugin, which renders the files.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  seats:
    description: Name of the variable in which every node has registered its result of M(torchfleet.cluster.stage).
    type: str
    required: true
  leaving:
    description: Nodes of the inventory that leave the cluster. They are left out, as those are that are away.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Reports whether a file would change.
  diff_mode:
    description: Shows the files before and after.
    support: full
seealso:
  - module: torchfleet.cluster.stage
  - module: torchfleet.cluster.publish
"""

EXAMPLES = r"""
- name: Read every node's slots and address
  torchfleet.cluster.stage:
    role: []
  register: found

- name: Write the host files
  torchfleet.cluster.hostfile:
    seats: found
  when: inventory_hostname in groups['head']
"""

RETURN = r"""
files:
  description: The paths of the files that were written, or would be in check mode.
  returned: success
  type: list
  elements: path
  sample: [/home/me/.torchfleet/hostfiles/openmpi]
"""
