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
  - The directory is one of several versions beside O(path), which M(torchfleet.cluster.environment_version) has lead
    there. An environment of ours that lies at O(path) becomes a version. What else lies there is left alone, and
    refused.
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
  diff_mode:
    description: Shows the links before and after.
    support: full
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
package_version:
  description: The version of the package; empty if it is not installed.
  returned: success
  type: str
  sample: 4.0.2-3
version:
  description: The name of the version that the links are, for M(torchfleet.cluster.environment_version).
  returned: success
  type: str
  sample: 4.0.2-3-1a2b3c4d5e6f
place:
  description: The directory of that version.
  returned: success
  type: str
used:
  description: The name of the version in use, if there is one.
  returned: success
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment_files import NotMadeError
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.system_launcher import (
    Request,
    difference,
    is_linked,
    link,
    refusals,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.system_packages import installed_version
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.versions import in_use


def version_of(request: Request) -> dict[str, str]:
    """Return the version that the links are, where it lies, and the one in use."""
    return {"version": request.version, "place": str(request.place), "used": in_use(request.path)}


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
    diff = [] if is_linked(request) else difference(request)
    if module.check_mode:
        module.exit_json(changed=bool(diff), diff=diff, package_version=version, **version_of(request))
    if not version:
        advice = "module system_packages installs it"
        module.fail_json(msg=f"{request.launcher}: {request.package} is not installed: {advice}")
    try:
        module.exit_json(changed=link(request), diff=diff, package_version=version, **version_of(request))
    except (OSError, ValueError, NotMadeError) as error:
        module.fail_json(msg=f"{request.launcher}: {error}")


if __name__ == "__main__":
    main()
