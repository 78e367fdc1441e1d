# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.launcher_versions. Documentation: plugins/modules/launcher_versions.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.launchers import difference, version_of


class ActionModule(Action):
    """One task for all nodes, on the controller."""

    BYPASS_HOST_LOOP = True

    def act(self, given: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return version. Fails if there are several."""
        versions = {node: version_of(node, proof) for node, proof in given["proofs"].items()}
        wrong = difference(given["launcher"], versions)
        if wrong:
            return {"failed": True, "msg": wrong}
        return {"changed": False, "version": next(filter(None, versions.values()), "")}
