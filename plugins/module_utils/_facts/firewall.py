# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Firewalls of this node, as far as its user can see them.

Functions that read below /proc, /sys, /etc and /usr take another `root`, so that tests can give them a tree.
"""

from __future__ import annotations

from ansible_collections.torchfleet.cluster.plugins.module_utils._firewall.look import look

from .reading import root_output_of

MOST = 16  # that are told


def firewall(sudo: str, root: str = "/") -> list[dict[str, object]]:
    """Return each firewall that drops what it does not know: kind, and where. `sudo`: whether root can be had."""
    found = look(lambda program, words: root_output_of(program, list(words), sudo), root)
    return [{"kind": each.kind, "where": each.where} for each in found[:MOST]]
