# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Switches several programs of a node to other versions: all of them or none, and never under a running job."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

from . import versions
from .environment import read_receipt
from .running_jobs import running_job, wait_for_end
from .system_packages import installed_version


class Refused(Exception):
    """Nothing was changed. The text is one line."""


def look(paths: Mapping[str, Path], home: str) -> dict[str, dict[str, str]]:
    """Return for each name the version in use, the one before it if it can be used again, and a running job."""
    job = running_job(home)
    return {
        name: {"used": versions.in_use(path), "before": usable(path, versions.before(path)), "job": job}
        for name, path in paths.items()
    }


def usable(path: Path, name: str) -> str:
    """Return the name of a version; empty if it is damaged, or of a package that is no longer installed."""
    if not name:
        return ""
    receipt = read_receipt(versions.store_of(path) / name)
    if receipt is None:
        return ""
    package = receipt.get("package")
    return name if not package or installed_version(str(package)) == receipt.get("version") else ""


def use(paths: Mapping[str, Path], wanted: Mapping[str, str], home: str, check: bool = False) -> dict[str, str]:
    """Switch paths to versions. Return the versions in use before, by name, of those that change; "" for none.

    Nothing is changed if one cannot be. Refused while a job runs here.
    """
    was = {name: versions.in_use(paths[name]) for name in wanted}
    was = {name: version for name, version in was.items() if version != wanted[name]}
    if check or not was:
        return was
    job = running_job(home)
    if job and any(was.values()):
        raise Refused(wait_for_end(job, "would lose the files that it uses"))
    done: dict[str, str] = {}
    try:
        for name, version in was.items():
            versions.use(paths[name], wanted[name])
            done[name] = version
    except BaseException:
        undo(paths, done)
        raise
    return was


def undo(paths: Mapping[str, Path], was: Mapping[str, str]) -> None:
    """Switch paths back to the versions before use()."""
    for name, version in was.items():
        if version:
            versions.use(paths[name], version)
        else:
            versions.leave(paths[name])


def settle(paths: Mapping[str, Path], was: Mapping[str, str], keep: int, home: str) -> list[str]:
    """Note what came after what, and remove old versions but `keep` of each, unless a job runs. Return their names.

    `was`: the result of use(); empty after going back, which leaves the order as it is.
    """
    for name, version in was.items():
        versions.record(paths[name], version)
    if running_job(home):
        return []
    there = {name: path for name, path in paths.items() if versions.in_use(path)}
    return [f"{name} {version}" for name, path in there.items() for version in versions.prune(path, keep)]
