# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.python_environment_plan. Documentation: plugins/modules/python_environment_plan.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.answers import Look, look_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.sharing import plan_of

Result = dict[str, Any]
HOME = "~/.torchfleet"


class ActionModule(Action):
    """One task for all machines: it takes what was seen on each of them."""

    BYPASS_HOST_LOOP = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return nodes, steps and missing_tools. InputError for a look that is none."""
        hostvars = variables["hostvars"]
        looks = looks_of(given["looks"], variables["ansible_play_hosts"], hostvars)
        head = "".join(to_plain(variables["groups"]).get("head", [])[:1])
        homes = {name: home_of(hostvars[name]) for name in [*looks, *([head] if head else [])]}
        reaches = looks[head]["mesh"] if head in looks else self.reaches(homes.get(head, ""), head, variables)
        return {"changed": False, **plan_of(looks, head, reaches, homes)}

    def reaches(self, home: str, head: str, variables: Result) -> bool:
        """Whether a head that is not among the machines has the SSH mesh. The task has to be delegated to it."""
        if not head or self._task.delegate_to != head:
            return False
        options = {"path": f"{home}/ssh/config", "get_checksum": False, "get_mime": False}
        try:
            answer = self._execute_module(module_name="ansible.builtin.stat", module_args=options, task_vars=variables)
        except AnsibleError:  # it cannot be asked: then it cannot send either
            return False
        stat = answer.get("stat")
        return isinstance(stat, Mapping) and stat.get("exists") is True


def looks_of(name: str, hosts: list[str], hostvars: Mapping[str, Any]) -> dict[str, Look]:
    """Return the answer of each machine that looked. InputError, which names the machine, for an invalid answer."""
    registered = {str(host): to_plain(hostvars[host].get(name) or {}) for host in hosts}
    return {host: look_of(host, look) for host, look in registered.items() if "kind" in look}


def home_of(variables: Mapping[str, Any]) -> str:
    """Return where torchfleet lies on a machine."""
    return str(to_plain(variables.get("torchfleet_home")) or HOME)
