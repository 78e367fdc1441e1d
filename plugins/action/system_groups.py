# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.system_groups: as the user first, then as root. Documentation: plugins/modules."""

from __future__ import annotations

from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode

Result = dict[str, Any]


class ActionModule(OnNode):
    """One node, on which root is needed only if something is missing."""

    parses_values = False

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed and added. Fails where something is missing and nobody can become root."""
        looked = self.looked(variables)
        if looked.get("failed") or not looked.get("changed") or self._task.check_mode:
            return looked
        why = self.why_not_root()
        if why:
            node, names = variables["inventory_hostname"], ", ".join(map(str, looked.get("added") or []))
            msg = f"{given['role']}: root adds {names}, and there is no way to become root on {node} ({why}): use -K"
            return {"failed": True, "msg": msg}
        return self.answer(variables)
