# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.fabric_choose. Documentation: plugins/modules/fabric_choose.py."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._border import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric_steps import next_step
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError


class ActionModule(ActionBase):
    """One task for the whole cluster, on the controller: what it reads are the results of the other tasks."""

    BYPASS_HOST_LOOP = True
    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(
        {"nodes", "seen", "listened", "reached", "measuring", "measured", "earlier", "subnet", "nccl_gid"}
    )

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return state, and what the next tasks need."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = to_plain(self._task.args)
        tables = {key: given.get(key) or {} for key in ("listened", "reached", "measuring", "measured")}
        known = {name: {node: row for node, row in table.items() if row} for name, table in tables.items()}
        try:
            step = next_step(
                given["nodes"],
                **known,
                seen=given.get("seen"),
                earlier=given.get("earlier") or [],
                subnet=given.get("subnet") or "",
                nccl_gid=given.get("nccl_gid") or "auto",
            )
        except InputError as error:
            return {**result, "failed": True, "msg": str(error)}
        return {**result, "changed": False, **step}
