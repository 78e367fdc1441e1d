#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_facts
short_description: Read all facts of a node that preflight and verify need
description:
  - Reads system, free space, limits, names, keys, ports and versions of a node, and measures the offset of its clock
    from the controller's. Changes nothing.
  - The task does not fail if a node is unreachable or gives no facts. RV(problem) or RV(failure) has the reason, so
    that the answers of the other nodes are not lost. M(torchfleet.cluster.preflight) judges all answers.
version_added: 0.2.0
author:
  - The torchfleet authors (@torchfleet)
options:
  home:
    description: torchfleet's directory on the node.
    type: path
    default: ~/.torchfleet
  python:
    description: Interpreter of the ranks. The default is C(pytorch/bin/python) under O(home).
    type: str
    default: ''
  base_python:
    description: Interpreter that the ranks' environment is created with. The default is Ansible's on the node.
    type: str
    default: ''
  mpirun:
    description: Open MPI's program, if it is neither C(openmpi/bin/mpirun) under O(home) nor on the search path.
    type: str
    default: ''
  sudo:
    description:
      - Whether to try sudo. It shows whether the user can become root, and gives facts that only root can read.
      - The default is false because sudo reports unknown users to the administrator.
    type: bool
    default: false
  container_image:
    description:
      - The image that ranks run in, whose id RV(facts) then has. Empty for that of the inventory, V(none) for no image.
    type: str
    default: ''
  container_engine:
    description: What starts the image. Empty for that of the inventory, or the first that the node has.
    type: str
    default: ''
  engines:
    description: Engines that may start the image, the first choice first. The action sets this option.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
attributes:
  action:
    description: Runs as an action plugin on the controller, which runs the module on the node once.
  check_mode:
    description: Reads the same in check mode.
seealso:
  - module: torchfleet.cluster.preflight
"""

EXAMPLES = r"""
- name: Read the facts of every node
  torchfleet.cluster.node_facts:
  register: seen

- name: Show the offset of the clocks
  ansible.builtin.debug:
    msg: "{{ seen.clock.offset | round(3) }} s, give or take {{ seen.clock.uncertainty | round(3) }} s"
  when: seen.facts is defined
"""

RETURN = r"""
facts:
  description: The facts. Sizes are in bytes. A limit of null means unlimited.
  returned: when the node answered
  type: dict
  sample:
    system: {kernel: Linux, arch: x86_64, os: debian, os_version: "12", libc: glibc 2.36}
    home: {path: /home/mpi/.torchfleet, free: 72219758592, writable: true, read_only: false, noexec: false}
    versions: {kernel: 6.1.0, python: 3.11.2, torch: 2.13.0+cpu, openmpi: 5.0.11, nccl: "", driver: ""}
ansible_facts:
  description: The V(system), V(machine), V(env) and V(python) of M(ansible.builtin.setup).
  returned: when the node answered
  type: dict
  sample: {system: Linux, machine: x86_64, env: {HOME: /home/mpi}, python: {executable: /usr/bin/python3}}
clock:
  description: How far the node's clock is ahead of the controller's, and the uncertainty of that, in seconds.
  returned: when the node answered
  type: dict
  sample: {offset: 0.004, uncertainty: 0.008}
problem:
  description: Why the node could not be reached, as reported by SSH.
  returned: when the node could not be reached
  type: str
  sample: "ssh: connect to host 192.0.2.12 port 22: Connection refused"
failure:
  description: Why a node that could be reached gave no facts.
  returned: when the node was reached but gave no facts
  type: str
  sample: The module interpreter '/usr/bin/python3' was not found.
"""

import os
import sys
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.node import node_facts


def usual(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what the roles that install read of Ansible's own facts: one round to every node less."""
    version = dict(zip(("major", "minor", "micro"), sys.version_info[:3]))
    return {
        "system": facts["system"]["kernel"],
        "machine": facts["system"]["arch"],
        "env": dict(os.environ),
        "python": {"executable": sys.executable, "version": version},
    }


def main() -> None:
    """Entry of the module."""
    text = {"type": "str", "default": ""}
    options = {
        "home": {"type": "path", "default": "~/.torchfleet"},
        "python": text,
        "base_python": text,
        "mpirun": text,
        "sudo": {"type": "bool", "default": False},
        "container_image": text,
        "container_engine": text,
        "engines": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    facts = node_facts(module.params)
    module.exit_json(changed=False, facts=facts, ansible_facts=usual(facts))


if __name__ == "__main__":
    main()
