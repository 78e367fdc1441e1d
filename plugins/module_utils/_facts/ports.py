# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ports of this node: those of outgoing connections, and those on which somebody listens.

Functions that read below /proc, /sys, /etc and /usr take another `root`, so that tests can give them a tree.
"""

from __future__ import annotations

import os

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.survey import PORTS

from .reading import text_of


def local_port_range(root: str = "/") -> list[int]:
    """Return the first and last port that outgoing connections take."""
    return [int(word) for word in text_of(os.path.join(root, "proc/sys/net/ipv4/ip_local_port_range")).split()]


def listening(root: str = "/") -> list[int]:
    """Return the ports in the range of jobs on which somebody listens (state 0A of /proc/net/tcp)."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in text_of(os.path.join(root, "proc/net", name)).splitlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[3] == "0A":
                found.add(int(words[1].rpartition(":")[2], 16))
    return sorted(found.intersection(PORTS))
