#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vendor_packages
short_description: Install packages from the signed repository of a vendor
description:
  - Installs and holds packages, with apt or dnf.
  - Roles P(torchfleet.cluster.cuda#role) and P(torchfleet.cluster.rocm#role) use it.
  - Everything that can be wrong is looked for before anything is changed. A refusal is one line that says what to do.
  - While a job runs on the machine, no package is installed or exchanged.
  - A key is known by its whole fingerprint. No other key of that file is trusted, and this key for no other repository.
  - apt tries the repositories in a separate directory first. Then it reads the lists of the distribution, because the
    vendor's packages depend on packages of the distribution.
  - The next run repairs an interrupted installation.
  - Only an installation needs root (C(become)). A second run needs none, and contacts no repository.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  role:
    description: The role that installs. Errors name it and its variables, and so do files.
    type: str
    required: true
  repositories:
    description:
      - The repositories. Every part but C(name) and C(version) may be a dictionary by system (C(debian13)), by family
        (C(deb), C(rpm)) or for C(any). C({system}), C({machine}) and C({version}) are replaced.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The name of its files.
        type: str
        required: true
      address:
        description: Its address.
        type: raw
        required: true
      suite:
        description: The suite, which is C(/) for a flat repository.
        type: raw
        required: true
      components:
        description: The components of the suite.
        type: raw
      keys:
        description: The C(url) and the C(fingerprint) of the key. C({address}) is replaced too. The machine fetches it.
        type: dict
        required: true
      pin:
        description: What is written into a file of preferences of apt.
        type: raw
      version:
        description: What C({version}) stands for.
        type: raw
      only:
        description: The packages that dnf takes from it. Empty for all.
        type: list
        elements: str
        default: []
      family:
        description: The systems that have it, V(deb) or V(rpm). Empty for all.
        type: str
        choices: ['', deb, rpm]
        default: ''
  systems:
    description: The distributions that there are packages for, such as C(debian12), C(ubuntu2404) and C(rhel9).
    type: list
    elements: str
    required: true
  machines:
    description: The architectures that there are packages for, and what the vendor calls each of them.
    type: dict
    required: true
  packages:
    description: The packages.
    type: list
    elements: str
    required: true
  first:
    description: Packages that apt installs before those, alone, because they decide which versions it takes.
    type: list
    elements: str
    default: []
  same_version:
    description: Packages that are installed last, each in exactly the version of another one.
    type: dict
    default: {}
  hold:
    description: Packages that no upgrade changes.
    type: list
    elements: str
    default: []
  branch:
    description: What the version of the first of the packages begins with. Empty for any.
    type: str
    default: ''
  dnf_commands:
    description: Commands of dnf that choose the branch, by system, each a list of words. dnf takes no O(first).
    type: dict
    default: {}
  kernel_headers:
    description: Whether to install the headers of the running kernel.
    type: bool
    default: false
  kernel_modules_extra:
    description: Whether to install the modules of the running kernel that Ubuntu packages apart, where there are such.
    type: bool
    default: false
  builds_modules:
    description: Whether the packages build kernel modules on the machine.
    type: bool
    default: false
  secure_boot:
    description: Whether Secure Boot is on.
    type: bool
    default: false
  modules_signed:
    description: Whether the site signs the modules that are built, with a key that the firmware knows.
    type: bool
    default: false
  conflicts:
    description: What must not be there.
    type: list
    elements: dict
    default: []
    suboptions:
      package:
        description: A pattern of packages.
        type: str
      branch:
        description: The branch of which such a package may be.
        type: str
      file:
        description: A file.
        type: str
      says:
        description: The refusal. C({seen}) is replaced, and C({remove}) by what the distribution removes packages with.
        type: str
        required: true
  disk_mb:
    description: Free space in MB in C(/usr) without which nothing is started.
    type: int
    default: 200
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
attributes:
  check_mode:
    description: Refuses the same, needs no root, and says what would be installed.
  diff_mode:
    description: Shows the packages with their versions, and the files of repositories.
    support: full
"""

EXAMPLES = r"""
- name: Install AMD's driver
  torchfleet.cluster.vendor_packages:
    role: site
    repositories:
      - name: amdgpu
        address: https://repo.radeon.com/amdgpu/31.50/ubuntu
        suite: {debian12: jammy, ubuntu2404: noble}
        components: main
        keys:
          deb:
            url: https://repo.radeon.com/rocm/rocm.gpg.key
            fingerprint: CA8BB4727A47B4D09B4EE8969386B48A1A693C5C
    systems: [debian12, ubuntu2404]
    machines: {x86_64: x86_64}
    packages: [amdgpu-dkms]
    hold: [amdgpu-dkms]
    kernel_headers: true
    builds_modules: true
  become: true
"""

RETURN = r"""
versions:
  description: The version of each package that is installed.
  returned: success
  type: dict
  sample: {nvidia-open: 580.95.05-1}
msg:
  description: What would be installed, and held.
  returned: in check mode, if something is left to do
  type: str
  sample: would install nvidia-open and hold nvidia-persistenced
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._software import apt, dnf, ledger
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.kernel_module import job_refusal
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.packages import PackageError
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.vendor import (
    Request,
    State,
    difference,
    left_to_do,
    look,
    planned,
    refusals,
    snapshot,
)

INSTALL = {"deb": apt.install, "rpm": dnf.install}
# To the action, which checks it and returns the first.
ANSWERED = ("versions", "headers", "missing", "wrong_version", "not_held")

REPOSITORY: dict[str, object] = {
    "name": {"type": "str", "required": True},
    "address": {"type": "raw", "required": True},
    "suite": {"type": "raw", "required": True},
    "components": {"type": "raw"},
    "keys": {"type": "dict", "required": True, "no_log": False},
    "pin": {"type": "raw"},
    "version": {"type": "raw"},
    "only": {"type": "list", "elements": "str", "default": []},
    "family": {"type": "str", "choices": ["", "deb", "rpm"], "default": ""},
}
CONFLICT: dict[str, object] = {
    "package": {"type": "str"},
    "branch": {"type": "str"},
    "file": {"type": "str"},
    "says": {"type": "str", "required": True},
}
OPTIONS: dict[str, object] = {
    "role": {"type": "str", "required": True},
    "repositories": {"type": "list", "elements": "dict", "required": True, "options": REPOSITORY},
    "systems": {"type": "list", "elements": "str", "required": True},
    "machines": {"type": "dict", "required": True},
    "packages": {"type": "list", "elements": "str", "required": True},
    "first": {"type": "list", "elements": "str", "default": []},
    "same_version": {"type": "dict", "default": {}},
    "hold": {"type": "list", "elements": "str", "default": []},
    "branch": {"type": "str", "default": ""},
    "dnf_commands": {"type": "dict", "default": {}},
    "kernel_headers": {"type": "bool", "default": False},
    "kernel_modules_extra": {"type": "bool", "default": False},
    "builds_modules": {"type": "bool", "default": False},
    "secure_boot": {"type": "bool", "default": False},
    "modules_signed": {"type": "bool", "default": False},
    "conflicts": {"type": "list", "elements": "dict", "default": [], "options": CONFLICT},
    "disk_mb": {"type": "int", "default": 200},
}


def install(request: Request, state: State) -> State:
    """Install what is missing and return how the machine is then. PackageError if something is left to do."""
    if os.geteuid() != 0:
        raise PackageError("packages are installed as root: become root")
    files = files_of(state)
    with ledger.noting(request["role"]):
        ledger.note(request["role"], "files", files)  # before, for an installation that is interrupted
        try:
            INSTALL[state["family"]](request, state)
        finally:
            ledger.forget("files", [path for path in files if not os.path.lexists(path)])
    after = look(request)
    if left_to_do(after):
        raise PackageError(f"after the installation this is not as it should be: {', '.join(left_to_do(after))}")
    return after


def files_of(state: State) -> list[str]:
    """Return the files of the repositories, which are written for them alone."""
    return [path for one in state["repositories"] for path in (one["keyring"], *one["files"])]


def main() -> None:
    """Entry of the module."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    request: Request = module.params
    try:
        state = look(request)
    except PackageError as error:
        module.fail_json(msg=f"{request['role']}: {error}")
    refused = refusals(request, state)
    if not refused and (state["missing"] or state["wrong_version"]):
        refused = [*filter(None, [job_refusal(request["role"], "these packages would change under it")])]
    if refused:
        module.fail_json(msg="; ".join(refused))
    changed, before, after = bool(left_to_do(state)), snapshot(request, state), planned(request, state)
    if changed and not module.check_mode:
        try:
            state = install(request, state)
        except PackageError as error:
            module.fail_json(msg=f"{request['role']}: {error}")
        except OSError as error:
            module.fail_json(msg=f"{request['role']}: a file could not be written: {error}")
        after = snapshot(request, state)
    answer = {name: state[name] for name in ANSWERED}  # type: ignore[literal-required]
    module.exit_json(changed=changed, diff=difference(before, after), **answer)


if __name__ == "__main__":
    main()
