# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filter lock_of. Documentation: lock_of.yml."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software import package_locks


def lock_of(packages: Sequence[str], path: str) -> dict[str, Any]:
    """Return what an environment with these packages is locked to, and why it cannot be (`refusal`)."""
    try:
        return {**package_locks.lock_of(to_plain(packages), to_plain(path)), "refusal": ""}
    except InputError as error:
        return {**package_locks.lock_of([], ""), "refusal": str(error)}


class FilterModule:
    """What Ansible asks for the filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return them by name."""
        return {"lock_of": lock_of}
