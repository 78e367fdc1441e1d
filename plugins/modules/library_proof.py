#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: library_proof
short_description: Prove that UCX or UCC is there and loads
description:
  - Reads the version of a library from its header, looks for the parts that it was to be built with, and loads it.
  - Leaves nothing on the node.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  library:
    description: Which library it is.
    type: str
    choices: [ucc, ucx]
    required: true
  path:
    description: Where it was installed, which may be an environment with its wheel.
    type: path
    required: true
  version:
    description: The version that it must be; major and minor number count. Empty for any.
    type: str
    default: ''
  parts:
    description: Patterns of files that must be among its libraries, one for each that it must have been built with.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Proves nothing.
seealso:
  - module: torchfleet.cluster.launcher_proof
"""

EXAMPLES = r"""
- name: Prove UCX of the distribution
  torchfleet.cluster.library_proof:
    library: ucx
    path: /usr
"""

RETURN = r"""
version:
  description: The version that the header has; empty in check mode.
  returned: success
  type: str
  sample: '1.20'
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.library_proof import LIBRARIES, prove
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.proof_error import UnprovenError


def main() -> None:
    """Entry of the module."""
    options = {
        "library": {"type": "str", "choices": sorted(LIBRARIES), "required": True},
        "path": {"type": "path", "required": True},
        "version": {"type": "str", "default": ""},
        "parts": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    library, path = module.params["library"], Path(module.params["path"]).absolute()
    if module.check_mode:
        module.exit_json(changed=False, version="")
    try:
        version = prove(library, path, module.params["version"], module.params["parts"])
    except UnprovenError as error:
        module.fail_json(msg=f"{library}: {error}")
    module.exit_json(changed=False, version=version)


if __name__ == "__main__":
    main()
