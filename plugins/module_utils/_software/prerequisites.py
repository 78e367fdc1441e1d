# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Doing what role prerequisites plans on a node, but for sshd: packages, limits, a time service. As root.

The packages are those of the distribution: Debian and Ubuntu with apt; RHEL and its relatives with dnf.
"""

from __future__ import annotations

import subprocess
from typing import Mapping, Sequence

from . import dnf, system_packages
from .limits_file import LIMITS_FILE, limits_text
from .packages import PackageError
from .signing_keys import write

SYNCHRONISED = ("chronyc", "waitsync", "15", "1.0", "0", "2")  # tries, seconds of error, of skew, between two tries
SERVICE_SECONDS = 60


class NotDone(Exception):
    """Something could not be installed or set. The text is one line."""


def install_packages(manager: str, names: Sequence[str]) -> list[str]:
    """Install packages of the distribution. Return the changes."""
    if not names:
        return []
    try:
        if manager == "dnf":
            dnf.install_packages(*names)
        else:
            system_packages.install(names)
    except (system_packages.NotInstalled, PackageError) as error:
        raise NotDone(f"{', '.join(names)} could not be installed: {error}") from None
    return [f"{name} installed" for name in names]


def write_limits(limits: Mapping[str, str]) -> list[str]:
    """Write our file of limits, which every login after this has. Return the changes."""
    if not limits:
        return []
    write(LIMITS_FILE, limits_text(limits).encode())
    return [f"{LIMITS_FILE} written"]


def turn_on(unit: str, wait: bool) -> list[str]:
    """Turn a time service on, now and at each start of the machine. With `wait`, until it has set the clock."""
    if not unit:
        return []
    before = state_of(unit)
    status, said = run("systemctl", "enable", "--now", f"{unit}.service")
    if status != 0:
        raise NotDone(f"{unit}.service could not be turned on: {said}")
    if wait and unit.startswith("chrony"):
        status, said = run(*SYNCHRONISED)
        if status != 0:
            raise NotDone(f"{unit} runs, and has not set the clock ({said}): see chronyc sources")
    return [f"{unit}.service turned on"] if state_of(unit) != before else []


def state_of(unit: str) -> tuple[str, str]:
    """Return whether a unit is turned on, and whether it runs: chrony does not in a container that sets no clock."""
    return run("systemctl", "is-enabled", f"{unit}.service")[1], run("systemctl", "is-active", f"{unit}.service")[1]


def run(*argv: str) -> tuple[int, str]:
    """Return status and the last line of a program's output."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SERVICE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, f"{argv[0]}: {error}"
    lines = [line.strip() for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
    return done.returncode, lines[-1] if lines else f"{argv[0]} ended with status {done.returncode}"
