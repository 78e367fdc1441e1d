# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The base class of actions that decide by the facts of a node: those that preflight read, or its own."""

from __future__ import annotations

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain

from .answers import facts_of
from .preflight_input import Registered, answer_of
from .preflight_types import Answer

FACTS = "torchfleet.cluster.node_facts"


class SeenNode(OnNode):
    """One node, and its facts."""

    parses_values = False

    def seen(self, node: str, seen: Registered, variables: dict[str, object], **options: str) -> Answer:
        """Return what preflight saw of the node; without root and with these options, what is there now."""
        answer = answer_of(seen)
        if answer.facts is not None:
            return answer
        with self.without_root():
            told = to_plain(self._execute_module(module_name=FACTS, module_args=options, task_vars=variables))
        return Answer(facts_of(node, told.get("facts")))
