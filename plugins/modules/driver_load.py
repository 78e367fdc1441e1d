#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: driver_load
short_description: Load the kernel module of an installed GPU driver, or say why a reboot would not help
description:
  - Tries C(modprobe) where neither the module nor one that takes its place is loaded.
  - Fails if the machine has booted since the driver was installed, and the driver is not in use all the same. The line
    says what C(modprobe) and C(dkms status) say.
  - Fails if a job of any user runs on the machine, and a reboot would end it.
  - Does not reboot. Needs root.
version_added: 0.6.0
author:
  - The torchfleet authors (@torchfleet)
options:
  role:
    description: The role that installs the driver. Every message begins with it.
    type: str
    required: true
  module:
    description: The kernel module.
    type: str
    required: true
  package:
    description: The package of the driver. Empty if this role installs none.
    type: str
    required: true
  reason:
    description: Why the machine has to be rebooted.
    type: str
    required: true
  may_reboot:
    description: Whether a reboot would follow. If not, a job is not in the way.
    type: bool
    required: true
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Says what would be done, and whether a job is in the way, and does nothing.
seealso:
  - module: torchfleet.cluster.vendor_packages
"""

EXAMPLES = r"""
- name: Load NVIDIA's module
  torchfleet.cluster.driver_load:
    role: site
    module: nvidia
    package: nvidia-open
    reason: module nvidia none is loaded
    may_reboot: true
  become: true
"""

RETURN = r"""
modprobe:
  description: What C(modprobe) said. Empty if it loaded the module, or was not tried.
  returned: success
  type: str
  sample: ""
msg:
  description: What would be done, the module loaded or the machine rebooted.
  returned: in check mode
  type: str
  sample: "would load module nvidia, or reboot the machine if modprobe fails: module nvidia none is loaded"
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.kernel_module import (
    Driver,
    job_refusal,
    load,
    outlook,
    useless_reboot,
)


def main() -> None:
    """Entry of the module."""
    options = {
        "role": {"type": "str", "required": True},
        "module": {"type": "str", "required": True},
        "package": {"type": "str", "required": True},
        "reason": {"type": "str", "required": True},
        "may_reboot": {"type": "bool", "required": True},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    driver = Driver(*(module.params[name] for name in Driver._fields))
    may_reboot = module.params["may_reboot"]
    loaded, said = (False, "") if module.check_mode else load(driver.module)
    if not loaded:
        useless = "" if module.check_mode else useless_reboot(driver, said)
        job = job_refusal(driver.role, "would be ended by the reboot") if may_reboot else ""
        if useless or job:
            module.fail_json(msg=useless or job)
    told = {"msg": outlook(driver, may_reboot)} if module.check_mode else {}
    module.exit_json(changed=loaded or module.check_mode, modprobe=said, **told)


if __name__ == "__main__":
    main()
