# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filter install_command. Documentation: install_command.yml."""

from __future__ import annotations

from collections.abc import Callable

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import distribution
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain


def install_command(what: str, os: str) -> str:
    """Return the command that installs something on a distribution."""
    return distribution.install(to_plain(what), to_plain(os))


class FilterModule:
    """What Ansible asks for the filters."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return them by name."""
        return {"install_command": install_command}
