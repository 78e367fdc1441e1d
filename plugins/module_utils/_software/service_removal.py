# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Removes drop-ins of systemd that a role wrote, and disables the services that it had enabled. Needs root."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Iterable

from .packages import run

UNITS = Path("/etc/systemd/system")


def drop_ins(services: Iterable[str]) -> list[str]:
    """Return the drop-ins of ours that are there, of services that may be patterns."""
    found = {path for name in services for path in UNITS.glob(f"{name}.d/torchfleet.conf")}
    return sorted(map(str, found))


def remove(paths: Iterable[str]) -> None:
    """Disable and stop the service of each drop-in, then remove that."""
    for path in paths:
        directory = os.path.dirname(path)
        run("systemctl", "disable", "--now", os.path.basename(directory)[: -len(".d")])
        os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(directory)
    if paths:
        run("systemctl", "daemon-reload")
