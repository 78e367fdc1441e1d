#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: prerequisites
short_description: Install and set what a node of a cluster lacks, as root only where something is to be done
description:
  - Decides from the facts of the node what it lacks. Does nothing, and becomes root nowhere, where nothing is missing.
  - Each switch is V(auto) (where preflight finds that something is missing), V(true) (also where nothing needs it, and
    the task fails if it cannot be done) or V(false) (left alone).
  - Changes only packages that are missing, one file in C(/etc/security/limits.d), one in C(/etc/ssh/sshd_config.d),
    and a time service that does not run.
version_added: 0.6.0
author:
  - The torchfleet authors (@torchfleet)
options:
  seen:
    description: The result of M(torchfleet.cluster.node_facts) for this node. Empty to read the facts now.
    type: dict
    default: {}
  rdma:
    description: The libraries of RDMA (libibverbs, rdma-core). V(auto) installs them where there are RDMA devices.
    type: str
    default: auto
  limits:
    description: The limits of locked memory (where there are RDMA devices), open files and processes.
    type: str
    default: auto
  clock:
    description: A time service. V(auto) turns one on where none runs and the clock is wrong; chrony if none is there.
    type: str
    default: auto
  logins:
    description: C(MaxStartups) of sshd, where it accepts fewer logins at once than the cluster has nodes.
    type: str
    default: auto
  ssh_client:
    description: The SSH client. V(auto) installs it on the head.
    type: str
    default: auto
  max_clock_offset:
    description: Seconds by which a node's clock may differ from the controller's.
    type: float
    default: 5.0
  work:
    description: What is to be done on the node. The action decides it.
    type: dict
    default: {}
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Says what would be done, and does nothing.
  diff_mode:
    description: Shows the text of the files.
    support: full
seealso:
  - module: torchfleet.cluster.preflight
"""

EXAMPLES = r"""
- name: Install and set what the node lacks
  torchfleet.cluster.prerequisites:
    seen: "{{ preflight_seen }}"
    clock: "true"
  become: true
"""

RETURN = r"""
changes:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [chrony installed, chrony.service turned on]
left:
  description: What is missing and was left, as it could not be done and was not asked for. Empty where nothing is.
  returned: success
  type: str
  sample: set MaxStartups 64:30:128 of sshd
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.prerequisites import LOGINS_FILE
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import ledger, prerequisites
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.limits_file import LIMITS_FILE
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.packages import PackageError
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.files import MeshFailed
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.logins import accept_logins

ROLE = "prerequisites"


def main() -> None:
    """Entry of the module."""
    switch = {"type": "str", "default": "auto"}
    options = {
        "seen": {"type": "dict", "default": {}},
        **dict.fromkeys(("rdma", "limits", "clock", "logins", "ssh_client"), switch),
        "max_clock_offset": {"type": "float", "default": 5.0},
        "work": {"type": "dict", "default": {}},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    work, changes, left = module.params["work"], [], ""
    try:
        with ledger.noting(ROLE):
            changes += prerequisites.install_packages(work["manager"], work["packages"])
        written = {LIMITS_FILE: work["limits"], LOGINS_FILE: work["logins"]}
        ledger.note(ROLE, "files", [path for path, content in written.items() if content])
        changes += prerequisites.write_limits(work["limits"])
        turned_on = prerequisites.turn_on(work["time_unit"], work["wait_for_clock"])
        if turned_on:
            ledger.note(ROLE, "services", [f"{work['time_unit']}.service"])
        changes += turned_on
        changes += accept_logins(work["logins"]) if work["logins"] else []
    except (prerequisites.NotDone, PackageError) as error:
        module.fail_json(msg=f"prerequisites: {error}", changes=changes)
    except MeshFailed as error:
        left = str(error)
        if "logins" in work["required"]:
            module.fail_json(msg=f"prerequisites: {left}", changes=changes)
    module.exit_json(changed=bool(changes), changes=changes, left=left)


if __name__ == "__main__":
    main()
