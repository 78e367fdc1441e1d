# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Our user on this node, and whether it can become root."""

from __future__ import annotations

import os
import pwd
import subprocess

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launcher_programs import (
    on_search_path,
)

from .reading import PROGRAM_SECONDS


def user_name() -> str:
    """Return the name of the user we are, or the number where it has no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def sudo_state(may_try: bool) -> str:
    """Return root, yes, no (it asks for a password, or forbids), missing, or not tried: a try is logged, and mailed."""
    if os.getuid() == 0:
        return "root"
    if not may_try:
        return "not tried"
    if not on_search_path("sudo"):
        return "missing"
    try:
        done = subprocess.run(["sudo", "-n", "true"], capture_output=True, timeout=PROGRAM_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "no"
    return "yes" if done.returncode == 0 else "no"
