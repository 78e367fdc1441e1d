# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.fabric_choose. Documentation: plugins/modules/fabric_choose.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.steps import next_step


class ActionModule(Action):
    """One task for the whole cluster, on the controller: what it reads are the results of the other tasks."""

    BYPASS_HOST_LOOP = True

    def act(self, given: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return state, and what the next tasks need."""
        for name in ("listened", "reached", "measuring", "measured"):
            given[name] = {node: row for node, row in given[name].items() if row}
        return {"changed": False, **next_step(given.pop("nodes"), **given)}
