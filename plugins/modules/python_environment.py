#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: python_environment
short_description: Make one Python environment with exactly the packages asked for
description:
  - Makes a virtual environment from a list of requirements, without root.
  - An environment that was interrupted, or made for other packages, another Python or another source, is made anew.
    A failure leaves what was there before.
  - Machines with the same distribution, architecture, Python and path get the same one. It is made on one of them and
    sent to the others over the SSH mesh (P(torchfleet.cluster.ssh_mesh#role)); without the mesh each makes its own.
    M(torchfleet.cluster.python_environment_plan) decides that, between V(look) and V(make).
  - This module has a corresponding action plugin, which copies wheels and sources from the controller.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  state:
    description:
      - V(look) returns what is installed, and fails if the environment cannot be made.
      - V(adopt) makes what an earlier release put at O(path) one of its O(versions).
      - V(make) makes it, if O(plan) gives this task to the machine, or if there is no plan.
      - V(send) sends it to the machines of the same kind, from the machine that the plan names.
      - V(prove) fails if the environment did not arrive on the machine. If it is new there, O(proof) runs.
    type: str
    choices: [look, adopt, make, send, prove]
    required: true
  role:
    description: The role that uses this module. Error messages name its variables.
    type: str
    required: true
  setting:
    description: The variable with O(path), for error messages.
    type: str
    required: true
  path:
    description: Directory of the environment, an absolute path. It is replaced when the environment is made anew.
    type: str
    required: true
  packages:
    description: What to install, as pip requirements. Pin exact versions.
    type: list
    elements: str
    default: []
  python:
    description:
      - The interpreter to make the environment with.
      - Empty for the one that M(torchfleet.cluster.standalone_python) brought to O(home), else Ansible's.
    type: str
    default: ''
  python_min:
    description: The oldest Python that the packages support.
    type: str
    default: "3.8"
  python_max:
    description: The newest Python that the packages support. Empty for no limit.
    type: str
    default: ""
  disk_mb:
    description: Free space in MB without which nothing is started.
    type: int
    default: 200
  index_url:
    description:
      - The package index of the first package and its dependencies. Empty for the one that pip is configured with.
      - A password or token in it is on no command line and in no log.
    type: str
    default: ""
  one_index:
    description: Whether O(index_url) is the index of all packages, and not of the first one alone.
    type: bool
    default: false
  torch_packages:
    description:
      - Those of O(packages) that are compiled for one build of torch, such as torchvision. They come from
        O(torch_index_url), without what they need, and O(lock) does not hold for them.
      - Not with O(wheelhouse), which has the right ones.
    type: list
    elements: str
    default: []
  torch_index_url:
    description: The package index of O(torch_packages).
    type: str
    default: ""
  kept:
    description:
      - Packages of O(linked_environment), with their versions, that must not be exchanged. Packages that need another
        version of one of them, or of what it pins exactly, are refused.
    type: list
    elements: str
    default: []
  keep:
    description:
      - How many environments in the directory above O(path) stay on the machine, if that directory is for environments
        of programs. Those that were used longest ago are removed, with V(prove). None goes that a running job uses.
      - 0 removes none.
    type: int
    default: 0
  preferred_index:
    description:
      - An index that has a build of the first package of its own (C(2.13.0+cpu)), which is taken if it can be reached.
      - Only with O(lock), and without O(index_url) and O(wheelhouse). What is there is not made anew for it.
    type: str
    default: ''
  lock:
    description:
      - A lock file on the controller, as C(locks/lock.py) writes it. Each of its packages is installed in exactly that
        version, and only with one of its checksums. Empty for none.
      - Other packages, and a build of the first package with a suffix in its version (C(+cpu)), are installed by
        version. Such a build comes from O(index_url), from O(wheelhouse), or from a directory in the machine's pip
        configuration (C(find-links)).
    type: str
    default: ""
  locked:
    description: Whether O(lock) is used. If not, packages are installed by version, without checksums.
    type: bool
    default: true
  wheelhouse:
    description: A directory of wheels on the controller. With it, no package index is used.
    type: str
    default: ""
  wheelhouse_fill:
    description: Whether the controller downloads missing wheels into that directory, for the machines' Python.
    type: bool
    default: false
  sources:
    description:
      - Directories on the controller with Python packages. They are built on the machine after O(packages) are
        installed.
      - Their build dependencies must be among O(packages), or on the machine. None are downloaded.
    type: list
    elements: str
    default: []
  programs:
    description:
      - Programs that are built from source after everything else is installed, with the environment as their prefix.
      - The controller fetches the tarball of each. The machine that builds unpacks it, configures it and runs make.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: What error messages call it.
        type: str
        required: true
      url:
        description: Where the tarball is fetched. Another address of the same file is no change.
        type: str
        required: true
      sha256:
        description: Checksum of the tarball.
        type: str
        required: true
      file:
        description: The name under which the controller keeps the tarball.
        type: str
        required: true
      configure:
        description: The program in the tarball that configures it, and its options. C(--prefix) is added.
        type: list
        elements: str
        required: true
      version:
        description: The version. Another one is built anew.
        type: str
      with:
        description: Versions of what it is built with, by name. Others have it built anew.
        type: dict
  tools:
    description:
      - Programs that building takes, which must be on the machine that builds.
      - A name that ends in C(.h) is a header of its Python.
    type: list
    elements: str
    default: []
  tools_hint:
    description: What to do where O(tools) are missing, for the error. By default the command that installs build tools.
    type: str
    default: ""
  build_environment:
    description: Environment variables for building.
    type: dict
    default: {}
  linked_environment:
    description: Directory of another environment of the same Python, whose packages can be imported too if it is there.
    type: str
    default: ""
  versions:
    description:
      - Whether O(path) is a link to one of several versions, which lie in the directory C(versions) beside it.
        M(torchfleet.cluster.environment_version) has the path lead to the one that was made. A directory that an
        earlier release made becomes a version.
      - With V(own), machines with another Python have another version. With V(common), a version has one path on all
        machines, whatever their Python.
    type: str
    choices: ["", own, common]
    default: ""
  home:
    description: Where the SSH mesh of the machine lies, C(torchfleet_home).
    type: str
    default: ~/.torchfleet
  proof:
    description:
      - A file of the role with a Python program that tests the environment. Empty for none. It runs with the
        environment's interpreter, once on each machine. It creates the file that its last argument names, or prints a
        line to stderr and fails. If that file is removed, the program runs again.
      - Where the environment is made, it runs before the environment is sent. What it imports is compiled then, and the
        other machines receive the bytecode.
    type: str
    default: ""
  proof_arguments:
    description: Its arguments before the path.
    type: list
    elements: str
    default: []
  plan:
    description: What M(torchfleet.cluster.python_environment_plan) returned.
    type: dict
    default: {}
  sent:
    description: Name of the variable in which the task with V(send) was registered, for V(prove) to say what failed.
    type: str
    default: ""
  prepared:
    description: Values from the controller, which the action plugin adds. Not for playbooks.
    type: dict
    default: {}
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Looks, and says whether the environment would be made, sent or proven.
  diff_mode:
    description: Shows the packages of an environment that is made. Only V(make).
    support: full
"""

EXAMPLES = r"""
- name: TensorBoard in an environment of its own
  module_defaults:
    torchfleet.cluster.python_environment:
      role: my_tools
      setting: my_tools_path
      path: /opt/tools
      python: /usr/bin/python3
      packages: [tensorboard==2.21.0]
  block:
    - name: Look at what is there
      torchfleet.cluster.python_environment:
        state: look
      register: my_tools_look

    - name: Plan which machine makes it, and which receive a copy
      torchfleet.cluster.python_environment_plan:
        looks: my_tools_look
      register: my_tools_plan
      run_once: true
      delegate_to: "{{ (groups['head'] | default([]) + [inventory_hostname]) | first }}"

    - name: Make it, and send it to machines of its kind
      torchfleet.cluster.python_environment:
        state: "{{ item.state }}"
        plan: "{{ my_tools_plan }}"
      register: my_tools_made
      loop: "{{ my_tools_plan.steps[inventory_hostname] | default([{'state': 'make'}]) }}"
      delegate_to: "{{ item.host | default(omit) }}"

    - name: Prove that it works on this node
      torchfleet.cluster.python_environment:
        state: prove
        plan: "{{ my_tools_plan }}"
        sent: my_tools_made
"""

RETURN = r"""
ready:
  description: Whether the environment is there already, finished and made from the same things.
  returned: with V(look)
  type: bool
receipt:
  description: What it was made from and what is in it, if it is there.
  returned: with V(look)
  type: dict
place:
  description: The directory in which it is made. It is O(path), or one of its versions.
  returned: with V(look)
  type: str
version:
  description: The name of the version, with O(versions).
  returned: with V(look)
  type: str
  sample: 5.0.11-1a2b3c4d5e6f
used:
  description: The name of the version in use, if there is one.
  returned: with V(look)
  type: str
adopts:
  description: Whether an earlier release put something at O(path), which becomes a version.
  returned: with V(look)
  type: bool
kind:
  description: Equal on machines that can share the environment. Empty on one that cannot.
  returned: with V(look)
  type: str
missing_tools:
  description: Those of O(tools) that the machine does not have.
  returned: with V(look)
  type: list
  elements: str
unsent:
  description: For each machine that it was sent to an empty text, or what went wrong.
  returned: with V(send)
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment_states import STATES
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.standalone import usual

PROGRAM = {
    **{name: {"type": "str", "required": True} for name in ("name", "url", "sha256", "file")},
    "configure": {"type": "list", "elements": "str", "required": True},
    "version": {"type": "str"},
    "with": {"type": "dict"},
}
OPTIONS = {
    "state": {"type": "str", "choices": ["look", "adopt", "make", "send", "prove"], "required": True},
    "role": {"type": "str", "required": True},
    "setting": {"type": "str", "required": True},
    "path": {"type": "str", "required": True},
    "packages": {"type": "list", "elements": "str", "default": []},
    "python": {"type": "str", "default": ""},
    "python_min": {"type": "str", "default": "3.8"},
    "python_max": {"type": "str", "default": ""},
    "disk_mb": {"type": "int", "default": 200},
    "index_url": {"type": "str", "default": "", "no_log": True},
    "one_index": {"type": "bool", "default": False},
    "keep": {"type": "int", "default": 0},
    "torch_packages": {"type": "list", "elements": "str", "default": []},
    "torch_index_url": {"type": "str", "default": "", "no_log": True},
    "kept": {"type": "list", "elements": "str", "default": []},
    "preferred_index": {"type": "str", "default": "", "no_log": True},
    "lock": {"type": "str", "default": ""},
    "locked": {"type": "bool", "default": True},
    "wheelhouse": {"type": "str", "default": ""},
    "wheelhouse_fill": {"type": "bool", "default": False},
    "sources": {"type": "list", "elements": "str", "default": []},
    "programs": {"type": "list", "elements": "dict", "default": [], "options": PROGRAM},
    "tools": {"type": "list", "elements": "str", "default": []},
    "tools_hint": {"type": "str", "default": ""},
    "build_environment": {"type": "dict", "default": {}},
    "linked_environment": {"type": "str", "default": ""},
    "versions": {"type": "str", "choices": ["", "own", "common"], "default": ""},
    "home": {"type": "str", "default": "~/.torchfleet"},
    "proof": {"type": "str", "default": ""},
    "proof_arguments": {"type": "list", "elements": "str", "default": []},
    "plan": {"type": "dict", "default": {}},
    "sent": {"type": "str", "default": ""},
    "prepared": {"type": "dict", "default": {}},
}


def main() -> None:
    """Entry of the module."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    module.params["python"] = usual(module.params["python"], module.params["home"])
    answer = STATES[module.params["state"]](module.params, module.check_mode)
    error = answer.pop("error", "")
    if error:
        module.fail_json(msg=error)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
