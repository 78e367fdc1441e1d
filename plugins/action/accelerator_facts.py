# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.accelerator_facts: the module, its answer checked. Documentation: plugins/modules."""

from __future__ import annotations

from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.answers import accelerators_of


class ActionModule(OnNode):
    """One look at one node, or what role preflight saw there."""

    def act(self, given: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return facts."""
        answer = {"facts": given["known"]} if given.get("known") else self.answer(variables)
        if "facts" not in answer:
            return answer
        return {"changed": False, "facts": accelerators_of(variables["inventory_hostname"], answer["facts"])}
