# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What this node lacks of what role prerequisites brings: packages, a time service, limits, logins at once.

Functions that read below /etc, /sys and /usr take another `root`, so that tests can give them a tree.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import Collection, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.limits_file import LIMITS_FILE, limits_in

from . import distribution
from .reading import PROGRAM_SECONDS, program, text_of

LOGINS_FILE = "/etc/ssh/sshd_config.d/00-torchfleet-logins.conf"
MANAGERS = {"apt-get": "deb", "dnf": "rpm"}  # that setup installs with, and their family of distributions
PARTS = ("rdma", "rdma_tools", "clock", "ssh_client")  # of distribution.PACKAGES
TIME_UNITS = ("chrony", "chronyd", "systemd-timesyncd", "ntpsec", "ntp", "ntpd", "openntpd", "ptp4l", "phc2sys")
MENDED_UNITS = ("chrony", "chronyd", "systemd-timesyncd")  # which setup turns on where they are installed
UNIT_PLACES = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
GROUPS = ("sys/fs/cgroup/system.slice", "sys/fs/cgroup/systemd/system.slice")  # of control groups v2 and v1


def prerequisites(root: str = "/") -> dict[str, object]:
    """Return what is there and what is missing. plugin_utils/_health/answers.py declares the fields."""
    manager = manager_of(distribution.family(distribution.here(os.path.join(root, "etc/os-release"))))
    there = installed([name for part in PARTS for name in packages_of(part, manager)], manager)
    return {
        "manager": manager,
        "missing": {part: missing(part, there, manager) for part in PARTS},
        "time_service": {"runs": running_time_service(root), "installed": installed_time_service(root)},
        "limits": limits_in(text_of(os.path.join(root, LIMITS_FILE.lstrip("/")))),
        "logins": logins_in(text_of(os.path.join(root, LOGINS_FILE.lstrip("/")))),
    }


def manager_of(family: str) -> str:
    """Return what installs packages here: that of the family before others, which may be installed beside it."""
    there = [name for name in MANAGERS if program(name)]
    return next((name for name in there if MANAGERS[name] == family), there[0] if there else "")


def packages_of(part: str, manager: str) -> list[str]:
    """Return the packages of a part of the prerequisites; none where the package manager is not known."""
    return distribution.PACKAGES[part][MANAGERS[manager]].split() if manager else []


def missing(part: str, there: Collection[str], manager: str) -> list[str]:
    """Return the packages of a part that are not installed."""
    return [name for name in packages_of(part, manager) if name not in there]


def installed(names: Sequence[str], manager: str) -> set[str]:
    """Return those of some packages that are installed completely. Both programs fail if any is missing."""
    queries = {
        "apt-get": ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\\n"],
        "dnf": ["rpm", "--query", "--queryformat", "%{NAME} installed\\n"],
    }
    if not names:
        return set()
    try:
        done = subprocess.run(
            [*queries[manager], *names], capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return set()
    return {name for name in names if f"{name} installed" in done.stdout.splitlines()}


def running_time_service(root: str) -> str:
    """Return the service that keeps the clock, as its control group tells; an empty string where none runs."""
    running = [
        unit
        for unit in TIME_UNITS
        if any(os.path.isdir(os.path.join(root, group, f"{unit}.service")) for group in GROUPS)
    ]
    return running[0] if running else ""


def installed_time_service(root: str) -> str:
    """Return a time service that is installed and could be turned on; an empty string where there is none.

    A link to /dev/null is a unit that somebody masked.
    """
    for unit in MENDED_UNITS:
        paths = [os.path.join(root, place, f"{unit}.service") for place in UNIT_PLACES]
        there = [path for path in paths if os.path.lexists(path)]
        if there and os.path.realpath(there[0]) != "/dev/null":
            return unit
    return ""


def logins_in(text: str) -> str:
    """Return MaxStartups of the text of our drop-in of sshd, or an empty string."""
    found = re.search(r"^MaxStartups ([\d:]{1,32})$", text, re.MULTILINE)
    return found.group(1) if found else ""


def logins_text(startups: str) -> str:
    """Return the text of our drop-in of sshd."""
    return f"# Written by torchfleet, role prerequisites\nMaxStartups {startups}\n"
