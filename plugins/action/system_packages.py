# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.system_packages: as the user first, then as root. Documentation: plugins/modules."""

from __future__ import annotations

from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import line

Result = dict[str, Any]


class ActionModule(OnNode):
    """One node, on which root is needed only if packages are missing."""

    parses_values = False

    def act(self, given: Result, variables: Result) -> Result:
        """Return missing. Fails where packages are missing and nobody can become root."""
        with self.without_root():
            looked = self.answer(variables)
        if not looked.get("needs_root"):
            return looked
        refusal = self.refused_root()
        if refusal is None:
            return self.answer(variables)
        names, node = ", ".join(given["names"]), variables["inventory_hostname"]
        why = f"there is no way to become root on {node} ({line(refusal)}): {given['hint']}"
        return {"failed": True, "msg": f"{given['role']}: {names} would be installed as root, and {why}"}
