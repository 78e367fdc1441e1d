# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.fabric_probe: the module, its answer checked. Documentation: plugins/modules."""

from __future__ import annotations

from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode


class ActionModule(OnNode):
    """One node."""

    def act(self, given: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the module's answer. With state=recall the node is not contacted."""
        if given.get("state") == "recall":
            return {"changed": False, "facts": given.get("known") or {}, "constraints": given.get("constraints") or {}}
        return self.answer(variables)
