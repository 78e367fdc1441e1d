# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Firewalls of this node, as far as its user can see them.

Functions that read below /proc, /sys, /etc and /usr take another `root`, so that tests can give them a tree.
"""

from __future__ import annotations

import os
import re

from .reading import said_as_root, text_of


def firewall(sudo: str, root: str = "/") -> list[str]:
    """Return what hints at a firewall that drops what it does not know, as far as this user can see."""
    hints = []
    if re.search(r"^ENABLED=yes", text_of(os.path.join(root, "etc/ufw/ufw.conf")), re.MULTILINE):
        hints.append("ufw is enabled")
    groups = ("sys/fs/cgroup/system.slice", "sys/fs/cgroup/systemd/system.slice")
    if any(os.path.isdir(os.path.join(root, group, "firewalld.service")) for group in groups):
        hints.append("firewalld runs")
    rules = said_as_root("nft", ["list", "chains"], sudo) or said_as_root("iptables", ["-S", "INPUT"], sudo)
    return hints + drops_input(rules)


def drops_input(rules: str) -> list[str]:
    """Return a hint if the text of `nft list chains` or `iptables -S INPUT` says that input is dropped by default."""
    chains = re.findall(r"hook input [^}]*", rules)
    dropped = any("policy drop" in chain for chain in chains) or "-P INPUT DROP" in rules
    return ["input is dropped by default"] if dropped else []
