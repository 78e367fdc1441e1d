# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.uninstall: looks as the user, then removes as the user and as root.

Documentation: plugins/modules.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode

Result = dict[str, Any]


class ActionModule(OnNode):
    """One node, on which root is needed only if root added something."""

    parses_values = False

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed, removed, kept, others and msg. Fails before anything goes if it needs root and has not."""
        with self.without_root():
            found = self.part("look", variables)
        if found.get("failed") or not (found["changed"] or found["kept"]):
            return found
        why = self.why_not_root() if found["needs_root"] else ""
        if found["needs_root"] and not why:
            found = self.spared(found, variables)
        if found.get("failed"):
            return found
        told = {**told_of(found, self._task.check_mode), "_ansible_verbose_always": True}
        if self._task.check_mode:
            return told
        if why:
            node = variables["inventory_hostname"]
            return {
                "failed": True,
                "msg": f"{given['role']}: packages are removed as root, and there is no way to become root on {node} "
                f"({why}): give the password with -K, or keep the packages: -e keep_packages=true",
            }
        with self.without_root():
            done = self.part("user", variables)
        if not done.get("failed") and found["needs_root"]:
            done = self.part("root", variables)
        return done if done.get("failed") else told

    def spared(self, found: Result, variables: Result) -> Result:
        """Return what was found, without root's part if other clusters have this node: only root sees all of them."""
        seen = self.part("look", variables, mine=found["mine"])
        if seen.get("failed"):
            return seen
        if not seen["others"]:
            return found
        removed = [text for text in found["removed"] if text not in found["roots"]]
        stays = {"kept": [], "left": found["roots"], "others": seen["others"], "needs_root": False}
        return {**found, **stays, "removed": removed, "changed": bool(removed)}

    def part(self, name: str, variables: Result, **more: object) -> Result:
        """Run one part of the module, with the options of the task and these."""
        found = self.answer(variables, {**self._task.args, "part": name, **more})
        known: Result = {"removed": [], "kept": [], "needs_root": False, "changed": False}
        known |= {"roots": [], "left": [], "mine": [], "others": []}
        return found if found.get("failed") else {**known, **found}


def told_of(found: Result, check: bool) -> Result:
    """Return the result of the task, with a sentence."""
    verb = "would remove" if check else "removed"
    parts = [f"{verb}: {', '.join(found['removed'])}"] if found["removed"] else []
    parts += [f"kept, because other packages or roles need them: {', '.join(found['kept'])}"] if found["kept"] else []
    if found["left"]:
        others, left = (", ".join(found[name]) for name in ("others", "left"))
        parts.append(f"kept until the last cluster of this node is removed, which has others ({others}): {left}")
    shown = {name: found[name] for name in ("changed", "removed", "kept", "others")}
    return {**shown, "msg": "; ".join(parts)}
