# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filter storage_plan. Documentation: storage_plan.yml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._storage import shared


def storage_plan(
    options: Mapping[str, object],
    name: str,
    users: Mapping[str, str],
    files: Mapping[str, Mapping[str, str]],
    leaving: Sequence[str] = (),
) -> dict[str, object]:
    """Return what role storage does on a node, as plain values."""
    return shared.plan(to_plain(options), to_plain(name), to_plain(users), to_plain(files), to_plain(leaving))


def storage_refusal(options: Mapping[str, object], nodes: Sequence[str]) -> str:
    """Return why the options of role storage cannot be used, or an empty text."""
    return shared.refusal_of(to_plain(options), to_plain(nodes))


class FilterModule:
    """What Ansible asks for the filters."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return them by name."""
        return {"storage_plan": storage_plan, "storage_refusal": storage_refusal}
