# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.inventory_check. Documentation: plugins/modules/inventory_check.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.setup_request import half_a_cluster, mistakes
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import expected_gpus, to_plain


class ActionModule(Action):
    """One task for all hosts, on the controller."""

    BYPASS_HOST_LOOP = True
    parses_values = True  # the message for a wrong list says what to type

    def act(self, given: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return changed; failed for a mistake."""
        limit, tags = to_plain(variables.get("ansible_limit")), to_plain(variables.get("ansible_run_tags"))
        half = half_a_cluster(str(limit or ""), list(tags or ()))
        groups = to_plain(variables["groups"])
        lines = [half] if half else [*mistakes(groups, given), *wrong_gpus(groups, variables)]
        return {"failed": True, "msg": "; ".join(lines)} if lines else {"changed": False}


def wrong_gpus(groups: Mapping[str, Sequence[str]], variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with torchfleet_gpus of a worker."""
    for name in groups.get("workers", ()):
        try:
            expected_gpus(name, variables["hostvars"][name])
        except InputError as error:
            yield str(error)
