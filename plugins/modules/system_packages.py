#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: system_packages
short_description: Install packages of the distribution, as root only where some are missing
description:
  - Looks as the user of the connection whether the packages are installed. Becomes root, if the task says C(become),
    only where some are missing.
  - Finishes first what an interrupted installation left. Waits for another apt. Files of packages that somebody changed
    stay as they are.
  - Notes on the node which packages it added, for M(torchfleet.cluster.uninstall).
  - For Debian and Ubuntu with apt; for RHEL and its relatives with dnf, where O(rpm_names) has the packages. Needs no
    Python package on the node.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  role:
    description: On whose behalf the packages are installed. Every message begins with it.
    type: str
    required: true
  names:
    description: The packages, as Debian and Ubuntu call them.
    type: list
    elements: str
    required: true
  rpm_names:
    description: The packages, as RHEL and its relatives call them. Empty if nothing is installed there.
    type: list
    elements: str
    default: []
  hint:
    description: What to do where packages cannot be installed, for the message that says so.
    type: str
    required: true
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Says whether packages are missing and whether root can be had, and installs nothing.
seealso:
  - module: torchfleet.cluster.system_launcher
"""

EXAMPLES = r"""
- name: Install MPICH of the distribution
  torchfleet.cluster.system_packages:
    role: mpich
    names: [mpich]
    hint: set mpich_install_method to wheel
  become: true

- name: Install a compiler, also on RHEL
  torchfleet.cluster.system_packages:
    role: site
    names: [g++]
    rpm_names: [gcc-c++]
    hint: install a C++ compiler
  become: true
"""

RETURN = r"""
missing:
  description: The packages that were not installed.
  returned: success
  type: list
  elements: str
  sample: [mpich]
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import distribution
from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.prerequisites import manager_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import dnf, system_packages
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.ledger import noting
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.packages import PackageError


def main() -> None:
    """Entry of the module."""
    options = {
        "role": {"type": "str", "required": True},
        "names": {"type": "list", "elements": "str", "required": True},
        "rpm_names": {"type": "list", "elements": "str", "default": []},
        "hint": {"type": "str", "required": True},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    role, hint, rpms = (module.params[name] for name in ("role", "hint", "rpm_names"))
    by_dnf = manager_of(distribution.family(distribution.here())) == "dnf" and bool(rpms)
    lacking = dnf.missing(rpms) if by_dnf else system_packages.missing(module.params["names"])
    shown = ", ".join(lacking)
    if not lacking:
        module.exit_json(changed=False, missing=[])
    if not by_dnf and not os.path.exists(system_packages.APT):
        managers, none = ("apt or dnf", "neither") if rpms else ("apt", "no apt")
        module.fail_json(msg=f"{role}: {shown} would be installed with {managers}, and this machine has {none}: {hint}")
    if os.geteuid() != 0:
        module.fail_json(msg=f"{role}: {shown} can only be installed by root: {hint}", needs_root=True)
    try:
        if not module.check_mode:
            with noting(role):
                dnf.install_packages(*lacking) if by_dnf else system_packages.install(lacking)
    except (system_packages.NotInstalled, PackageError) as error:
        module.fail_json(msg=f"{role}: {shown} could not be installed: {error}")
    module.exit_json(changed=True, missing=lacking)


if __name__ == "__main__":
    main()
