#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: inventory_check
short_description: Refuse an inventory without a head and workers, and unknown parts of a cluster
description:
  - Fails unless group C(head) has one host and group C(workers) has at least one. Without them Ansible would find no
    host for most plays, do nothing and succeed.
  - Fails for C(--limit), except with C(--tags) of steps in which no node needs the others.
  - Fails for a list of parts that has an unknown one, or is no list.
  - Fails for a value that a later role would refuse, when other roles have changed the nodes already.
  - Fails for a C(torchfleet_gpus) of a worker that is no number of GPUs.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  accelerators:
    description: The drivers of GPUs to install.
    type: list
    elements: str
  libraries:
    description: The libraries to install that an MPI is built with.
    type: list
    elements: str
  mpis:
    description: The MPIs to install.
    type: list
    elements: str
  backends:
    description: The backends to install for PyTorch.
    type: list
    elements: str
  firewall_open:
    description: Whether role C(firewall) opens firewalls.
    type: bool
  torchfleet_cluster:
    description: Name of the cluster.
    type: str
  torchfleet_ports:
    description: The ports that are open between the nodes, such as V(20000-20999).
    type: str
  verify_floor_gbps:
    description: The least bus bandwidth of every all-reduce of the proof, in GB/s. V(0) for the default.
    type: float
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
  - torchfleet.cluster.choices.inventory_check
seealso:
  - module: torchfleet.cluster.preflight
"""

EXAMPLES = r"""
- name: Require a head and workers, and parts that there are
  torchfleet.cluster.inventory_check:
    mpis: "{{ mpis | default(omit) }}"
  run_once: true
"""

RETURN = r""" # """
