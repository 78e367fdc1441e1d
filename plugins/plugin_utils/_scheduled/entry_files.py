# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node is given that a scheduler brings, a pod or one of Slurm: our code, the script's folder and the order."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.bootstrap import pack
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import RunOrder
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.entry import REFUSED
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.runtime_archive import sources
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.workdir import ADVICE, Folder

MODULES = Path(__file__).parents[2] / "module_utils"
ROOMS = ("_fabric", "_scheduled")  # beside _runtime
PACKAGE = "ansible_collections/torchfleet/cluster/plugins/module_utils"
# Our folders lie at the top of the archive, where the rank wrapper finds them, and are found by their full names too.
ALIAS = b'__path__.append(__file__.rsplit("/", 6)[0])\n'
# The first thing that runs on a node: lays our code out of these files, and becomes it. Arguments: where they lie (in a
# pod the ConfigMap is mounted there), our home on the node, the name of this version there, and what entry.py takes
# besides. Any Python reads it, to say that it is too old.
FIRST = """import os, sys
source, home, version = sys.argv[1:4]
if sys.version_info < (3, 8):
    sys.stderr.write("Python %d.%d is in the image, and 3.8 or newer is needed: -e python=/path/to/python3\\n"
                     % tuple(sys.version_info[:2]))
    sys.exit(REFUSED)
import zipfile
target = os.path.join(home, "lib", version)
try:
    os.makedirs(target, 0o700, exist_ok=True)
    with zipfile.ZipFile(os.path.join(source, "runtime.zip")) as packed:
        packed.extractall(target)
except (OSError, ValueError) as error:
    sys.stderr.write("our code cannot be laid into %s: %s\\n" % (target, error))
    sys.exit(REFUSED)
os.execv(sys.executable, [sys.executable, "-I", "-S", os.path.join(target, "entry.py"), source, home] + sys.argv[4:])
"""
RUNTIME_ENTRY = f"""import sys
sys.path.insert(0, __file__.rpartition("/")[0])
from {PACKAGE.replace("/", ".")}._scheduled.main import main
main()
"""


def runtime_of_entry() -> bytes:
    """Return the archive of all our code that runs on such a node."""
    files = dict(sources())
    for room in ROOMS:
        files.update({f"{room}/{path.name}": path.read_bytes() for path in (MODULES / room).glob("*.py")})
    files[f"{PACKAGE}/__init__.py"] = ALIAS
    files["entry.py"] = RUNTIME_ENTRY.encode()
    return pack(files)


def entry_files(
    order: RunOrder, folder: Folder | None, output: int, seconds: float, most: int, what: str, advice: str
) -> dict[str, bytes]:
    """Return the files that our entry on a node needs, by name. InputError if they are more than `most` bytes.

    `output`: bytes of it that come home; `seconds` to wait for others; `what` carries them; `advice`: what else to do.
    """
    told = {"job": order["job"], "nodes": order["nodes"], "output_bytes": output, "start_timeout": seconds}
    program = {}
    for path in folder.files if folder else ():
        program[path] = Path(os.path.realpath(os.path.join(folder.root if folder else "", path))).read_bytes()
    files = {
        "entry.py": FIRST.replace("REFUSED", str(REFUSED)).encode(),
        "runtime.zip": runtime_of_entry(),
        "program.zip": pack(program),
        "listing.json": json.dumps(folder.listing() if folder else []).encode(),
        "order.json": json.dumps(told).encode(),
    }
    total = sum(map(len, files.values()))
    if total > most:
        parts = ", ".join(f"{name} {len(data):,}" for name, data in files.items())
        reason = f"{what} takes {most:,} bytes, and the files have {total:,} ({parts})"
        raise InputError("workload", folder.root if folder else "", f"{reason}: {ADVICE}{advice}")
    return files
