# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Our code for the nodes: module_utils as one archive, laid on a node once per version under its digest."""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._bootstrap import ENTRY, pack

PACKAGE = "ansible_collections/torchfleet/cluster/plugins/module_utils"
SOURCES = Path(__file__).parent.parent / "module_utils"
# What a rank's Python starts with, and the name of each there.
HOOKS = {"_exit_note.py": "sitecustomize.py", "_group_note.py": "_torchfleet_group_note.py"}
ENTRY_SOURCE = f"""import sys
sys.path.insert(0, __file__.rpartition("/")[0])
from {PACKAGE.replace("/", ".")}._main import main
main()
"""


@functools.cache
def sources() -> dict[str, bytes]:
    """Return the files of the runtime by name: what its entry imports, directly or not."""
    wanted, found = {"_main"}, dict[str, bytes]()
    while wanted - found.keys():
        name = min(wanted - found.keys())
        found[name] = (SOURCES / f"{name}.py").read_bytes()
        wanted |= imports(found[name].decode())
    files = {f"{PACKAGE}/{name}.py": found[name] for name in sorted(found)}
    files.update({f"hook/{name}": (SOURCES / source).read_bytes() for source, name in HOOKS.items()})
    return {name: files[name] for name in sorted(files)} | {ENTRY: ENTRY_SOURCE.encode()}


def imports(source: str) -> set[str]:
    """Return the names of the modules beside it that a source imports."""
    package = PACKAGE.replace("/", ".")
    modules = set(re.findall(rf"from {package}\.(\w+) import", source))
    for names in re.findall(rf"from {package} import (.+)", source):
        modules |= {name.strip() for name in names.split(",")}
    return modules


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
