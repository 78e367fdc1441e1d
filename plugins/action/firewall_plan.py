# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.firewall_plan. Documentation: plugins/modules/firewall_plan.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._firewall.admission import (
    admission,
    chosen_admission,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import asked_of_fabric

Result = dict[str, Any]


class ActionModule(Action):
    """One task for the whole cluster, on the controller: what it reads are the results of another task."""

    BYPASS_HOST_LOOP = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return admitted and settled."""
        names, hosts = given["nodes"], variables["hostvars"]
        constraints = {name: asked_of_fabric(hosts[name]) for name in names}
        facts = {name: (given["seen"].get(name) or {}).get("facts") for name in names}
        seen = {name: {"facts": facts[name], "constraints": constraints[name]} for name in names}
        workers = [name for name in names if name in variables["groups"].get("workers", ())]
        plan = chosen_admission if given["chosen_only"] else admission
        found = plan(names, seen, given["subnet"], given["nccl_gid"], workers)
        return {
            "changed": False,
            "admitted": {name: whom._asdict() for name, whom in found.admitted.items()},
            "settled": found.settled,
        }
