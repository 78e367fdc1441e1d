#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: system_launcher
short_description: Link the programs of a distribution's MPI into a directory of ours
description:
  - Makes C(bin) in a directory, with a link to each program of an installed package, under its plain name
    (C(mpirun) for C(mpirun.openmpi)). So launchers of packages and of wheels have the same path.
  - Takes the place of an environment of ours that lies there. What else lies there is left alone, and refused.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  launcher:
    description: The launcher, which is also the name of its role. Every message begins with it.
    type: str
    required: true
  path:
    description: The directory.
    type: path
    required: true
  package:
    description: The package, which must be installed (M(torchfleet.cluster.system_packages)).
    type: str
    required: true
  suffix:
    description: What the distribution adds to the names of the programs, such as C(.openmpi).
    type: str
    default: ''
  disk_mb:
    description: Free space in MB in C(/usr) without which installing the package is refused.
    type: int
    default: 200
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Refuses what cannot be linked, also before the package is installed, and links nothing.
seealso:
  - module: torchfleet.cluster.system_packages
  - module: torchfleet.cluster.launcher_proof
"""

EXAMPLES = r"""
- name: Link MPICH of the distribution
  torchfleet.cluster.system_launcher:
    launcher: mpich
    path: "{{ ansible_facts['env']['HOME'] }}/.torchfleet/mpich"
    package: mpich
    suffix: .mpich
"""

RETURN = r"""
version:
  description: The version of the package; empty if it is not installed.
  returned: success
  type: str
  sample: 4.0.2-3
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment_files import NotMadeError
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.system_launcher import (
    Request,
    is_linked,
    link,
    refusals,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.system_packages import installed_version


def main() -> None:
    """Entry of the module."""
    options = {
        "launcher": {"type": "str", "required": True},
        "path": {"type": "path", "required": True},
        "package": {"type": "str", "required": True},
        "suffix": {"type": "str", "default": ""},
        "disk_mb": {"type": "int", "default": 200},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    request = Request(**{**module.params, "path": Path(module.params["path"]).absolute()})
    wrong, version = refusals(request), installed_version(request.package)
    if wrong:
        module.fail_json(msg="; ".join(wrong))
    if module.check_mode:
        module.exit_json(changed=not is_linked(request), version=version)
    if not version:
        advice = "module system_packages installs it"
        module.fail_json(msg=f"{request.launcher}: {request.package} is not installed: {advice}")
    try:
        module.exit_json(changed=link(request), version=version)
    except (OSError, NotMadeError) as error:
        module.fail_json(msg=f"{request.launcher}: {error}")


if __name__ == "__main__":
    main()
