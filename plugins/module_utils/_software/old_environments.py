# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Environments of programs that nobody used for long: they make room for new ones, never under a running job."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import jobs
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.program_environment import (
    PROGRAMS,
    used_by,
)

from .environment_files import RECEIPT, NotMadeError, locked, remove


def remove_old(place: Path, keep: int, home: str) -> list[str]:
    """Remove all but the `keep` environments beside one that were used last. Return the names of those that went.

    Only finished ones of the directory PROGRAMS of a home are looked at. `place` itself stays.
    """
    home = os.path.abspath(os.path.expanduser(home))
    if str(place.parent) != os.path.join(home, PROGRAMS):
        return []
    found = [path for path in place.parent.iterdir() if not path.is_symlink() and (path / RECEIPT).is_file()]
    last = sorted(found, key=lambda path: (path == place, last_use(path)), reverse=True)
    return [path.name for path in last[keep:] if path != place and removed(path, home)]


def last_use(path: Path) -> float:
    """Return when an environment was used last, 0 for one that somebody else has just removed."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def removed(path: Path, home: str) -> bool:
    """Remove an environment, unless a running job uses it. Return whether it is gone."""
    try:
        with locked(path):
            if str(path) in {used_by(job.read_order()) for job in jobs(home) if job.running()}:
                return False
            (path / RECEIPT).unlink()  # first: what is left of it, if this is killed, is no environment
            remove(path)
    except (OSError, NotMadeError):  # somebody else removes it, or has it: no reason to lose the new one
        return False
    with contextlib.suppress(OSError):
        path.with_name(path.name + ".lock").unlink()
    return True
