# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.accelerator_facts: the module, its answer checked. Documentation: plugins/modules."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._node_answer import accelerators_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError

Result = dict[str, Any]


class ActionModule(ActionBase):
    """One look at one node."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> Result:
        """Return facts."""
        result: Result = super().run(tmp, task_vars)
        answer: Result = self._execute_module(module_args=self._task.args, task_vars=task_vars)
        if "facts" not in answer:
            return {**result, **answer}
        try:
            facts = accelerators_of((task_vars or {})["inventory_hostname"], answer["facts"])
        except InputError as error:
            return {**result, "failed": True, "msg": str(error)}
        return {**result, "changed": False, "facts": facts}
