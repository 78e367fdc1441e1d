# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.platform_check. Documentation: plugins/modules/platform_check.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import line
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.platforms import refusal


class ActionModule(Action):
    """One machine, judged on the controller by the facts that Ansible has of it."""

    def act(self, given: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return changed; failed for a machine it is not made for. InputError if the machine's facts are missing."""
        facts = to_plain(variables.get("ansible_facts") or {})
        if not facts.get("system") or not facts.get("machine"):
            node = str(variables["inventory_hostname"])
            raise InputError(f"ansible_facts of {node}", None, "gather facts before this role: gather_facts: true")
        why = refusal(given["role"], given["title"], given["wheels"], facts["system"], facts["machine"])
        return {"failed": True, "msg": line(why)} if why else {"changed": False}
