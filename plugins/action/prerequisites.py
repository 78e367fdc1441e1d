# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.prerequisites: decides what a node lacks, and becomes root only for that.

Documentation: plugins/modules/prerequisites.py.
"""

from __future__ import annotations

from typing import Any

from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import prerequisites as plan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.node_seen import SeenNode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_input import (
    HOST_VARIABLES,
    target_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Case, Limits
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import line
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain

Result = dict[str, Any]
display = Display()


class ActionModule(SeenNode):
    """One node."""

    def act(self, given: Result, variables: Result) -> Result:
        """Return changes and left. Failed where root is needed for what was asked for, or for what a job needs."""
        node, switches = str(variables["inventory_hostname"]), plan.parse_switches(given)
        case = self.case(node, given, variables)
        work = plan.work_on(case, switches)
        if work.is_empty:
            return {"changed": False, "changes": [], "left": ""}
        refusal = self.refused_root()
        if refusal is not None:
            return self.without(work, node, line(refusal))
        shown = {"diff": {"prepared": f"{node}: {work.summary}\n"}}
        if self._task.check_mode:
            return {"changed": True, "changes": work.summary.split("; "), "left": "", **shown}
        answer = self.answer(variables, {**given, "seen": {}, "work": work.order(case)})
        if work.limits and not answer.get("failed"):
            self._connection.reset()  # the next tasks log in again, and have the new limits
        if answer.get("left"):
            display.warning(line(f"{node}: {answer['left']}"))
        return {**answer, **shown}

    def case(self, node: str, given: Result, variables: Result) -> Case:
        """Return what is known of the node."""
        answer = self.seen(node, given["seen"], variables)
        known = {key: to_plain(variables.get(key)) for key in HOST_VARIABLES}
        known["ansible_become_password"] = known["ansible_become_password"] or self._play_context.become_pass
        target = target_of(node, known, to_plain(variables["groups"]))
        limits, count = Limits(max_clock_offset=given["max_clock_offset"]), len(variables["ansible_play_hosts_all"])
        return Case(target, answer.known, answer.clock, limits, count)

    @staticmethod
    def without(work: plan.Work, node: str, why: str) -> Result:
        """Return what becomes of work that nobody can do."""
        text = f"{node}: nobody can become root ({why}): {work.summary}"
        if not work.required:
            display.warning(f"{text}: left as it is")
            return {"changed": False, "changes": [], "left": work.summary}
        off = ", ".join(f"prerequisites_{name}: false" for name in work.required)
        return {"failed": True, "msg": f"prerequisites: {text}: have that done, or set {off}"}
