#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: launcher_proof
short_description: Prove that an MPI launcher starts processes
description:
  - Asks a launcher for its version, and has it start two processes on the node.
  - This is done once. The proof, C(torchfleet-proof.txt), lies beside the launcher and goes when that is installed
    again.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  launcher:
    description: Which launcher it is.
    type: str
    required: true
  path:
    description: The directory that it was installed in. The program is C(bin/mpirun) there.
    type: path
    required: true
  version:
    description: The version that it must be. Empty for any.
    type: str
    default: ''
  components:
    description: What Open MPI must have been built with, as C(ompi_info --parsable) names it.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.choices.launcher_proof
attributes:
  check_mode:
    description: Starts nothing. Says whether the proof is still to be given.
seealso:
  - module: torchfleet.cluster.launcher_versions
"""

EXAMPLES = r"""
- name: Prove MPICH
  torchfleet.cluster.launcher_proof:
    launcher: mpich
    path: "{{ ansible_facts['env']['HOME'] }}/.torchfleet/mpich"
  register: proof
"""

RETURN = r"""
version:
  description: The version that the launcher says; empty in check mode if the proof is still to be given.
  returned: success
  type: str
  sample: 5.0.11
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import MPIS
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.launcher_proof import given_proof, prove
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.proof_error import UnprovenError


def main() -> None:
    """Entry of the module."""
    options = {
        "launcher": {"type": "str", "choices": list(MPIS), "required": True},
        "path": {"type": "path", "required": True},
        "version": {"type": "str", "default": ""},
        "components": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    launcher, path = module.params["launcher"], Path(module.params["path"]).absolute()
    before = given_proof(path)
    if before or module.check_mode:
        module.exit_json(changed=not before, version=before)
    try:
        version = prove(launcher, path, module.params["version"], module.params["components"])
    except UnprovenError as error:
        module.fail_json(msg=f"{launcher}: {error}")
    except OSError as error:
        module.fail_json(msg=f"{launcher}: the proof cannot be written: {error}")
    module.exit_json(changed=True, version=version)


if __name__ == "__main__":
    main()
