# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node has of Slurm: the daemon that starts ranks, and the srun that a batch file starts."""

from __future__ import annotations

import glob
import os
import re
import stat
import subprocess
from typing import Iterator

from ..types.records import SlurmPrograms

SECONDS = 20.0  # for a daemon that is asked for its version
SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")  # which users may not have in PATH


def slurm_programs(launcher: str) -> SlurmPrograms:
    """Return what this node has. `launcher`: its srun or sbatch, empty if it has none."""
    place = os.path.dirname(launcher)
    slurmd = next((path for path in daemons(place) if os.access(path, os.X_OK) and not os.path.isdir(path)), "")
    srun = os.path.join(place, "srun") if launcher else ""
    return {
        "slurmd": slurmd,
        "version": version_of(slurmd) if slurmd else "",
        "srun": srun if os.access(srun, os.X_OK) else "",
    }


def daemons(place: str) -> Iterator[str]:
    """Yield where slurmd may be: the one that runs first, then beside the directory of srun, then the usual places."""
    yield from running()
    near = [os.path.join(os.path.dirname(place), "sbin"), place] if place else []
    for directory in (*near, *os.environ.get("PATH", "").split(os.pathsep), *SBIN):
        if directory:
            yield os.path.join(directory, "slurmd")


def running() -> Iterator[str]:
    """Yield the paths of daemons that run here, as they were started: any user may read that."""
    for path in glob.glob("/proc/[0-9]*/comm"):
        try:
            with open(path) as file:
                if file.read().strip() != "slurmd":
                    continue
            with open(os.path.join(os.path.dirname(path), "cmdline"), "rb") as line:
                program = os.fsdecode(line.read().split(b"\0")[0])
        except OSError:  # it has ended
            continue
        if os.path.basename(program) == "slurmd" and is_safe(program):
            yield program


def is_safe(program: str) -> bool:
    """Whether only root and this user can change what a path leads to.

    Anybody can start a process that calls itself slurmd, by any path: its program would run with this user's rights.
    """
    real = os.path.realpath(program)
    if not os.path.isabs(program) or real.startswith("/proc/"):
        return False
    places = {real, os.path.abspath(program)}
    while any(place != "/" for place in places):
        try:
            states = [os.lstat(place) for place in places]
        except OSError:
            return False
        if any(
            state.st_uid not in (0, os.geteuid()) or (state.st_mode & 0o022 and not stat.S_ISLNK(state.st_mode))
            for state in states
        ):
            return False
        places = {os.path.dirname(place) for place in places}
    return True


def version_of(slurmd: str) -> str:
    """Return the version that a slurmd prints, empty if it does not."""
    try:
        done = subprocess.run(
            [slurmd, "-V"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"^slurm\S* (\d[\w.]*)", done.stdout, re.MULTILINE) if done.returncode == 0 else None
    return match.group(1) if match else ""
