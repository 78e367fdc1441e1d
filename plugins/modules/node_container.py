#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_container
short_description: Run a container on a machine that is a node of a cluster
description:
  - Starts one long-lived container of podman or docker on a machine, with the machine's network and devices, a user
    with sudo, and an SSH server of its own. M(torchfleet.cluster.node_container_inventory) writes an inventory of them,
    with which C(setup.yml) and C(train.yml) take them for machines.
  - The container's first process is ours and needs Python 3.8 or newer in the image. What is missing of sshd and sudo
    is installed in the container with apt-get or dnf.
  - The host key is made in the container and returned over Ansible's own connection, so that it can be pinned.
  - Containers have labels with the cluster and the host. Only a container with both labels and the name
    C(<cluster>-<host>) is ever started, kept or removed.
version_added: 0.6.0
author:
  - The torchfleet authors (@torchfleet)
options:
  state:
    description:
      - V(present) makes the container run. A container that was made with other options is refused, for its files would
        be lost. A failed start leaves nothing.
      - V(prepared) only pulls or makes the image that a new container needs, and looks into it.
      - V(absent) removes it with its files.
      - V(built) keeps the files of the running container as an image C(localhost/torchfleet-<part>:<base>), without
        host key, SSH configuration and labels. A node with keys of the SSH mesh is refused.
    type: str
    choices: [present, prepared, absent, built]
    default: present
  cluster:
    description: Name of the cluster.
    type: str
    default: nodes
  host:
    description: Name of the machine in the inventory. It is the host name in the container.
    type: str
    required: true
  engine:
    description: The engine. V(auto) takes podman if it is installed, else docker.
    type: str
    choices: [auto, podman, docker]
    default: auto
  image:
    description:
      - Name of the image. It is pulled if the machine does not have it, unless its name begins with C(localhost/).
      - Empty for one that is made of O(base).
    type: str
    default: ''
  base:
    description:
      - The kind of accelerator that an image is made for, from an image of Debian, NVIDIA, AMD or Intel with sshd, sudo
        and Python added. V(cpu) is made of Debian's packages without a registry, by root with podman and mmdebstrap.
    type: str
    choices: [cpu, cuda, rocm, xpu]
    default: cpu
  part:
    description: What O(state=built) names the image after.
    type: str
    choices: [launcher, worker]
    default: worker
  home:
    description: Where torchfleet keeps its files in the container. O(state=built) looks for keys of the SSH mesh there.
    type: str
    default: ~/.torchfleet
  user:
    description: The user that logs in, with sudo for everything.
    type: str
    default: fleet
  uid:
    description: Its uid. 0 means that of the user who runs the module, or 1000 for root.
    type: int
    default: 0
  port:
    description: Port of its SSH server. 0 means the first free one from 2222.
    type: int
    default: 0
  listen:
    description: Addresses of the machine that the SSH server listens on. The default is all.
    type: list
    elements: str
    default: []
  shm_size:
    description: Size of C(/dev/shm), such as V(8g). V(host) shares that of the machine.
    type: str
    default: 8g
  devices:
    description:
      - Devices for the container, as paths or names of CDI. V(auto) means the machine's GPUs (NVIDIA's by CDI, or
        docker's own toolkit; C(/dev/kfd) and C(/dev/dri)) and C(/dev/infiniband), with the groups that own them.
    type: list
    elements: str
    default: [auto]
  mounts:
    description: Directories of the machine, as C(/here), C(/here:/there) or C(/here:/there:rw). Else read-only.
    type: list
    elements: str
    default: []
  env:
    description:
      - Variables of logins, besides those of the image. They stand in the description of the container, so they are no
        place for secrets.
    type: dict
    default: {}
  args:
    description: More options for C(podman run) or C(docker run).
    type: list
    elements: str
    default: []
  key:
    description: Public key that opens the account. Required to create a container.
    type: str
    default: ''
  install:
    description: Whether missing packages may be installed in the container.
    type: bool
    default: true
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Looks at the machine, and starts, pulls and makes nothing. Looks into an image that is there.
  diff_mode:
    description: Shows what the container is made of.
    support: full
seealso:
  - module: torchfleet.cluster.node_container_inventory
"""

EXAMPLES = r"""
- name: Start a node container on every machine
  torchfleet.cluster.node_container:
    host: "{{ inventory_hostname }}"
    image: docker.io/intel/deep-learning:2024.0-py3.10
    key: "{{ lookup('ansible.builtin.file', '~/.ssh/id_ed25519.pub') }}"

- name: Remove them
  torchfleet.cluster.node_container:
    host: "{{ inventory_hostname }}"
    state: absent
"""

RETURN = r"""
node:
  description: How the node is reached. In check mode a container that does not run yet has no host keys.
  returned: success, with O(state=present)
  type: dict
  contains:
    port:
      description: Port of its SSH server.
      type: int
    user:
      description: The user that logs in.
      type: str
    python:
      description: Path of its Python.
      type: str
    host_keys:
      description: Its public host keys, type and base64.
      type: list
      elements: str
    engine:
      description: The engine.
      type: str
    image:
      description: Name of the image.
      type: str
  sample:
    port: 2222
    user: fleet
    python: /usr/bin/python3
    host_keys: [ssh-ed25519 AAAA...]
    engine: podman
    image: localhost/torchfleet-node:cpu
image:
  description: Name of the image that was kept.
  returned: success, with O(state=built)
  type: str
  sample: localhost/torchfleet-worker:cpu
code:
  description: C(engine_failed), if the task fails because an engine did not tell what it has.
  returned: failure
  type: str
  sample: engine_failed
msg:
  description: The outcome as a sentence.
  returned: always
  type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import PodmanError
from ansible_collections.torchfleet.cluster.plugins.module_utils._node_container.bases import BASES
from ansible_collections.torchfleet.cluster.plugins.module_utils._node_container.devices import NoDevice
from ansible_collections.torchfleet.cluster.plugins.module_utils._node_container.engine import ENGINES, EngineFailed
from ansible_collections.torchfleet.cluster.plugins.module_utils._node_container.lifecycle import VERBS


def main() -> None:
    """Entry of the module."""
    options: dict[str, dict[str, object]] = {
        "state": {"type": "str", "choices": list(VERBS), "default": "present"},
        "cluster": {"type": "str", "default": "nodes"},
        "host": {"type": "str", "required": True},
        "engine": {"type": "str", "choices": ["auto", *ENGINES], "default": "auto"},
        "image": {"type": "str", "default": ""},
        "base": {"type": "str", "choices": list(BASES), "default": "cpu"},
        "part": {"type": "str", "choices": ["launcher", "worker"], "default": "worker"},
        "home": {"type": "str", "default": "~/.torchfleet"},
        "user": {"type": "str", "default": "fleet"},
        "uid": {"type": "int", "default": 0},
        "port": {"type": "int", "default": 0},
        "listen": {"type": "list", "elements": "str", "default": []},
        "shm_size": {"type": "str", "default": "8g"},
        "devices": {"type": "list", "elements": "str", "default": ["auto"]},
        "mounts": {"type": "list", "elements": "str", "default": []},
        "env": {"type": "dict", "default": {}},
        "args": {"type": "list", "elements": "str", "default": []},
        "key": {"type": "str", "default": "", "no_log": False},
        "install": {"type": "bool", "default": True},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    try:
        done = VERBS[module.params["state"]](module.params, module.check_mode)
    except (ValueError, OSError, EngineFailed, NoDevice, PodmanError) as error:
        code = getattr(error, "code", None)
        module.fail_json(msg=str(error), **({"code": str(code)} if code else {}))
    module.exit_json(**done)


if __name__ == "__main__":
    main()
