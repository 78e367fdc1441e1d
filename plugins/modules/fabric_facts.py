#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fabric_facts
short_description: Read the networks of a node
description:
  - Reads NICs and RDMA ports from sysfs, addresses and routes from the kernel. Needs no root and no other program.
    Changes nothing.
version_added: 0.1.0
author:
  - The torchfleet authors (@torchfleet)
options:
  home:
    description: torchfleet's directory on the node.
    type: path
    default: ~/.torchfleet
  sysfs_root:
    description: Directory where sysfs is mounted.
    type: path
    default: /sys
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Reads the same in check mode.
seealso:
  - module: torchfleet.cluster.fabric_probe
"""

EXAMPLES = r"""
- name: Read the networks of the node
  torchfleet.cluster.fabric_facts:
"""

RETURN = r"""
facts:
  description:
    - The networks. C(arrival) is the node's address of the SSH connection, C(files) are the published files.
    - C(pci) and C(gpus) are the ways from the host bridge to an RDMA device and to the GPUs. C(use) is C(virtual) for a
      function of a guest, C(nvswitch) for a device that only controls NVSwitches, else empty.
  returned: success
  type: dict
  sample:
    host_name: n1
    host_name_addresses: [127.0.1.1]
    arrival: 10.91.0.201
    default_nic: eth0
    nics:
      - name: eth0
        kind: physical
        driver: mlx5_core
        mtu: 1500
        speed_mbit: 10000
        up: true
        carrier: true
        operstate: up
        port_of: ''
        addresses:
          - address: 10.91.0.201
            prefix: 24
            peer: ''
            stable: true
            route: eth0
    rdma:
      - device: mlx5_0
        port: 1
        active: true
        link_layer: Ethernet
        rate_gbit: 100.0
        width: 4X EDR
        netdevs: [eth0]
        gids:
          - index: 3
            gid: 0000:0000:0000:0000:0000:ffff:0a5b:00c9
            type: RoCE v2
            netdev: eth0
        node_type: CA
        driver: mlx5_core
        use: ''
        board: MT_0000000012
        firmware: 16.35.2000
        pci: pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0
    gpus: [pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.0]
    rdma_test: true
    files: {fabric.json: '', fabric.env: ''}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.nics import survey


def main() -> None:
    """Entry of the module."""
    options = {
        "home": {"type": "path", "default": "~/.torchfleet"},
        "sysfs_root": {"type": "path", "default": "/sys"},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    module.exit_json(changed=False, facts=survey(module.params["home"], module.params["sysfs_root"]))


if __name__ == "__main__":
    main()
