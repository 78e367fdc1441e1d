# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filter hostfiles. Documentation: hostfiles.yml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.answers import seat_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory import hostfile
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import (
    cluster_from_hostvars,
    to_plain,
)


def hostfiles(
    found: Mapping[str, Any], groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Return the host files by name."""
    try:
        seats = {name: seat_of(name, seat) for name, seat in to_plain(found).items()}
        return hostfile.hostfiles(cluster_from_hostvars(groups, hostvars), seats)
    except InputError as error:
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    """What Ansible asks for the filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return them by name."""
        return {"hostfiles": hostfiles}
