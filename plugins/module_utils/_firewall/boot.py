# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules of nftables and iptables that come back: a unit of systemd adds them whenever the firewall was loaded anew."""

from __future__ import annotations

import os
import re
from typing import Mapping

DIRECTORY = "/etc/torchfleet/firewall"
UNITS = "/etc/systemd/system"
LOADERS = ("nftables.service", "iptables.service", "ip6tables.service", "netfilter-persistent.service")
UNIT = """# Written by torchfleet (role firewall, firewall_state: absent removes it).
[Unit]
Description=Let the nodes of {mark} reach each other
After={loaders}
PartOf={loaders}
ReloadPropagatedFrom={loaders}

[Service]
Type=oneshot
RemainAfterExit=yes
{commands}

[Install]
WantedBy=multi-user.target {loaders}
"""


def name_of(mark: str) -> str:
    """Return the name of a cluster's files."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", mark).replace("torchfleet-", "", 1)


def unit_of(mark: str) -> str:
    """Return the name of a cluster's unit."""
    return f"torchfleet-firewall-{name_of(mark)}.service"


def files(mark: str, rules: Mapping[str, str], programs: Mapping[str, str]) -> dict[str, str]:
    """Return the files by path. `rules`: by program, what it reads; `programs`: where each of them lies."""
    found, commands = {}, []
    for program, text in sorted(rules.items()):
        path = f"{DIRECTORY}/{name_of(mark)}.{program}"
        found[path] = text
        words = f"{programs[program]} " + (f"-f {path}" if program == "nft" else f"--noflush {path}")
        commands += [f"ExecStart={words}", f"ExecReload={words}"]
    unit = UNIT.format(mark=mark.replace("torchfleet:", ""), loaders=" ".join(LOADERS), commands="\n".join(commands))
    return {**found, f"{UNITS}/{unit_of(mark)}": unit} if rules else {}


def present(mark: str) -> dict[str, str]:
    """Return the files of a cluster that are there."""
    paths = [f"{UNITS}/{unit_of(mark)}"]
    paths += [f"{DIRECTORY}/{name_of(mark)}.{name}" for name in ("nft", "iptables-restore", "ip6tables-restore")]
    found = {}
    for path in paths:
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                found[path] = file.read()
    return found


def write(wanted: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Write the files that differ, and remove those that are not wanted. Readable by root only."""
    if wanted:
        os.makedirs(DIRECTORY, mode=0o755, exist_ok=True)
    for path, text in wanted.items():
        if there.get(path) != text:
            with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(text)
            os.replace(f"{path}.new", path)
    for path in [path for path in there if path not in wanted]:
        os.remove(path)
    for empty in (DIRECTORY, os.path.dirname(DIRECTORY)) if not wanted else ():
        try:
            os.rmdir(empty)
        except OSError:
            pass  # another cluster's files are there, or none ever were
