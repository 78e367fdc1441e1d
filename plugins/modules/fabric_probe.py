#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fabric_probe
short_description: Test which networks connect the nodes, and measure their speed
description:
  - One step of a test between nodes, in this order - V(listen) on every node, then V(connect) on every node; or
    V(listen), V(measure), V(collect). V(recall) comes before a test, which it can make unnecessary.
  - V(listen) reads the networks of the node and starts an agent, a small background process that answers the other
    nodes. The agent exits when all O(expected) nodes have finished, or after O(seconds).
  - Needs no root. Changes nothing else.
version_added: 0.1.0
author:
  - The torchfleet authors (@torchfleet)
options:
  state:
    description:
      - V(recall) returns O(known) as RV(facts), and O(constraints). The node is not asked.
      - V(listen) starts the agent and returns RV(facts).
      - V(connect) connects to all O(peers) at the same time, then tells their agents that this node has finished.
      - V(measure) gives the agent its O(steps) and returns at once, so that fewer forks than nodes are enough.
      - V(collect) waits until the agent has done all steps, returns RV(measured) and stops the agent.
      - V(stop) stops the agent.
    type: str
    choices: [recall, listen, connect, measure, collect, stop]
    required: true
  name:
    description: The node's name in the inventory.
    type: str
    required: true
  home:
    description: torchfleet's directory on the node.
    type: path
    default: ~/.torchfleet
  sysfs_root:
    description: Directory where sysfs is mounted.
    type: path
    default: /sys
  expected:
    description: The nodes of the cluster, for V(listen). If this is the only node, no agent is started.
    type: list
    elements: str
    default: []
  ports:
    description: The agent's port, such as V(29000), or a range, such as V(29000-29099). Empty for any free port.
    type: str
    default: ''
  seconds:
    description: Seconds after which the agent exits in any case.
    type: int
    default: 120
  timeout:
    description: Seconds to wait for a connection.
    type: float
    default: 2
  constraints:
    description: The user's constraints for this node. They are returned unchanged.
    type: dict
    default: {}
    suboptions:
      nic:
        description: The NIC to use.
        type: str
        default: ''
      address:
        description: The address to use.
        type: str
        default: ''
      rdma:
        description: The RDMA devices to use, or patterns of them.
        type: list
        elements: str
        default: []
        version_added: 0.5.0
  known:
    description:
      - The networks of this node that role P(torchfleet.cluster.preflight#role) read in the same run,
        C(preflight_seen.facts.networks), for V(recall). Empty if there are none.
    type: dict
    default: {}
    version_added: 0.5.0
  peers:
    description: The nodes to reach, for V(connect).
    type: list
    elements: dict
    default: []
    suboptions:
      node:
        description: The name of the other node.
        type: str
        required: true
      network:
        description: The network to test.
        type: str
        required: true
      address:
        description: The other node's address in that network.
        type: str
        required: true
      port:
        description: The port of the other node's agent.
        type: int
        required: true
      last_port:
        description: The other port of the other node's agent, if O(ports) is a range; V(0) if it has none.
        type: int
        default: 0
        version_added: 0.5.0
      token:
        description: The token of the other node's agent.
        type: str
        required: true
      nic:
        description: The NIC of this node that the connection must use.
        type: str
        required: true
      source:
        description: The address of this node that the connection must use.
        type: str
        required: true
      mtu:
        description: The MTU of that NIC.
        type: int
        required: true
  steps:
    description: The measurements of this node, for V(measure), as role P(torchfleet.cluster.verify#role) plans them.
    type: list
    elements: dict
    default: []
  agent:
    description: RV(agent) as returned by V(listen), for V(measure), V(collect) and V(stop).
    type: dict
    default: {}
extends_documentation_fragment:
  - torchfleet.cluster.attributes
seealso:
  - module: torchfleet.cluster.fabric_choose
"""

EXAMPLES = r"""
- name: Start an agent on every node
  torchfleet.cluster.fabric_probe:
    state: listen
    name: "{{ inventory_hostname }}"
    expected: "{{ ansible_play_hosts_all }}"
  register: found

- name: Choose the nodes that each node has to reach
  torchfleet.cluster.fabric_choose:
    nodes: "{{ ansible_play_hosts_all }}"
    listened: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'found'))) }}"
  register: plan
  run_once: true

- name: Connect to the other nodes
  torchfleet.cluster.fabric_probe:
    state: connect
    name: "{{ inventory_hostname }}"
    peers: "{{ plan.peers[inventory_hostname] }}"
"""

RETURN = r"""
facts:
  description: The networks of the node, as M(torchfleet.cluster.fabric_facts) returns them.
  returned: with O(state=listen), O(state=recall)
  type: dict
agent:
  description: Port, last port (of a range), token and pid of the agent. The token is useless once the agent has exited.
  returned: with O(state=listen)
  type: dict
constraints:
  description: The constraints, unchanged.
  returned: with O(state=listen), O(state=recall)
  type: dict
reached:
  description: For each of O(peers), why the test failed, or an empty text and the MTU of the path.
  returned: with O(state=connect)
  type: list
  elements: dict
  sample:
    - {node: n2, network: 10.91.0.0/24, reason: '', mtu: 1500}
measured:
  description:
    - The measurements of this node, Mbit/s in both directions and microseconds of a round trip. If O(steps) have rails,
      also a row for each rail and node, Mbit/s in one direction and the MTU that passed.
    - C(code) and C(error) are why a test failed, empty if it did not.
  returned: with O(state=collect)
  type: list
  elements: dict
  sample:
    - {node: n2, network: 10.91.0.0/24, code: '', error: '', rtt_us: 61.5, mbit_out: 9412.2, mbit_in: 9401.7}
    - {node: n2, rail: 'mlx5_0:1', peer: 'mlx5_0:1', by: rdma, code: '', error: '', mbit: 394250.0, mtu: 4096}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric import probe, probe_server
from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.nics import survey

COLLECT_SECONDS = 600.0
STATES = ("recall", "listen", "connect", "measure", "collect", "stop")
TEXT = {"type": "str", "required": True}
WHOLE = {"type": "int", "required": True}
PEER = {
    "node": TEXT,
    "network": TEXT,
    "address": TEXT,
    "port": WHOLE,
    "last_port": {"type": "int", "default": 0},
    "token": {"type": "str", "required": True, "no_log": True},
    "nic": TEXT,
    "source": TEXT,
    "mtu": WHOLE,
}
CONSTRAINTS = {
    "nic": {"type": "str", "default": ""},
    "address": {"type": "str", "default": ""},
    "rdma": {"type": "list", "elements": "str", "default": []},
}
OPTIONS = {
    "state": {"type": "str", "choices": list(STATES), "required": True},
    "name": TEXT,
    "home": {"type": "path", "default": "~/.torchfleet"},
    "sysfs_root": {"type": "path", "default": "/sys"},
    "expected": {"type": "list", "elements": "str", "default": []},
    "ports": {"type": "str", "default": ""},
    "seconds": {"type": "int", "default": 120},
    "timeout": {"type": "float", "default": 2.0},
    "constraints": {"type": "dict", "default": {}, "options": CONSTRAINTS},
    "known": {"type": "dict", "default": {}},
    "peers": {"type": "list", "elements": "dict", "default": [], "options": PEER, "no_log": False},
    "steps": {"type": "list", "elements": "dict", "default": []},
    "agent": {"type": "dict", "default": {}},
}


def listen(given: dict[str, Any]) -> dict[str, object]:
    """Start the agent. ValueError for ports that are none, OSError if none of them is free."""
    ports = port_range(given["ports"])
    others = [name for name in given["expected"] if name != given["name"]]
    agent = probe_server.start(given["name"], ports, given["seconds"], others) if others else {}
    return {"facts": survey(given["home"], given["sysfs_root"]), "agent": agent, "constraints": given["constraints"]}


def port_range(text: str) -> range:
    """Return the ports of `29000` or `29000-29099`; 0 is any. ValueError if it is neither."""
    first, _dash, last = text.partition("-")
    if not text:
        return range(1)
    low = int(first)
    high = int(last or first)
    if not 1024 <= low <= high <= 65535:
        raise ValueError
    return range(low, high + 1)


def order(given: dict[str, Any], seconds: float, what: dict[str, object]) -> dict[str, object]:
    """Tell this node's own agent what to do."""
    return probe.ask(given["name"], given["agent"], seconds, what) if given["agent"] else {}


def act(given: dict[str, Any]) -> dict[str, object]:
    """Do one step and return what it found."""
    if given["state"] == "recall":
        return {"facts": given["known"], "constraints": given["constraints"]}
    if given["state"] == "listen":
        return listen(given)
    if given["state"] == "connect":
        return {"reached": probe.reach(given["name"], given["peers"], given["timeout"])}
    if given["state"] == "measure":
        order(given, 5.0, {"do": "schedule", "steps": given["steps"]})
        return {}
    found = order(given, COLLECT_SECONDS, {"do": "collect"}) if given["state"] == "collect" else {}
    order(given, 5.0, {"do": "stop"})
    return {"measured": found.get("rows", [])}


def main() -> None:
    """Entry of the module."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    try:
        module.exit_json(changed=False, **act(module.params))
    except ValueError:
        module.fail_json(
            msg=f"fabric_ports: got {module.params['ports']!r}; give one as 29000, or a range as 29000-29099"
        )
    except (OSError, EOFError) as error:
        if module.params["state"] == "stop":
            module.exit_json(changed=False)  # it had ended before
        module.fail_json(msg=f"{module.params['state']}: {error or 'the agent is gone'}")


if __name__ == "__main__":
    main()
