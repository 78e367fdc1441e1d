# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How many logins the system's sshd of this node accepts at once.

Functions that read below /proc, /sys, /etc and /usr take another `root`, so that tests can give them a tree.
"""

from __future__ import annotations

import glob
import os
import re

from .reading import root_output_of, text_of


def sshd_max_startups(sudo: str, root: str = "/") -> dict[str, str]:
    """Return MaxStartups of the system's sshd and where it was read; empty where nobody can tell."""
    match = re.search(r"^maxstartups (\S+)", root_output_of("sshd", ["-T"], sudo), re.MULTILINE)
    if match:
        return {"max_startups": match.group(1), "from": "sshd -T"}
    path = os.path.join(root, "etc/ssh/sshd_config")
    if not os.access(path, os.R_OK):
        return {"max_startups": "", "from": ""}
    value = sshd_setting("maxstartups", path)
    return {"max_startups": value or "10:30:100", "from": path if value else "the default of sshd"}


def sshd_setting(name: str, path: str, depth: int = 0) -> str:
    """Return a global setting of sshd from its files: the first one counts, Include is followed (sshd_config(5))."""
    for line in text_of(path).splitlines():
        words = line.replace("=", " ", 1).split("#")[0].split()
        word = words[0].lower() if words else ""
        if word == "match":
            return ""
        if word == name and len(words) > 1:
            return words[1]
        if word == "include" and depth < 16:
            for pattern in words[1:]:
                for inner in sorted(glob.glob(os.path.join(os.path.dirname(path), pattern))):
                    value = sshd_setting(name, inner, depth + 1)
                    if value:
                        return value
    return ""
