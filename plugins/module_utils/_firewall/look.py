# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which firewalls of this machine drop what they do not know."""

from __future__ import annotations

import glob
import os
import re
from typing import Callable, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.sysfs import read

from . import firewalld, iptables, nftables, ufw
from .rules import Found

Ask = Callable[[str, Sequence[str]], str]  # program and its words -> what it prints, empty if it cannot be asked

GROUPS = ("sys/fs/cgroup/system.slice", "sys/fs/cgroup/systemd/system.slice")
NFT = ("-j", "-a", "list", "ruleset")


def look(ask: Ask, root: str = "/") -> list[Found]:
    """Return the firewalls. `ask` runs programs as root; where it cannot, files tell that a firewall is there."""
    seen = [*ufw_here(ask, root), *firewalld_here(ask, root)]
    kinds = [each.kind for each in seen]
    if not kinds:
        seen += [each for name in iptables.PROGRAMS for each in iptables.found(name, ask(name, ("-S",)))]
    text = ask("nft", NFT)
    others = [*kinds, "iptables"] if kinds or ask("iptables", ("-S", "INPUT")) else kinds
    seen += nftables.found(text, others) if text else nftables_of_files(root)
    return seen


def ufw_here(ask: Ask, root: str) -> list[Found]:
    """Return ufw, by its own word or by its configuration."""
    if not re.search(r"^ENABLED=yes", read(os.path.join(root, "etc/ufw/ufw.conf"), strip=False), re.MULTILINE):
        return []
    status = ask("ufw", ("status", "verbose"))
    return ufw.found(status) if status else [Found("ufw", "it is enabled")]


def firewalld_here(ask: Ask, root: str) -> list[Found]:
    """Return firewalld if it runs."""
    in_group = any(os.path.isdir(os.path.join(root, group, "firewalld.service")) for group in GROUPS)
    names = (read(path) for path in glob.glob(os.path.join(root, "proc/[0-9]*/comm")))
    if not in_group and "firewalld" not in names:
        return []
    return firewalld.found(ask("firewall-cmd", ("--get-default-zone",)).strip())


def nftables_of_files(root: str) -> list[Found]:
    """Return nftables if a file that is loaded at boot drops input: without root the rules cannot be seen."""
    enabled = glob.glob(os.path.join(root, "etc/systemd/system/*.wants/nftables.service"))
    for name in ("etc/nftables.conf", "etc/sysconfig/nftables.conf"):
        text = read(os.path.join(root, name), strip=False)
        if enabled and re.search(r"hook\s+input[^}]*?(policy\s+drop|\breject\b|\bdrop\b)", text, re.DOTALL):
            return [Found("nftables", f"/{name} drops input")]
    return []
