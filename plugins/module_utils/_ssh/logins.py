# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How many logins at once the system's sshd accepts: a drop-in of ours, as root."""

from __future__ import annotations

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.prerequisites import LOGINS_FILE, logins_text
from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.sshd import sshd_max_startups

from .files import MeshFailed, put, take_away
from .sshd import drop_in_refusal, reload_system, require_include


def accept_logins(startups: str) -> list[str]:
    """Set MaxStartups of the system's sshd, and return the changes. MeshFailed if that has no effect."""
    require_include(LOGINS_FILE, "prerequisites_logins")
    if not put(LOGINS_FILE, logins_text(startups), 0o644, dry_run=False, check=drop_in_refusal):
        return []
    reload_system([LOGINS_FILE], removed=False, dry_run=False)
    there = sshd_max_startups("root")
    if there["max_startups"] != startups:
        take_away(LOGINS_FILE, dry_run=False)
        reload_system([LOGINS_FILE], removed=True, dry_run=False)
        raise MeshFailed(
            f"MaxStartups stays {there['max_startups']}, whatever {LOGINS_FILE} says: "
            "another file of sshd sets it first; change it there, or set prerequisites_logins: false"
        )
    return [f"{LOGINS_FILE} written"]
