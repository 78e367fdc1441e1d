# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Connections that a firewall stopped, by the codes of the probe, and what to type. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.unreached import BY_FIREWALL, UnreachedCode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .fabric_types import FirewallFacts, Measured, Reached

OPEN = "ansible-playbook setup.yml -e firewall_open=true (needs root)"


class Blocked(InputError):
    """No network joins the nodes, because of firewalls."""

    code = "TF-FABRIC-FIREWALL"

    def __init__(
        self, text: str, rows: Mapping[str, Sequence[Reached]], firewalls: Mapping[str, Sequence[FirewallFacts]]
    ) -> None:
        known = "; ".join(f"{name}: {names_of(firewalls.get(name) or [])}" for name in blockers(rows))
        ValueError.__init__(self, f"{text}; {self.code}: a firewall stops it ({known}); open it: {OPEN}")


def blocked(rows: Mapping[str, Sequence[Reached]]) -> bool:
    """Return whether a firewall stopped any of the connections: rows by the node that connected."""
    return bool(blockers(rows))


def blockers(rows: Mapping[str, Sequence[Reached | Measured]]) -> list[str]:
    """Return the nodes whose firewalls stopped connections: the node that was to be reached, or the one that sent."""
    found = {
        name if row.get("code") == UnreachedCode.OWN_FIREWALL else str(row["node"])
        for name, theirs in rows.items()
        for row in theirs
        if row.get("code") in BY_FIREWALL
    }
    return sorted(found)


def names_of(found: Sequence[FirewallFacts]) -> str:
    """Return the firewalls of a node in words: facts of module node_facts."""
    known = ", ".join(f"{each['kind']}, {each['where']}" for each in found)
    return known or "none that can be seen without root; or one between the nodes"
