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
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  accelerators:
    description: The drivers of GPUs to install.
    type: list
    elements: str
    choices: [cuda, rocm]
  libraries:
    description: The libraries to install that an MPI is built with.
    type: list
    elements: str
    choices: [ucx, ucc]
  mpis:
    description: The MPIs to install.
    type: list
    elements: str
    choices: [openmpi, mpich, intelmpi]
  backends:
    description: The backends to install for PyTorch.
    type: list
    elements: str
    choices: [mpi, shm, ccl]
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
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
