#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: lab
short_description: Run nodes in containers on this machine, and inject faults
description:
  - Starts nodes (systemd, SSH server, any number of NICs with fixed addresses) in containers under Podman, writes an
    inventory with pinned host keys for them, and removes only what it created. Images are built from Debian's
    packages, so no container registry is needed.
  - Injects faults into nodes and links, to see how a cluster reacts.
  - Runs on the controller and needs root there.
version_added: 0.1.0
author:
  - The torchfleet authors (@torchfleet)
options:
  name:
    description: Name of the lab. Several labs can exist at a time. Containers are called C(<name>-n1) and so on.
    type: str
    default: lab
  directory:
    description: Directory for C(hosts.yml), C(known_hosts), C(key) and C(key.pub).
    type: path
    required: true
  context:
    description: Directory with the nodes' C(Containerfile) and C(init). Required for O(state=present).
    type: path
    default: ''
  state:
    description:
      - V(present) starts all nodes, V(absent) removes the lab and its files.
      - V(cut) drops all packets between a NIC and other nodes; this machine can still reach the node. V(shape) limits
        the NIC's bandwidth in both directions to O(rate). V(heal) undoes both.
      - V(pause) stops all processes of a node, V(resume) continues them.
      - V(kill) kills them. V(restart) boots a node again, after killing it if it runs. The node keeps its files,
        addresses and host keys, and its links are healed.
    type: str
    choices: [present, absent, cut, heal, shape, pause, resume, kill, restart]
    default: present
  node:
    description: The node for a fault, or V(all).
    type: str
    default: ''
  nic:
    description: The NIC for a fault. The default is all NICs of the node.
    type: str
    default: ''
  rate:
    description: The bandwidth for O(state=shape), such as V(200mbit).
    type: str
    default: ''
  nodes:
    description: Number of nodes.
    type: int
    default: 2
  head_only:
    description:
      - Whether C(n1), the head, runs no ranks, as a small machine beside those with GPUs. It then needs O(nodes) of at
        least 2.
    type: bool
    default: false
    version_added: 0.5.0
  nics:
    description: Number of NICs of each node. The first one also reaches the outside.
    type: int
    default: 1
  subnets:
    description: A network for each NIC. By default free ones are chosen, always the same for the same name.
    type: list
    elements: str
    default: []
  release:
    description: Debian release of the nodes, V(bullseye) (11), V(bookworm) (12) or V(trixie) (13).
    type: str
    default: bookworm
  image:
    description:
      - What is installed besides Python and sshd. V(tools) means venv, rsync, ping, ethtool, nft and Ansible's apt
        bindings. V(bare) means nothing, as on a machine that was just installed.
    type: str
    choices: [tools, bare]
    default: tools
  packages:
    description: More Debian packages for the nodes' image.
    type: list
    elements: str
    default: []
  mirror:
    description: Address of a Debian mirror.
    type: str
    default: ''
  user:
    description: The user that Ansible logs in as on the nodes. It has sudo for everything, without a password.
    type: str
    default: fleet
  slots:
    description: Number of ranks for each node.
    type: int
    default: 2
  shm_mb:
    description: Size of C(/dev/shm) in MB.
    type: int
    default: 256
  overrides:
    description: Values for single nodes, by node name. Any of C(release), C(user), C(port), C(slots), C(hostname).
    type: dict
    default: {}
  mounts:
    description: Directories of this machine to mount read-only on all nodes, as C(/here) or C(/here:/there).
    type: list
    elements: str
    default: []
  ca_bundle:
    description: File with the CA certificates that the nodes trust, instead of Debian's.
    type: path
    default: ''
  pip_config:
    description: Whether pip on the nodes uses the package sources of this machine. Local directories are mounted.
    type: bool
    default: true
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Reports what would change, and changes nothing.
"""

EXAMPLES = r"""
- name: Start two nodes with two NICs each
  torchfleet.cluster.lab:
    directory: "{{ playbook_dir }}/inventory/lab"
    context: "{{ role_path }}/files"
    nics: 2

- name: Cut the second link of one node
  torchfleet.cluster.lab:
    directory: "{{ playbook_dir }}/inventory/lab"
    state: cut
    node: n2
    nic: eth1

- name: Remove the lab
  torchfleet.cluster.lab:
    directory: "{{ playbook_dir }}/inventory/lab"
    state: absent
"""

RETURN = r"""
nodes:
  description: The nodes of the lab, or those that were removed or that a fault was injected into.
  returned: success
  type: list
  elements: str
  sample: [n1, n2]
packages:
  description: Debian packages that are missing on this machine, in check mode. Otherwise missing packages are an error.
  returned: success
  type: list
  elements: str
  sample: [podman, runc]
msg:
  description: The outcome as a sentence.
  returned: always
  type: str
"""

from typing import Callable, Mapping

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.faults import disturb
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.lifecycle import absent, present
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import PodmanError
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.spec import Options

VERBS: Mapping[str, Callable[[Options, bool], dict[str, object]]] = {
    "present": present,
    "absent": absent,
    **dict.fromkeys(("cut", "heal", "shape", "pause", "resume", "kill", "restart"), disturb),
}


def main() -> None:
    """Entry of the module."""
    options: dict[str, dict[str, object]] = {
        "name": {"type": "str", "default": "lab"},
        "directory": {"type": "path", "required": True},
        "context": {"type": "path", "default": ""},
        "state": {"type": "str", "choices": list(VERBS), "default": "present"},
        "node": {"type": "str", "default": ""},
        "nic": {"type": "str", "default": ""},
        "rate": {"type": "str", "default": ""},
        "nodes": {"type": "int", "default": 2},
        "head_only": {"type": "bool", "default": False},
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
