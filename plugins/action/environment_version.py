# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.environment_version: one step of a change on all nodes.

Documentation: plugins/modules/environment_version.py.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import line
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software import version_changes
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.answers import versions_before, versions_seen

Result = dict[str, Any]


class ActionModule(OnNode):
    """One state, on one node."""

    parses_values = False

    def act(self, given: Result, variables: Result) -> Result:
        """Return what the state returns. Failed, with one line, where no node may change."""
        self.given, self.variables, self.node = given, variables, str(variables["inventory_hostname"])
        self.nodes = [str(node) for node in variables["ansible_play_hosts_all"]]
        if given["keep"] < 0:
            raise InputError("torchfleet_keep_versions", given["keep"], "give 0 or more")
        states = {"look": self.look, "plan": self.plan, "use": self.use, "settle": self.settle}
        if given["state"] not in states:
            raise InputError("state", given["state"], f"give one of {', '.join(states)}")
        return states[given["state"]]()

    def ask(self, state: str, **more: Any) -> Result:
        """Return what the module answers on the node."""
        return self.answer(self.variables, {**self.given, "parts": None, "state": state, **more})

    def registered(self) -> dict[str, Result]:
        """Return what every node of the play has registered of the task before."""
        hostvars = self.variables["hostvars"]
        return {node: to_plain(hostvars[node].get(self.given["after"]) or {}) for node in self.nodes}

    def nobody(self, why: str) -> Result:
        """Return what a task fails with."""
        return {"failed": True, "msg": line(f"{', '.join(self.given['paths'])}: {why}")}

    def look(self) -> Result:
        """Return what is in use, and what was before."""
        answer = self.ask("look")
        if answer.get("failed"):
            return answer
        return {"changed": False, "found": versions_seen(self.node, self.given["paths"], answer.get("found"))}

    def plan(self) -> Result:
        """Return what every node goes back to."""
        paths, parts = self.given["paths"], self.given["parts"]
        wanted = version_changes.parts_in(parts, paths) if parts else []
        looks = self.registered()
        wrong = version_changes.failures(self.nodes, looks, "found")
        for node, why in wrong.items():
            return {"failed": True, "msg": line(f"{node} cannot go back, so no node does: {why}; -e away={node}")}
        try:
            found = version_changes.back({node: look["found"] for node, look in looks.items()}, wanted)
        except version_changes.NowhereError as error:
            return {"failed": True, "msg": line(str(error))}
        return {"changed": False, "nodes": found}

    def use(self) -> Result:
        """Have the paths of this node lead to the versions, if every node is ready for that."""
        wanted, check = self.given["versions"], self._task.check_mode
        if wanted == self.given["used"]:
            return {"changed": False, "was": {}}
        for node, why in version_changes.failures(self.nodes, self.registered()).items():
            return self.nobody(f"{node} is not ready, so no node changes: {why}")
        answer = self.ask("use")
        if answer.get("failed"):  # state settle fails, on all nodes
            return {"changed": False, "why": line(str(answer.get("msg")))}
        was = versions_before(self.node, wanted, answer.get("was"))
        told = version_changes.told(was, wanted, check)
        more = {"msg": told, "_ansible_verbose_always": True} if any(was.values()) else {}
        changes = version_changes.difference(self.given["paths"], was, wanted)
        return {"changed": bool(was), "was": was, "diff": changes, **more}

    def settle(self) -> Result:
        """Undo it on this node if it failed on one; else remove old versions."""
        registered = self.registered()
        was = registered[self.node].get("was")
        if was == {}:
            return {"changed": False, "removed": []}
        wrong = version_changes.failures(self.nodes, registered, "was")
        if wrong and was and not self._task.check_mode:
            undone = self.ask("undo", versions=was)
            if undone.get("failed"):
                return undone
        for node, why in wrong.items():
            return self.nobody(f"{node} could not change, so every node keeps what it had: {why}")
        if self._task.check_mode:
            return {"changed": False, "removed": []}
        return self.ask("settle", versions={} if self.given["back"] else was)
