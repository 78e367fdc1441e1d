# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a conda environment sets when it is activated: its own variables, and those that its scripts set.

As `conda activate` of conda 24 does for bash: first what `conda env config vars set` stored, then the scripts in
etc/conda/activate.d, in the order of their names. PATH is left alone: the environment's bin comes first in it anyway.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import signal
import subprocess

from ..basics.job_directory import JobDir
from ..types.forms import BadFrame, one_line
from ..types.records import Activation

SECONDS = 20.0  # for all scripts
OUTPUT_BYTES = 1 << 20
MOST = 200  # variables
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z")
UNSET = "***unset***"  # conda's word for a variable that is taken away
LEFT_ALONE = frozenset(("PATH", "PWD", "OLDPWD", "SHLVL", "_", "PS1"))
SCRIPT = 'for script; do . "$script"; done >/dev/null 2>&1; exec env -0'


def activated(prefix: str) -> Activation:
    """Return what activation of an environment sets on this node. `failed`: how many scripts could not be run."""
    named = {"CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": os.path.basename(prefix), "CONDA_SHLVL": "1"}
    own = {**named, **stored(prefix)}
    scripts = sorted(glob.glob(os.path.join(glob.escape(prefix), "etc", "conda", "activate.d", "*.sh")))
    before = {**os.environ, **own, "PATH": os.path.join(prefix, "bin") + os.pathsep + os.environ.get("PATH", "")}
    after = run(scripts, before) if scripts else before
    changed = {name: value for name, value in (after or {}).items() if before.get(name) != value}
    variables = {name: value for name, value in {**own, **changed}.items() if is_plain(name, value)}
    failed = 0 if after is not None else min(len(scripts), 10_000)
    return {"kind": "conda", "prefix": prefix, "failed": failed, "variables": dict(list(variables.items())[:MOST])}


def stored(prefix: str) -> dict[str, str]:
    """Return the variables that `conda env config vars set` stored."""
    state = JobDir(os.path.join(prefix, "conda-meta")).read("state")
    found = state.get("env_vars") if isinstance(state, dict) else None
    rows = found.items() if isinstance(found, dict) else ()
    return {str(name): value for name, value in rows if isinstance(value, str) and value != UNSET}


def is_plain(name: str, value: str) -> bool:
    """Whether a variable can be passed on: one line that changes no terminal."""
    try:
        return bool(NAME.match(name)) and name not in LEFT_ALONE and one_line(value) == value
    except BadFrame:
        return False


def run(scripts: list[str], environment: dict[str, str]) -> dict[str, str] | None:
    """Return the environment after bash read the scripts. None if that failed, or did not end in time."""
    argv = ["bash", "--noprofile", "--norc", "-c", SCRIPT, "bash", *scripts]
    try:
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        text = process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # and what a script started beside itself
        process.wait()
    if process.returncode != 0 or len(text) > OUTPUT_BYTES:
        return None
    rows = (row.partition("=") for row in text.decode(errors="replace").split("\0") if row)
    return {name: value for name, _equals, value in rows}
