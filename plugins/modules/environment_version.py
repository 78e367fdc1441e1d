#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: environment_version
short_description: Have paths lead to another version on all machines, or on none
description:
  - What M(torchfleet.cluster.python_environment) or M(torchfleet.cluster.system_launcher) made is one of several
    versions. The path that everybody uses is a link to one of them.
  - Up to four tasks after each other, each on all machines of the play. V(look) and V(plan) are for going back. V(use)
    changes the links, and V(settle) changes them back everywhere if one machine failed.
  - A link is not changed while a job runs on the machine.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  state:
    description:
      - V(look) returns the versions that are in use, and those before them.
      - V(plan) returns the version that each machine goes back to, and fails where a machine has none. Run it once.
      - V(use) has the paths lead to O(versions). Register it, and have it ignore unreachable machines. It fails only if
        a machine is not ready; for what else goes wrong V(settle) fails.
      - V(settle) fails if V(use) went wrong anywhere, and has the paths lead to where they led before. Else it removes
        old versions.
      - V(undo) is for the action plugin.
    type: str
    choices: [look, plan, use, settle, undo]
    required: true
  paths:
    description: The paths, by the names of what is used there.
    type: dict
    required: true
  versions:
    description: The names of the versions to use, by the same names.
    type: dict
    default: {}
  used:
    description: The versions in use as far as they are known. If they are O(versions), V(use) does nothing.
    type: dict
    default: {}
  parts:
    description: What V(plan) takes back, a list of names. By default all that has a version before the present one.
    type: raw
  after:
    description:
      - The name of a variable that a task has registered on all machines. For V(plan) it is that of V(look), for
        V(settle) that of V(use). For V(use) it is any task that has to succeed on all machines before.
    type: str
    default: ""
  back:
    description: Whether V(settle) is after going back, so that the version that was left is not the one before.
    type: bool
    default: false
  keep:
    description: How many versions before the present one are kept.
    type: int
    default: 1
  home:
    description: torchfleet's directory on the node, with its jobs.
    type: str
    default: ~/.torchfleet
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Says what would change.
  diff_mode:
    description: Shows the names of the versions before and after. Only V(use).
    support: full
seealso:
  - module: torchfleet.cluster.python_environment
"""

EXAMPLES = r"""
- name: Use the version that was made and proven
  torchfleet.cluster.environment_version:
    state: use
    paths:
      mpich: "{{ ansible_facts['env']['HOME'] }}/.torchfleet/mpich"
    versions:
      mpich: "{{ look.version }}"
    after: proof
  register: used
  ignore_unreachable: true

- name: Go back to the version before if that failed on one machine
  torchfleet.cluster.environment_version:
    state: settle
    paths:
      mpich: "{{ ansible_facts['env']['HOME'] }}/.torchfleet/mpich"
    after: used
"""

RETURN = r"""
found:
  description: For each name of O(paths) the version in use (C(used)), the one before it (C(before)), and a running job.
  returned: with V(look)
  type: dict
nodes:
  description: The versions to go back to, by machine and name.
  returned: with V(plan)
  type: dict
was:
  description: The versions that were in use, by name, of what was changed.
  returned: with V(use)
  type: dict
removed:
  description: Versions that were removed.
  returned: with V(settle)
  type: list
  elements: str
"""

from pathlib import Path
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.home import home_path
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import changed_versions
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment_files import NotMadeError

Given = Dict[str, Any]
OPTIONS: dict[str, object] = {
    "state": {"type": "str", "choices": ["look", "plan", "use", "settle", "undo"], "required": True},
    "paths": {"type": "dict", "required": True},
    "versions": {"type": "dict", "default": {}},
    "used": {"type": "dict", "default": {}},
    "parts": {"type": "raw"},
    "after": {"type": "str", "default": ""},
    "back": {"type": "bool", "default": False},
    "keep": {"type": "int", "default": 1},
    "home": {"type": "str", "default": "~/.torchfleet"},
}


def result_of(given: Given, paths: dict[str, Path], check: bool) -> Given:
    """Return the result of a state. Refused, OSError, NotMadeError."""
    home, state = home_path(given["home"]), given["state"]
    if state == "look":
        return {"changed": False, "found": changed_versions.look(paths, home)}
    if state == "use":
        was = changed_versions.use(paths, given["versions"], home, check)
        return {"changed": bool(was), "was": was}
    if check:
        return {"changed": False}
    if state == "undo":
        changed_versions.undo(paths, given["versions"])
        return {"changed": True}
    removed = changed_versions.settle(paths, given["versions"], given["keep"], home)
    return {"changed": bool(removed), "removed": removed}


def main() -> None:
    """Entry of the module."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    given = module.params
    paths = {name: Path(home_path(str(path))) for name, path in given["paths"].items()}
    try:
        module.exit_json(**result_of(given, paths, module.check_mode))
    except (changed_versions.Refused, OSError, NotMadeError) as error:
        module.fail_json(msg=f"{', '.join(given['versions'] or paths)}: {error}")


if __name__ == "__main__":
    main()
