# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Launchers on this node: where they are, which version they are, whether they take the user's options."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Sequence

from ..types.records import FoundLauncher
from .launchers import LAUNCHERS, STARTED_BY_SLURMD

SECONDS = 20.0  # for a program that is asked for something


def find_launcher(name: str, path: str, home: str) -> FoundLauncher:
    """Return a launcher as this node has it.

    It is the one at `path` if that is given, else the one that our role installed, else the first one of that kind on
    the search path.
    """
    programs = LAUNCHERS[name].programs
    if path and name in STARTED_BY_SLURMD:  # srun's, beside which the others are
        path = os.path.join(os.path.dirname(path), programs[0])
    own = os.path.expanduser(path) if path else os.path.join(home, name, "bin", programs[0])
    on_path = [] if path else [on_search_path(program) for program in programs]
    found: FoundLauncher = {"path": "", "version": "", "wanted": own, "said": "", "refused": ""}
    for candidate in filter(None, [own if os.access(own, os.X_OK) else "", *on_path]):
        version, said = launcher_version(name, candidate)
        if version or not found["path"]:
            found = {"path": candidate, "version": version, "wanted": own, "said": said, "refused": ""}
        if version:
            break
    return found


def on_search_path(program: str) -> str:
    """Return the path of a program on PATH, or an empty string."""
    directories = os.environ.get("PATH", "").split(os.pathsep)
    paths = (os.path.join(directory, program) for directory in directories if directory)
    return next((path for path in paths if os.access(path, os.X_OK) and not os.path.isdir(path)), "")


def launcher_version(name: str, path: str) -> tuple[str, str]:
    """Return the version that a launcher prints, else its message."""
    rc, out, err = ask([path, "--version"])
    match = re.search(LAUNCHERS[name].version, out, re.MULTILINE) if rc == 0 else None
    words = " ".join((err or out).replace("-", " ").split())
    return (match.group(1), "") if match else ("", f"({words[:200]})" if words else "")


def ask(argv: Sequence[str]) -> tuple[int, str, str]:
    """Return status, stdout and stderr of a program; status 127 and why where it does not run or end."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, "", str(error)
    return done.returncode, done.stdout, done.stderr


def refusal(name: str, launcher: FoundLauncher, words: Sequence[str]) -> str:
    """Return what a launcher says of options that it does not take, by starting `true` once with them on this node."""
    if not words or not launcher["version"]:
        return ""
    row, path = LAUNCHERS[name], launcher["path"]
    missing = missing_component(path, words) if row.components else ""
    if missing:
        return missing
    rc, out, err = ask([path, *row.trial(launcher["version"], words), "true"])
    printed = [line.strip() for line in (err + out).splitlines() if line.strip("- ")]
    return f"{' '.join(words)} ({' '.join(printed[:3])[:300]})" if rc else ""


def missing_component(mpirun: str, words: Sequence[str]) -> str:
    """Return what option asks Open MPI for a component that it does not have, with those that it has.

    Of some it says nothing: coll_ucc_enable without coll ucc is ignored, and the job runs without it.
    """
    _rc, output, _err = ask([os.path.join(os.path.dirname(mpirun), "ompi_info"), "--parsable"])
    there: dict[str, set[str]] = {}
    for framework, component in re.findall(r"^mca:(\w+):(\w+):", output, re.MULTILINE):
        there.setdefault(framework, set()).add(component)
    for option, key, value in zip(words, words[1:], words[2:]):
        if option.lstrip("-") not in ("mca", "gmca"):
            continue
        switch = re.fullmatch(r"([a-z0-9]+)_(\w+)_(enable|priority)", key)
        framework, asked = (switch.group(1), [switch.group(2)]) if switch else (key, value.split(","))
        known = there.get(framework)
        missing = [component for component in asked if known and component not in known]
        if missing and not value.startswith("^"):
            has = ", ".join(sorted(known or ()))
            return f"{option} {key} {value} (there is no {framework} {', '.join(missing)}: it has {has})"
    return ""
