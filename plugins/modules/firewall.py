#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: firewall
short_description: Let the nodes of a cluster through the firewall of a node
description:
  - Adds rules that accept all connections with O(addresses), before all other rules. Rules are added to the firewall
    that drops - to firewalld (every zone in use, running and permanent, without a reload), ufw, the chains of nftables
    and iptables. Where nothing drops, nothing is added.
  - nftables and iptables keep no rules. A unit of systemd adds them again after a boot, and whenever the service
    C(nftables), C(iptables) or C(netfilter-persistent) loads its rules anew.
  - The rules of a cluster are known by a comment, with firewalld by a priority of their own. No other rule is touched.
  - Needs root.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  state:
    description: V(absent) removes the rules of the cluster.
    type: str
    choices: [present, absent]
    default: present
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  addresses:
    description: Addresses of the nodes. All that they send is accepted.
    type: list
    elements: str
    default: []
  ssh_addresses:
    description: Further addresses of the nodes, which reach O(ssh_port) only.
    type: list
    elements: str
    default: []
  ssh_port:
    description: The port at which other nodes log in to this one.
    type: int
    default: 22
  part:
    description: V(look) only tells whether rules of the cluster were added here. It needs no root.
    type: str
    choices: [look, all]
    default: all
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Returns what it would change, and changes nothing.
  diff_mode:
    description: Returns the rules of the cluster before and after.
    support: full
seealso:
  - module: torchfleet.cluster.firewall_plan
"""

EXAMPLES = r"""
- name: Let the other node through
  torchfleet.cluster.firewall:
    cluster: lab
    addresses: [10.91.0.11, 10.91.0.12]
  become: true
"""

RETURN = r"""
rules:
  description: The rules of the cluster, a line each. Empty if no firewall of this node drops anything.
  returned: success
  type: list
  elements: str
  sample: [ufw allow from 10.91.0.12]
noted:
  description: Whether rules of the cluster were added here and not removed again.
  returned: with O(part=look)
  type: bool
"""

import ipaddress
import os
from typing import Any, Mapping

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._firewall.manage import NotChanged, apply
from ansible_collections.torchfleet.cluster.plugins.module_utils._firewall.rules import Grant, mark_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import ledger
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.packages import PackageError

ROLE = "firewall"
ADDRESSES = {"type": "list", "elements": "str", "default": []}
OPTIONS = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "cluster": {"type": "str", "required": True},
    "addresses": ADDRESSES,
    "ssh_addresses": ADDRESSES,
    "ssh_port": {"type": "int", "default": 22},
    "part": {"type": "str", "choices": ["look", "all"], "default": "all"},
}


def grants_of(given: Mapping[str, Any]) -> list[Grant]:
    """Return who may connect. ValueError for something that is no address."""
    found = []
    for name, port in (("addresses", 0), ("ssh_addresses", given["ssh_port"])):
        sources = [str(ipaddress.ip_address(text)) for text in given[name]]
        found += [Grant(tuple(sources), port)] if sources and given["state"] == "present" else []
    return found


def main() -> None:
    """Entry of the module."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    try:
        grants = grants_of(module.params)
    except ValueError as error:
        module.fail_json(msg=f"firewall: addresses: {error}; give addresses such as 10.91.0.11")
    mark = mark_of(module.params["cluster"])
    try:
        if module.params["part"] == "look":
            module.exit_json(changed=False, noted=mark in ledger.names_of(ROLE, "rules"))
    except PackageError as error:
        module.fail_json(msg=f"firewall: {error}")
    if os.geteuid() != 0:
        module.fail_json(
            msg="firewall: only root can read and change a firewall; allow sudo, or give a password with -K"
        )
    try:
        if grants and not module.check_mode:
            ledger.note(ROLE, "rules", [mark])  # before, for a change that is interrupted
        done = apply(grants, mark, module.check_mode)
        if not done["rules"] and not module.check_mode:
            ledger.forget("rules", [mark])
        module.exit_json(**done)
    except (NotChanged, PackageError) as error:
        module.fail_json(msg=f"firewall: {error}")


if __name__ == "__main__":
    main()
