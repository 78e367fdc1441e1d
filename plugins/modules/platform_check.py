#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: platform_check
short_description: Refuse a machine that software is not made for
description:
  - Fails on a machine with another system than Linux, or with an architecture that there is no wheel for. Decides by
    Ansible's facts C(system) and C(machine), and asks the machine nothing.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  role:
    description: The role on whose behalf this runs, for the error message.
    type: str
    required: true
  title:
    description: The software's name, for the error message.
    type: str
    required: true
  wheels:
    description: The architectures that there are wheels for, such as V(x86_64). Empty if no wheels are used.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
"""

EXAMPLES = r"""
- name: Refuse a machine that no wheel is made for
  torchfleet.cluster.platform_check:
    role: mpich
    title: MPICH
    wheels: [x86_64, aarch64]
"""

RETURN = r""" # """
