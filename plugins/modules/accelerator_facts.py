#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: accelerator_facts
short_description: Read a node's GPUs, their drivers, and the libraries that other software can be built with
description:
  - Reads sysfs and procfs. Needs no root, no driver and no other program. Changes nothing.
version_added: 0.1.0
author:
  - The torchfleet authors (@torchfleet)
options:
  root:
    description: Directory that contains C(/sys), C(/proc), C(/dev) and C(/usr).
    type: path
    default: /
  home:
    description: torchfleet's directory, in which libraries are searched too. C(~) is the user's home.
    type: path
    default: ~/.torchfleet
  usable_driver:
    description:
      - Whether to fail if the NVIDIA driver was replaced while it was loaded.
      - No program can use its GPUs before a reboot.
    type: bool
    default: false
    version_added: 0.5.0
  known:
    description:
      - The facts of this node that role P(torchfleet.cluster.preflight#role) read in the same run,
        C(preflight_seen.facts.accelerators).
      - They are returned as they are, and the node is not asked. Empty if there are none.
    type: dict
    default: {}
    version_added: 0.5.0
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Reads the same in check mode.
"""

EXAMPLES = r"""
- name: Read the GPUs of the node
  torchfleet.cluster.accelerator_facts:
  register: found
"""

RETURN = r"""
facts:
  description:
    - The facts of the node.
    - C(target) is the name that AMD's compiler uses for the GPU. C(open_modules) is whether NVIDIA's open kernel
      modules support it.
    - C(modules) are the loaded kernel modules of GPU drivers. C(usable) is the number of GPUs that a program can open.
    - C(nvlink_domain) is the cluster UUID and the clique of GPUs that share NVLink with those of other machines.
    - C(infiniband) is the number of InfiniBand controllers on the PCI bus.
    - C(secure_boot) is null if the firmware does not report it.
    - C(libraries) has the directory of each library that is installed with its headers, or an empty text. C(versions)
      are their versions, if a file of the library contains one.
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
    nvlink_domain: ''
    infiniband: 8
    modules: {nvidia: 580.95.05}
    secure_boot: false
    driver_library: 580.95.05
    usable: {nvidia: 1, amd: 0}
    libraries: {cuda: /usr/local/cuda, rocm: '', verbs: /usr, ucx: /home/me/.torchfleet/ucx, ucc: ''}
    versions: {cuda: '13000', rocm: '', verbs: '', ucx: '1.20', ucc: ''}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.gpus import driver_mismatch, survey


def main() -> None:
    """Entry of the module."""
    options = {
        "root": {"type": "path", "default": "/"},
        "home": {"type": "path", "default": "~/.torchfleet"},
        "usable_driver": {"type": "bool", "default": False},
        "known": {"type": "dict", "default": {}},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    if module.params["known"]:
        module.exit_json(changed=False, facts=module.params["known"])
    facts = survey(module.params["root"], module.params["home"])
    mismatch = driver_mismatch(facts) if module.params["usable_driver"] else ""
    if mismatch:
        module.fail_json(msg=f"{mismatch}: no program can use the NVIDIA GPUs before the machine is rebooted")
    module.exit_json(changed=False, facts=facts)


if __name__ == "__main__":
    main()
