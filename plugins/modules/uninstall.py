#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: uninstall
short_description: Remove from a node what a role put there
description:
  - Removes environments and files as the user of the connection, then, if the task says C(become), what root added for
    the role. The latter is noted on the node in C(/var/lib/torchfleet/installed.json). What was there before stays.
  - A package that something else on the node needs stays too. So does all that root added while the node belongs to
    another cluster as well, of any user. It goes with the last cluster.
  - Refuses while a job runs, before anything is removed.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  role:
    description: The role. Every message begins with it.
    type: str
    required: true
  home:
    description: torchfleet's directory on the node. It is removed if it is empty at the end.
    type: path
    default: ~/.torchfleet
  environments:
    description: What M(torchfleet.cluster.python_environment) or M(torchfleet.cluster.system_launcher) made.
    type: list
    elements: path
    default: []
  files:
    description: Names of files and directories in O(home), or patterns with C(*).
    type: list
    elements: str
    default: []
  services:
    description: Patterns of systemd services that the role enabled, with a drop-in C(torchfleet.conf).
    type: list
    elements: str
    default: []
  keep_packages:
    description: Keep packages, their repositories and their services.
    type: bool
    default: false
  force:
    description: End the user's running jobs, and remove results that were not fetched.
    type: bool
    default: false
  others_stay:
    description: Whether other nodes stay. An environment on a file system that they may share is then kept.
    type: bool
    default: false
  mine:
    description:
      - The clusters that do not count as others, as V(NAME of USER). The action sets it to those that have O(home).
    type: list
    elements: str
  part:
    description:
      - What to do. The action calls the module once for each part that is necessary, and sets this option.
      - V(look) changes nothing.
    type: str
    choices: [look, user, root]
    default: look
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Lists what would be removed. Needs no root, without which clusters of other users may not be seen.
seealso:
  - module: torchfleet.cluster.system_packages
  - module: torchfleet.cluster.vendor_packages
"""

EXAMPLES = r"""
- name: Remove MPICH, and the packages that were installed for it
  torchfleet.cluster.uninstall:
    role: mpich
    environments: ["~/.torchfleet/mpich"]
  become: true
"""

RETURN = r"""
removed:
  description: What was removed, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [/home/me/.torchfleet/mpich, package mpich]
others:
  description: Other clusters that this machine is a node of, and for which what root added stays.
  returned: success
  type: list
  elements: str
  sample: [lab of another]
kept:
  description: Packages that were installed for the role and stay, because something else needs them.
  returned: success
  type: list
  elements: str
  sample: [gcc-14]
msg:
  description: The result as a sentence.
  returned: if anything was removed or kept
  type: str
  sample: "removed: /home/me/.torchfleet/mpich, package mpich"
"""

import os
import re
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.home import home_path
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import (
    package_removal,
    removal,
    service_removal,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.packages import PackageError
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.clusters_here import clusters_here, clusters_in
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.files import MeshFailed
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.sshd import reload_system

OPTIONS: dict[str, object] = {
    "role": {"type": "str", "required": True},
    "home": {"type": "path", "default": "~/.torchfleet"},
    "environments": {"type": "list", "elements": "path", "default": []},
    "files": {"type": "list", "elements": "str", "default": []},
    "services": {"type": "list", "elements": "str", "default": []},
    "keep_packages": {"type": "bool", "default": False},
    "force": {"type": "bool", "default": False},
    "others_stay": {"type": "bool", "default": False},
    "mine": {"type": "list", "elements": "str"},
    "part": {"type": "str", "choices": ["look", "user", "root"], "default": "look"},
}
MOST_OTHERS = 8  # in a message
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._*-]*\Z")


def request_of(given: dict[str, Any]) -> removal.Request:
    """Return the user's part of the options. Refused for a name that is a path."""
    odd = [name for name in given["files"] if not PLAIN_NAME.match(name)]
    if odd:
        raise removal.Refused(f"files: got {odd[0]!r}; give names in the home")
    return removal.Request(
        role=given["role"],
        home=Path(home_path(given["home"])),
        environments=[Path(path) for path in given["environments"]],
        files=given["files"],
        force=given["force"],
        others_stay=given["others_stay"],
    )


def look(request: removal.Request, given: dict[str, Any]) -> dict[str, Any]:
    """Return what there is to remove. Refused if it must not be."""
    removal.refuse_running(request)
    going = package_removal.leaving(given["role"], given["keep_packages"])
    drop_ins = [] if given["keep_packages"] else service_removal.drop_ins(given["services"])
    roots = [*drop_ins, *going.texts]
    known = given["mine"]
    mine = {cluster.text for cluster in clusters_in(str(request.home))} if known is None else set(known)
    return {
        "removed": [*removal.texts(request), *roots],
        "roots": roots,
        "kept": going.kept,
        "mine": sorted(mine),
        "others": sorted({cluster.text for cluster in clusters_here()} - mine)[:MOST_OTHERS],
        "needs_root": bool(roots or going.passed_on),
        "needs_packages": bool(going.packages),
    }


def remove_as_root(given: dict[str, Any], needs_packages: bool) -> None:
    """Remove root's part. Refused, PackageError, OSError."""
    if os.geteuid() != 0:
        raise removal.Refused("packages are removed as root: become root")
    if needs_packages:
        removal.refuse_other_users()
    if not given["keep_packages"]:
        service_removal.remove(service_removal.drop_ins(given["services"]))
    files = package_removal.leaving(given["role"], given["keep_packages"]).files
    package_removal.remove(given["role"], given["keep_packages"])
    if any(path.startswith("/etc/ssh/") for path in files):
        reload_system([], removed=True, dry_run=False)


def main() -> None:
    """Entry of the module."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    given = module.params
    part = "look" if module.check_mode else given["part"]
    try:
        request = request_of(given)
        found = look(request, given)
        if part == "user":
            removal.remove(request)
        elif part == "root":
            remove_as_root(given, found["needs_packages"])
    except (removal.Refused, PackageError, MeshFailed) as error:
        module.fail_json(msg=f"{given['role']}: {error}")
    except OSError as error:
        module.fail_json(msg=f"{given['role']}: {error.filename} cannot be removed: {error.strerror}")
    module.exit_json(changed=bool(found["removed"]), **found)


if __name__ == "__main__":
    main()
