# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filter backends_build. Documentation: backends_build.yml."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.backends_build import build_of


def backends_build(names: Sequence[str], options: Mapping[str, object]) -> dict[str, object]:
    """Return what is installed for these backends, as plain values."""
    return dataclasses.asdict(build_of(to_plain(names), to_plain(options)))


class FilterModule:
    """What Ansible asks for the filters."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return them by name."""
        return {"backends_build": backends_build}
