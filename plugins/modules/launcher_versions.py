#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: launcher_versions
short_description: Refuse a launcher that has different versions on the nodes
description:
  - Launchers of different versions cannot work together. Compares what M(torchfleet.cluster.launcher_proof) found on
    each node, and names the nodes if the versions differ.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  launcher:
    description: The launcher, which is also the name of its role.
    type: str
    required: true
  proofs:
    description: The result of M(torchfleet.cluster.launcher_proof) of each node, by its name. Empty ones are left out.
    type: dict
    required: true
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
attributes:
  check_mode:
    description: Compares what there is.
seealso:
  - module: torchfleet.cluster.launcher_proof
"""

EXAMPLES = r"""
- name: Require one version on all nodes
  torchfleet.cluster.launcher_versions:
    launcher: mpich
    proofs: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'proof'))) }}"
  run_once: true
"""

RETURN = r"""
version:
  description: The version of all of them; empty if no node has one.
  returned: success
  type: str
  sample: 4.0.2
"""
