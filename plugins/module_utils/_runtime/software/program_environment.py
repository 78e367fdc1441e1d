# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Python environment of a program on this node: what its requirements need, beside the proven PyTorch.

It lies in PROGRAMS below torchfleet's home, in a directory that is named by what was asked for. A finished one has a
receipt (module python_environment), which is written last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform

from ..basics.job_directory import JobDir, field
from ..types.records import Activation, ProgramEnvironment
from . import conda

PROGRAMS = "programs"
RECEIPT = "torchfleet-receipt.json"


def look(home: str, name: str, python: str, torch: dict[str, str] | None) -> ProgramEnvironment | None:
    """Return the environment of that name as it is on this node; None where the program needs none.

    `python`: the interpreter of the proven environment, which it sees; `torch`: the build that is there.
    """
    if not name:
        return None
    path = os.path.join(home, PROGRAMS, name)
    receipt = JobDir(path).read(RECEIPT)
    found: ProgramEnvironment = {"path": path, "content": "", "kind": platform.machine()}
    if not isinstance(receipt, dict) or not torch or not os.access(os.path.join(path, "bin", "python"), os.X_OK):
        return found
    version = str(receipt.get("python"))
    linked = os.path.dirname(os.path.dirname(python))
    sees = os.path.isdir(os.path.join(linked, "lib", "python" + version, "site-packages", "torch"))
    if sees and receipt.get("linked_environment") == linked and receipt.get("kept") == [f"torch=={torch['version']}"]:
        text = json.dumps(receipt.get("installed"), sort_keys=True)
        found["content"] = hashlib.sha256(text.encode()).hexdigest()[:16]
        found["kind"] = f"{platform.machine()} {version}"
    return found


def interpreter(python: str) -> str:
    """Return the interpreter that a path means: itself, or that of an environment if it is a directory."""
    path = os.path.expanduser(python)
    return os.path.join(path, "bin", "python") if os.path.isdir(path) else path


def activation(python: str) -> Activation | None:
    """Return the environment that an interpreter lies in, None if it lies in none.

    conda-meta is what conda itself knows its environments by, pyvenv.cfg is PEP 405.
    """
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    if os.path.isdir(os.path.join(prefix, "conda-meta")):
        return conda.activated(prefix)
    if not os.path.isfile(os.path.join(prefix, "pyvenv.cfg")):
        return None
    return {"kind": "venv", "prefix": prefix, "failed": 0, "variables": {"VIRTUAL_ENV": prefix}}


def used_by(order: object) -> str:
    """Return the directory of the environment that a job's ranks run in on this node; empty if it is none of these.

    `order`: what lies in order.json, which an earlier version may have written.
    """
    path, home = field(order, "path_first", str), field(order, "home", str)
    if path is None or home is None:
        return ""
    place = os.path.dirname(path.split(os.pathsep)[0])
    return place if os.path.dirname(place) == os.path.join(home, PROGRAMS) else ""


def note_use(order: object) -> None:
    """Note that a job uses its environment: those that were used longest ago go first."""
    place = used_by(order)
    if place:
        with contextlib.suppress(OSError):
            os.utime(place)
