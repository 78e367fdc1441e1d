# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Our code for the nodes: module_utils as one archive, laid on a node once per version under its digest."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import zipfile
from pathlib import Path

PACKAGE = "ansible_collections/torchfleet/cluster/plugins/module_utils"
SOURCES = Path(__file__).parent.parent / "module_utils"
HOOK = "_exit_note.py"
ENTRY = "torchfleet.py"  # a script, not a __main__.py: runpy alone would cost every rank 5 ms
ENTRY_SOURCE = f"""import sys
sys.path.insert(0, __file__.rpartition("/")[0])
from {PACKAGE.replace("/", ".")}._main import main
main()
"""

# Runs on the node as `python -c`: unpacks the archive on stdin if this version is not there, then turns into it.
# Arguments: home, digest, size of the archive. Two at once are no harm: the second finds the directory there.
BOOTSTRAP = """
import os, sys
home = os.path.abspath(os.path.expanduser(sys.argv[1]))
target = os.path.join(home, "lib", sys.argv[2])
size, data = int(sys.argv[3]), b""
while len(data) < size:
    data += os.read(0, size - len(data)) or sys.exit("the archive ended early")
try:
    if not os.path.isdir(target):
        import io, zipfile
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        part = target + ".%d" % os.getpid()
        zipfile.ZipFile(io.BytesIO(data)).extractall(part)
        os.path.isdir(target) or os.rename(part, target)
except OSError as error:
    sys.exit(str(error))
os.execv(sys.executable, [sys.executable, "-I", "-S", os.path.join(target, "torchfleet.py"), "supervise"])
"""


@functools.cache
def archive() -> tuple[str, bytes]:
    """Return (digest, zip archive) of the runtime. Equal sources give equal digests."""
    files = {f"{PACKAGE}/{path.name}": path.read_bytes() for path in sorted(SOURCES.glob("*.py"))}
    files["hook/sitecustomize.py"] = (SOURCES / HOOK).read_bytes()
    files[ENTRY] = ENTRY_SOURCE.encode()
    digest = hashlib.sha256(b"".join(name.encode() + b"\0" + data for name, data in files.items())).hexdigest()[:16]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items():
            packed.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return digest, buffer.getvalue()


def entry_path(home: str) -> str:
    """Return the script that starts the runtime under a node's torchfleet home."""
    return os.path.join(home, "lib", archive()[0], ENTRY)
