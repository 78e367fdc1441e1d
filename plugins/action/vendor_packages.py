# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.vendor_packages. Documentation: plugins/modules.

It runs the module twice: once to look, without root, and only if something is left to do, as root. Root acts on the
options of the task alone, and on nothing that the user on the node answered to the look.
"""

from __future__ import annotations

from typing import Any, cast

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.vendor import Request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.vendor import (
    Answer,
    announcement,
    answer_of,
)

Result = dict[str, Any]


def shown(answer: Answer) -> Result:
    """Return what the task returns of an answer."""
    return {"changed": answer["changed"], "diff": answer["diff"], "versions": answer["versions"]}


class ActionModule(OnNode):
    """One node."""

    parses_values = False
    _task: Any

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed, diff and the packages as the node has them. InputError for an answer that cannot be."""
        node, request = str(variables["inventory_hostname"]), cast(Request, given)
        result = self.looked(variables)
        if result.get("failed"):
            return result
        answer = answer_of(node, request, result)
        if not answer["changed"]:
            return shown(answer)
        if self._task.check_mode:
            return {**shown(answer), "msg": announcement(answer), "_ansible_verbose_always": True}
        why = self.why_not_root()
        if why:
            return {
                "failed": True,
                "msg": f"{given['role']}: packages are installed as root, and there is no way to become root ({why}): "
                f"give the password with -K, or let {node} be reached by a user who may use sudo",
            }
        result = self.answer(variables)
        return result if result.get("failed") else shown(answer_of(node, request, result))
