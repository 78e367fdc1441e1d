#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: python_environment_plan
short_description: Decide which machines make a Python environment, and which receive a copy
description:
  - Takes what M(torchfleet.cluster.python_environment) with O(torchfleet.cluster.python_environment#module:state=look)
    saw on every machine. Machines of one kind get one environment, made once; a machine with nobody of its kind makes
    its own, and so do all if nobody can send, for want of the SSH mesh (P(torchfleet.cluster.ssh_mesh#role)).
  - Among machines of one kind, those that have the most common environment keep it, and the others receive a copy.
  - Delegate it to the first host of group C(head). If that host is not among the machines of the play, it is asked
    whether it reaches them; one that cannot be asked does not.
  - This module has a corresponding action plugin and runs on the controller.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  looks:
    description: Name of the variable in which every machine has registered its look.
    type: str
    required: true
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
seealso:
  - module: torchfleet.cluster.python_environment
"""

EXAMPLES = r"""
- name: Plan which machine makes it, and which receive a copy
  torchfleet.cluster.python_environment_plan:
    looks: my_tools_look
  register: my_tools_plan
  run_once: true
  delegate_to: "{{ (groups['head'] | default([]) + [inventory_hostname]) | first }}"
"""

RETURN = r"""
nodes:
  description:
    - The part of each machine by its name. C(makes), whether it makes the environment; C(source), the machine that it
      is sent by; C(to), those that it sends it to; C(sender), where the sending runs; C(senders), those of them that
      send it on; C(home), the sender's C(torchfleet_home); C(place), where
      it is made; C(adopts), whether what is there becomes a version; C(proven), whether nothing is left to do.
  returned: success
  type: dict
steps:
  description: What each machine does, a list by its name. Each has C(state) and C(host), the machine that it runs on.
  returned: success
  type: dict
missing_tools:
  description: The tools that are missing on the machines that make the environment, a list by the name of each.
  returned: success
  type: dict
"""
