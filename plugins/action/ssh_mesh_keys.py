# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.ssh_mesh_keys: the module, and a check of its answer. Documentation: plugins/modules."""

from __future__ import annotations

from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh.answers import checked

ASKED = ("name", "address", "port", "sshd", "become", "client")


class ActionModule(OnNode):
    """One look at one node."""

    parses_values = False

    def act(self, given: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return changed and member: what the user asks for, and what the node found. Failed for a bad answer."""
        asked = {name: given[name] for name in ASKED}
        answer = self.answer(variables)
        member = answer.get("member")
        if answer.get("failed") or not isinstance(member, dict):
            return {"msg": f"ssh_mesh: {asked['name']} did not return its keys", **answer, "failed": True}
        try:
            found = checked(asked["name"], member)
        except InputError as error:
            return {"failed": True, "msg": f"ssh_mesh: {error}"}
        return {"changed": answer.get("changed") is True, "member": {**found, **asked}}
