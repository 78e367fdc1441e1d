# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Our file of limits, which every login has (pam_limits)."""

from __future__ import annotations

import re
from typing import Mapping

LIMITS_FILE = "/etc/security/limits.d/90-torchfleet.conf"
LIMITED = ("memlock", "nofile", "nproc")


def limits_in(text: str) -> dict[str, str]:
    """Return {memlock: unlimited} of the text of our file of limits."""
    rows = re.findall(r"^\* - (\w+) (unlimited|\d{1,9})$", text, re.MULTILINE)
    return {name: value for name, value in rows if name in LIMITED}


def limits_text(limits: Mapping[str, str]) -> str:
    """Return the text of our file of limits. `*` does not mean root (limits.conf(5))."""
    lines = [f"{who} - {name} {limits[name]}" for name in LIMITED if name in limits for who in ("*", "root")]
    return "\n".join(["# Written by torchfleet, role prerequisites", *lines, ""])
