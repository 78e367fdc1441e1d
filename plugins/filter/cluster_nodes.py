# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filters cluster_nodes, removed_nodes and staying_nodes. Documentation: the files of these names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ansible.errors import AnsibleFilterError

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.away import (
    asked,
    every_node,
    staying,
    without_away,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain


def told(find: Callable[..., object]) -> Callable[..., object]:
    """Return a function of plain groups as a filter, whose mistakes Ansible shows as they are."""

    def found(groups: Mapping[str, Sequence[str]], *words: object) -> object:
        try:
            return find(to_plain(groups), *words)
        except InputError as error:
            raise AnsibleFilterError(str(error)) from None

    return found


def cluster_nodes(groups: Mapping[str, Sequence[str]], away: object = (), group: str = "") -> list[str]:
    """Return the nodes of head and workers, or of one group, that are not away."""
    present = without_away(groups, away)
    return list(present.get(group, ())) if group else every_node(present)


def removed_nodes(
    groups: Mapping[str, Sequence[str]], nodes: object = (), away: object = (), shut_out: object = False
) -> list[str]:
    """Return the nodes that remove.yml removes; none of them where they are shut out, and so not asked."""
    return asked(groups, nodes, away, shut_out)


def staying_nodes(groups: Mapping[str, Sequence[str]], nodes: object = (), away: object = ()) -> list[str]:
    """Return the nodes that stay where remove.yml removes some."""
    return staying(groups, nodes, away)


class FilterModule:
    """What Ansible asks for the filters."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return them by name."""
        return {one.__name__: told(one) for one in (cluster_nodes, removed_nodes, staying_nodes)}
