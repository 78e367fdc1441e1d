# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filter imex_nodes. Documentation: imex_nodes.yml."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric import imex
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain


def imex_nodes(
    domains: Mapping[str, str | None], files: Mapping[str, Mapping[str, str]], name: str, there: str, ours: str
) -> dict[str, object]:
    """Return the nodes that nvidia-imex of a node names, as plain values."""
    return imex.imex_nodes(to_plain(domains), to_plain(files), to_plain(name), to_plain(there), to_plain(ours))


class FilterModule:
    """What Ansible asks for the filter."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return it by name."""
        return {"imex_nodes": imex_nodes}
