# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Packages of a Debian or Ubuntu: which are missing, and installing them with apt. Installing needs root."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Sequence

APT = "/usr/bin/apt-get"
UPDATES = Path("/var/lib/dpkg/updates")
LOCK_SECONDS = 300  # for another apt to end
PAUSES = (1.0, 2.0, 4.0, 8.0, 12.0)  # seconds before the lists are asked for again: another apt may be at them
CONFIGURATION = ("--force-confdef", "--force-confold")  # files that somebody changed stay as they are
KEEPS_NO_ARCHIVES = "APT::Keep-Downloaded-Packages=false"  # else gigabytes of drivers stay in /var/cache/apt
OPTIONS = [
    f"DPkg::Lock::Timeout={LOCK_SECONDS}",
    KEEPS_NO_ARCHIVES,
    *(f"DPkg::Options::={option}" for option in CONFIGURATION),
]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # as sudo sets it; su leaves out what dpkg starts
MOST_LINES = 5  # of what apt says of errors


class NotInstalled(Exception):
    """Packages could not be installed: what apt says of it."""


def run(argv: Sequence[str]) -> tuple[int, str]:
    """Return the status of a program and what it writes, in English; status 127 if it does not run."""
    env = {**os.environ, "PATH": PATH, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except OSError as error:
        return 127, f"{argv[0]} does not run: {error.strerror}"
    return done.returncode, done.stdout.decode(errors="replace")


def installed_version(package: str) -> str:
    """Return the version of a package that is installed completely, or an empty string."""
    form = "${db:Status-Status} ${Version}"
    _status, said = run(["dpkg-query", "--show", "--showformat", form, package])
    state, _separator, version = said.strip().partition(" ")
    return version if state == "installed" else ""


def files_of(package: str) -> list[str]:
    """Return the files of an installed package."""
    status, said = run(["dpkg-query", "--listfiles", package])
    return said.splitlines() if status == 0 else []


def missing(packages: Sequence[str]) -> list[str]:
    """Return the packages that are not installed completely."""
    return [package for package in packages if not installed_version(package)]


def was_interrupted() -> bool:
    """Say whether the installation of any package was interrupted; apt refuses to work then."""
    return bool(run(["dpkg", "--audit"])[1].strip()) or any(UPDATES.glob("[0-9]*"))


def install(packages: Sequence[str]) -> None:
    """Install packages, after what an interrupted installation left unfinished. NotInstalled if apt cannot."""
    if was_interrupted():
        run(
            ["dpkg", *CONFIGURATION, "--configure", "-a"]
        )  # if it does not help, the next call of apt fails and says why
    updated = update()
    options = [word for option in OPTIONS for word in ("--option", option)]
    status, said = run([APT, "--yes", "--no-install-recommends", *options, "install", "--", *packages])
    if status != 0:
        lines = [*errors(said, "E: "), *errors(updated, "E: ", "W: Failed to fetch")]
        raise NotInstalled("; ".join(lines[:MOST_LINES]) or f"apt-get ended with status {status}")


def update() -> str:
    """Bring the lists of packages up to date. Return what apt says: old lists may be good enough."""
    for pause in (0.0, *PAUSES):
        time.sleep(pause)
        status, said = run([APT, "update"])
        if status == 0:
            break
    return said


def errors(said: str, *marks: str) -> list[str]:
    """Return the lines of an output that begin with one of the marks, each with single spaces."""
    return [" ".join(line.split()) for line in said.splitlines() if line.startswith(marks)]
