# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads files, directories and the output of programs of this node. The result is empty in place of an error."""

from __future__ import annotations

import os
import subprocess

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.sysfs import read
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launcher_programs import (
    on_search_path,
)

PROGRAM_SECONDS = 20.0  # for a program that is asked for its version
SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # not on the search path of a plain user


def text_of(path: str) -> str:
    """Return the text of a file, or an empty string."""
    return read(path, strip=False)


def names_in(path: str) -> list[str]:
    """Return the names in a directory, or none where it is not there."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def output_of(argv: list[str]) -> str:
    """Return the stdout of a program, or an empty string if it cannot be run or fails."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def program(name: str) -> str:
    """Return the path of a program, also of one that only root has on the search path, or an empty string."""
    found = [path for path in (f"{directory}/{name}" for directory in SBIN) if os.access(path, os.X_OK)]
    return on_search_path(name) or (found[0] if found else "")


def root_output_of(name: str, words: list[str], sudo: str) -> str:
    """Return the stdout of a program run as root, by sudo if it needs no password; else an empty string."""
    path = program(name)
    prefix = [] if os.getuid() == 0 else ["sudo", "-n"]
    return output_of([*prefix, path, *words]) if path and (not prefix or sudo == "yes") else ""
