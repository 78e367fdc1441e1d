# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.hostfile: module publish, with the host files. Documentation: plugins/modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Seat
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.answers import seat_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import module_answer
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.away import groups_of, without
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostfile import hostfiles, unknown_nodes
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import (
    cluster_from_hostvars,
    to_plain,
)

Result = dict[str, Any]
PUBLISH = "torchfleet.cluster.publish"


class ActionModule(Action):
    """The head, which gets the host files made from what all nodes told."""

    def act(self, given: Result, variables: Result) -> Result:
        """Return what module publish returns. Failed if a node told nothing; InputError for an impossible address."""
        hostvars = variables["hostvars"]
        cluster = cluster_from_hostvars(without(groups_of(variables), given["leaving"]), hostvars)
        seats = seats_of(given["seats"], variables["ansible_play_hosts"], hostvars)
        missing = unknown_nodes(cluster, seats)
        if missing:
            return {"failed": True, "msg": missing}
        head = cluster.head.name
        options = {"directory": f"{seats[head]['home']}/hostfiles", "files": hostfiles(cluster, seats)}
        done = self._execute_module(module_name=PUBLISH, module_args=options, task_vars=variables)
        return module_answer(head, to_plain(done))


def seats_of(name: str, hosts: list[str], hostvars: Mapping[str, Any]) -> dict[str, Seat]:
    """Return home, cores, GPUs and address of each node that told them. InputError for what no node can have told."""
    told = {str(host): to_plain(hostvars[host].get(name) or {}).get("facts") for host in hosts}
    return {host: seat_of(host, facts) for host, facts in told.items() if facts}
