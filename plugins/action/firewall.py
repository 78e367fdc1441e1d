# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.firewall: the module, its answer checked. Documentation: plugins/modules."""

from __future__ import annotations

from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode

Result = dict[str, Any]


class ActionModule(OnNode):
    """One node, on which nobody becomes root to remove rules that were never added."""

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed and rules."""
        if given.get("state") == "absent":
            with self.without_root():
                found = self.answer(variables, {**self._task.args, "part": "look"})
            if found.get("failed") or not found.get("noted"):
                return {"rules": [], **found}
        return self.answer(variables)
