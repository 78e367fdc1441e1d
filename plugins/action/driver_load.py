# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.driver_load: the module, its answer checked. Documentation: plugins/modules."""

from __future__ import annotations

from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode

Result = dict[str, Any]


class ActionModule(OnNode):
    """One node, which is asked as its user first: root of a container may not see what other users run."""

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed, modprobe, in check mode msg. Fails if a job runs on the node, or a reboot would not help."""
        looked = self.looked(variables) if given["may_reboot"] or self._task.check_mode else {}
        if self._task.check_mode and not looked.get("failed"):
            return {**looked, "_ansible_verbose_always": True}
        return looked if looked.get("failed") else self.answer(variables)
