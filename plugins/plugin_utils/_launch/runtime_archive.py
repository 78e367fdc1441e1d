# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Our code for the nodes: module_utils/_runtime as one archive, laid on a node once per version under its digest."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.bootstrap import ENTRY, pack
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.engine_commands import (
    RC_SCRIPT,
    RC_SOURCE,
)

PACKAGE = "_runtime"
SOURCES = Path(__file__).parents[2] / "module_utils" / PACKAGE
# What a rank's Python starts with, and the name of each there.
HOOKS = {
    "exit_note.py": "sitecustomize.py",
    "group_note.py": "_torchfleet_group_note.py",
    "look_note.py": "_torchfleet_look_note.py",
    "arrivals_note.py": "_torchfleet_arrivals_note.py",
    "profile_note.py": "_torchfleet_profile_note.py",
}
ENTRY_SOURCE = f"""import sys
sys.path.insert(0, __file__.rpartition("/")[0])
from {PACKAGE}.main import main
main()
"""


@functools.cache
def sources() -> dict[str, bytes]:
    """Return the files of the runtime by name."""
    files = {f"{PACKAGE}/{source.relative_to(SOURCES)}": source.read_bytes() for source in SOURCES.rglob("*.py")}
    files[RC_SCRIPT] = RC_SOURCE
    files.update({f"hook/{name}": (SOURCES / "hooks" / source).read_bytes() for source, name in HOOKS.items()})
    return {name: files[name] for name in sorted(files)} | {ENTRY: ENTRY_SOURCE.encode()}


@functools.cache
def digest() -> str:
    """Return the version of the runtime. Equal sources give equal digests."""
    parts = (name.encode() + b"\0" + data for name, data in sources().items())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def archive() -> bytes:
    """Return the zip archive of the runtime."""
    return pack(sources())


def entry() -> str:
    """Return the script that starts the runtime, below a node's torchfleet home."""
    return f"lib/{digest()}/{ENTRY}"
