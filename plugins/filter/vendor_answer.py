# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filters vendor_answer and vendor_repositories. Documentation: in the .yml of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software import vendor


def vendor_answer(text: str, request: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Return what a node answered, with the repositories of the request."""
    try:
        return vendor.answer_of(to_plain(node), to_plain(request), to_plain(text))
    except InputError as error:
        raise AnsibleFilterError(str(error)) from None


def vendor_repositories(
    repositories: Sequence[Mapping[str, Any]], role: str, systems: Sequence[str], machines: Mapping[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the repositories as they are on each system and machine."""
    return vendor.repositories_for(to_plain(repositories), to_plain(role), to_plain(systems), to_plain(machines))


class FilterModule:
    """What Ansible asks for the filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return them by name."""
        return {"vendor_answer": vendor_answer, "vendor_repositories": vendor_repositories}
