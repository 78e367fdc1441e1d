#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: accelerator_facts
short_description: Tell what GPUs a node has, what drives them, and which libraries others can be built with
description:
  - Reads sysfs and procfs. Needs no root, no driver and no other program, and changes nothing.
version_added: 0.1.0
author:
  - The torchfleet authors (@torchfleet)
options:
  root:
    description: Where C(/sys), C(/proc), C(/dev) and C(/usr) are.
    type: path
    default: /
  home:
    description: The directory of torchfleet, which may have libraries too; C(~) is the user's home.
    type: path
    default: ~/.torchfleet
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Reads the same.
"""

EXAMPLES = r"""
- name: Look at the GPUs of the node
  torchfleet.cluster.accelerator_facts:
  register: found
"""

RETURN = r"""
facts:
  description:
    - What was found.
    - C(target) is what AMD's compiler calls the GPU. C(open_modules) is whether NVIDIA's open kernel modules drive it.
    - C(modules) are the kernel modules that drive GPUs and are loaded. C(usable) is how many GPUs a program can open.
    - C(secure_boot) is none where the firmware does not tell.
    - C(libraries) are the directories in which each is with its headers; empty where it is not. C(versions) are
      theirs, as far as a file there tells them.
  returned: success
  type: dict
  sample:
    gpus:
      - address: '0000:3b:00.0'
        vendor: nvidia
        id: 10de:2330
        model: NVIDIA H100 80GB HBM3
        target: ''
        open_modules: true
        numa_node: 0
        driver: nvidia
    nvswitches: 0
    modules: {nvidia: 580.95.05}
    secure_boot: false
    driver_library: 580.95.05
    usable: {nvidia: 1, amd: 0}
    libraries: {cuda: /usr/local/cuda, rocm: '', verbs: /usr, ucx: /home/me/.torchfleet/ucx, ucc: ''}
    versions: {cuda: '13000', rocm: '', verbs: '', ucx: '1.20', ucc: ''}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.gpus import survey


def main() -> None:
    """Entry of the module."""
    options = {"root": {"type": "path", "default": "/"}, "home": {"type": "path", "default": "~/.torchfleet"}}
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    module.exit_json(changed=False, facts=survey(module.params["root"], module.params["home"]))


if __name__ == "__main__":
    main()
