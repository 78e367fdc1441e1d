#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: lab
short_description: Nodes in containers on this machine, and what can befall them
description:
  - Starts nodes (systemd, SSH server, any number of NICs with fixed addresses) in containers under Podman, writes an
    inventory with pinned host keys for them, and removes exactly its own. Their images are made from Debian's
    packages, so no container registry is needed.
  - Disturbs nodes and links from outside, so that what a cluster does about it can be seen.
  - Runs on the controller and needs root there.
version_added: 0.1.0
author:
  - The torchfleet authors (@torchfleet)
options:
  name:
    description: Name of the lab; several can be there at a time. Containers are called C(<name>-n1) and so on.
    type: str
    default: lab
  directory:
    description: Where C(hosts.yml), C(known_hosts), C(key) and C(key.pub) are written.
    type: path
    required: true
  context:
    description: Directory with the C(Containerfile) and C(init) of the nodes. Needed for O(state=present).
    type: path
    default: ''
  state:
    description:
      - V(present) makes all nodes run, V(absent) removes the lab with its files.
      - V(cut) drops all that passes between a NIC and other nodes; this machine still gets in. V(shape) limits its
        bandwidth in both directions to O(rate). V(heal) takes both back.
      - V(pause) stops all processes of a node where they stand, V(resume) lets them go on.
      - V(kill) ends them at once. V(restart) boots a node again, after ending it if it runs; it comes back with its
        files, its addresses and its host keys, and healed.
    type: str
    choices: [present, absent, cut, heal, shape, pause, resume, kill, restart]
    default: present
  node:
    description: Which node is disturbed, or V(all).
    type: str
    default: ''
  nic:
    description: Which of its NICs. The default is every one.
    type: str
    default: ''
  rate:
    description: The bandwidth for O(state=shape), such as V(200mbit).
    type: str
    default: ''
  nodes:
    description: How many nodes.
    type: int
    default: 2
  nics:
    description: How many NICs each has. The first one leads out.
    type: int
    default: 1
  subnets:
    description: A network for each NIC. The default is free ones, the same for the same name.
    type: list
    elements: str
    default: []
  release:
    description: Debian release of the nodes, V(bookworm) (12) or V(trixie) (13).
    type: str
    default: bookworm
  image:
    description:
      - What the nodes have beside Python and sshd. V(tools) is venv, rsync, ping, ethtool, nft and Ansible's apt
        bindings. V(bare) is nothing, as on a machine that was just installed.
    type: str
    choices: [tools, bare]
    default: tools
  packages:
    description: Debian packages that the nodes have from the beginning.
    type: list
    elements: str
    default: []
  mirror:
    description: Address of a Debian mirror.
    type: str
    default: ''
  user:
    description: Who Ansible is on the nodes. This user may do everything by sudo, without a password.
    type: str
    default: fleet
  slots:
    description: How many ranks each node takes.
    type: int
    default: 2
  shm_mb:
    description: Size of C(/dev/shm) in MB.
    type: int
    default: 256
  overrides:
    description: What is different on one node, by its name. Any of C(release), C(user), C(port), C(slots), C(hostname).
    type: dict
    default: {}
  mounts:
    description: Directories of this machine that all nodes can read, as C(/here) or C(/here:/there).
    type: list
    elements: str
    default: []
  ca_bundle:
    description: Certificates of the authorities that the nodes trust, in place of Debian's.
    type: path
    default: ''
  pip_config:
    description: Whether pip on the nodes finds packages where it does on this machine. Directories are mounted.
    type: bool
    default: true
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Says what would be done and does nothing.
"""

EXAMPLES = r"""
- name: Two nodes with two NICs each
  torchfleet.cluster.lab:
    directory: "{{ playbook_dir }}/inventory/lab"
    context: "{{ role_path }}/files"
    nics: 2

- name: Break the second link of one
  torchfleet.cluster.lab:
    directory: "{{ playbook_dir }}/inventory/lab"
    state: cut
    node: n2
    nic: eth1

- name: Remove all of it
  torchfleet.cluster.lab:
    directory: "{{ playbook_dir }}/inventory/lab"
    state: absent
"""

RETURN = r"""
nodes:
  description: The nodes of the lab, or those that were removed or disturbed.
  returned: success
  type: list
  elements: str
  sample: [n1, n2]
packages:
  description: Debian packages that are missing on this machine. Only told in check mode; otherwise it is an error.
  returned: success
  type: list
  elements: str
  sample: [podman, runc]
msg:
  description: The outcome for people.
  returned: always
  type: str
"""

from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.faults import disturb
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.lifecycle import absent, present
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import PodmanError

VERBS: dict[str, Callable[[Any, bool], dict[str, Any]]] = {
    "present": present,
    "absent": absent,
    **dict.fromkeys(("cut", "heal", "shape", "pause", "resume", "kill", "restart"), disturb),
}


def main() -> None:
    """Entry of the module."""
    options: dict[str, dict[str, Any]] = {
        "name": {"type": "str", "default": "lab"},
        "directory": {"type": "path", "required": True},
        "context": {"type": "path", "default": ""},
        "state": {"type": "str", "choices": list(VERBS), "default": "present"},
        "node": {"type": "str", "default": ""},
        "nic": {"type": "str", "default": ""},
        "rate": {"type": "str", "default": ""},
        "nodes": {"type": "int", "default": 2},
        "nics": {"type": "int", "default": 1},
        "subnets": {"type": "list", "elements": "str", "default": []},
        "release": {"type": "str", "default": "bookworm"},
        "image": {"type": "str", "choices": ["tools", "bare"], "default": "tools"},
        "packages": {"type": "list", "elements": "str", "default": []},
        "mirror": {"type": "str", "default": ""},
        "user": {"type": "str", "default": "fleet"},
        "slots": {"type": "int", "default": 2},
        "shm_mb": {"type": "int", "default": 256},
        "overrides": {"type": "dict", "default": {}},
        "mounts": {"type": "list", "elements": "str", "default": []},
        "ca_bundle": {"type": "path", "default": ""},
        "pip_config": {"type": "bool", "default": True},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    try:
        done = VERBS[module.params["state"]](module.params, module.check_mode)
    except (ValueError, OSError, PodmanError) as error:
        module.fail_json(msg=f"lab: {error}")
    module.exit_json(**done)


if __name__ == "__main__":
    main()
