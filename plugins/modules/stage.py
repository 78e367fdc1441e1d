#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: stage
short_description: Check whether a node can run a job
description:
  - Reads what M(torchfleet.cluster.launch) needs on a node (launcher, Python, torch, cores, GPUs, space, a free port,
    leftovers of earlier jobs). Fails with the fix if a job could not run there. Changes nothing.
version_added: 0.1.0
author:
  - The torchfleet authors (@torchfleet)
options:
  home:
    description: torchfleet's directory on the node.
    type: path
    default: ~/.torchfleet
  python:
    description: Interpreter of the ranks. The default is C(pytorch/bin/python) under O(home).
    type: path
    default: ''
  launcher:
    description: The launcher to check.
    type: str
    default: openmpi
  launcher_path:
    description: Path of the launcher's program. The default is C(<launcher>/bin) under O(home), then the search path.
    type: path
    default: ''
  role:
    description: The node's part in a job. A V(head) needs the launcher, a V(worker) needs Python and torch.
    type: list
    elements: str
    choices: [head, worker]
    default: [head, worker]
  known:
    description:
      - The facts of this node that role P(torchfleet.cluster.preflight#role) read in the same run,
        C(preflight_seen.facts.seat).
      - They are returned as they are, and the node is not asked. Empty if there are none.
    type: dict
    default: {}
    version_added: 0.5.0
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.choices.stage
attributes:
  check_mode:
    description: Reads the same in check mode.
seealso:
  - module: torchfleet.cluster.launch
"""

EXAMPLES = r"""
- name: Check that the node can run ranks
  torchfleet.cluster.stage:
    role: [worker]
"""

RETURN = r"""
facts:
  description: The facts of the node.
  returned: always
  type: dict
  sample:
    cores: 2
    accelerators: {nvidia: 0, amd: 0}
    torch: {version: 2.13.0+cpu, cuda: '', hip: ''}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.survey import survey
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import DEFAULT, LAUNCHERS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import NodeFacts
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import SurveyRequest


def missing(facts: NodeFacts, role: list[str], launcher: str) -> list[str]:
    """Return what is missing on a node for its role."""
    absent = []
    if "head" in role and not facts["launcher"]["version"]:
        absent.append(f"{launcher} ({facts['launcher']['wanted']})")
    if "worker" in role and not facts["python"]:
        absent.append(f"Python ({facts['python_wanted']})")
    elif "worker" in role and not facts["torch"]:
        absent.append(f"torch in {facts['python']}")
    return absent


def main() -> None:
    """Entry of the module."""
    options = {
        "home": {"type": "path", "default": "~/.torchfleet"},
        "python": {"type": "path", "default": ""},
        "launcher": {"type": "str", "choices": list(LAUNCHERS), "default": DEFAULT},
        "launcher_path": {"type": "path", "default": ""},
        "role": {"type": "list", "elements": "str", "choices": ["head", "worker"], "default": ["head", "worker"]},
        "known": {"type": "dict", "default": {}},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    if module.params["known"]:
        module.exit_json(changed=False, facts=module.params["known"])
    request: SurveyRequest = {
        "home": module.params["home"],
        "python": module.params["python"],
        "launcher": module.params["launcher"],
        "launcher_path": module.params["launcher_path"],
        "launcher_args": [],
        "backend": "",
        "port": None,
        "ports": None,
        "program": "",
        "data": "",
        "script": "",
        "container": None,
    }
    facts = survey(request)
    absent = missing(facts, module.params["role"], module.params["launcher"])
    if absent:
        module.fail_json(msg=f"missing: {', '.join(absent)}; install it with: ansible-playbook setup.yml", facts=facts)
    module.exit_json(changed=False, facts=facts)


if __name__ == "__main__":
    main()
