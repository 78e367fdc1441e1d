# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filter pytorch_build. Documentation: pytorch_build.yml."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.pytorch_builds import choose_build


def pytorch_build(facts: Mapping[str, object], wanted: str, rows: Mapping[str, object], node: str) -> dict[str, object]:
    """Return the build as plain values, or why there is none."""
    try:
        return dataclasses.asdict(choose_build(to_plain(node), to_plain(wanted), to_plain(facts), to_plain(rows)))
    except InputError as error:
        return {"refusal": str(error)}


class FilterModule:
    """What Ansible asks for the filters."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return them by name."""
        return {"pytorch_build": pytorch_build}
