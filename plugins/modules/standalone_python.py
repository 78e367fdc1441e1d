#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: standalone_python
short_description: Bring a Python of its own to nodes whose Python is too old for PyTorch
description:
  - Unpacks an archive of python-build-standalone to C(python-VERSION) below O(home), without root. The roles
    then make their Python environments with it.
  - The controller fetches the archive once, and compares its checksum with C(versions.yml). Nodes need no network.
  - All nodes get it if one of them needs it, so that their environments have the same Python. Later runs keep to it.
version_added: 0.6.0
author:
  - The torchfleet authors (@torchfleet)
options:
  seen:
    description: The result of M(torchfleet.cluster.node_facts) for this node. Empty to read the facts now.
    type: dict
    default: {}
  switch:
    description:
      - V(auto) brings it to all nodes if the Python of one is not supported or has no module venv, V(true) always,
        V(false) never.
    type: str
    default: auto
  home:
    description: torchfleet's directory on the node.
    type: path
    default: ~/.torchfleet
  python_min:
    description: The oldest Python that is supported.
    type: str
    required: true
  python_max:
    description: The newest Python that is supported.
    type: str
    required: true
  sources:
    description: "By machine (C(x86_64)): RV(ignore:version), C(url), C(sha256) and C(file) of its archive."
    type: dict
    required: true
  mirror:
    description: The address in front of a C(url) that is relative.
    type: str
    required: true
  wheelhouse:
    description: A directory on the controller that has the archive. If it is set, nothing is fetched.
    type: str
    default: ''
  wheelhouse_fill:
    description: Whether the archive is fetched if O(wheelhouse) lacks it.
    type: bool
    default: false
  archive:
    description: The archive on the node. The action sets it.
    type: str
    default: ''
  version:
    description: The version in it. The action sets it.
    type: str
    default: ''
  sha256:
    description: Its checksum. The action sets it.
    type: str
    default: ''
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Says whether it would be unpacked, and fetches and unpacks nothing.
seealso:
  - module: torchfleet.cluster.python_environment
"""

EXAMPLES = r"""
- name: Bring a Python that PyTorch supports
  torchfleet.cluster.standalone_python:
    seen: "{{ preflight_seen }}"
    python_min: "3.11"
    python_max: "3.14"
    sources: "{{ sources }}"
    mirror: https://mirror.example/python-build-standalone
"""

RETURN = r"""
python:
  description: The version that is there, or empty where the node needs none.
  returned: success
  type: str
  sample: 3.12.13
"""


from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._software import standalone
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment_files import NotMadeError


def main() -> None:
    """Entry of the module."""
    text = {"type": "str", "default": ""}
    options = {
        "seen": {"type": "dict", "default": {}},
        "switch": {"type": "str", "default": "auto"},
        "home": {"type": "path", "default": "~/.torchfleet"},
        "python_min": {"type": "str", "required": True},
        "python_max": {"type": "str", "required": True},
        "sources": {"type": "dict", "required": True},
        "mirror": {"type": "str", "required": True},
        "wheelhouse": text,
        "wheelhouse_fill": {"type": "bool", "default": False},
        "archive": text,
        "version": text,
        "sha256": text,
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    given = module.params
    try:
        changed = standalone.make(given["home"], given["version"], given["archive"], given["sha256"])
    except (NotMadeError, OSError) as error:
        module.fail_json(msg=f"prerequisites: {error}")
    module.exit_json(changed=changed, python=given["version"])


if __name__ == "__main__":
    main()
