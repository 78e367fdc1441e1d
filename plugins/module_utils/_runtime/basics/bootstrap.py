# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Our code on a node that has none: how it is packed, copied there once per version, and started over one channel."""

from __future__ import annotations

import base64
import io
import os
import sys
import zipfile
from typing import Mapping

ENTRY = "torchfleet.py"  # a script, not a __main__.py: runpy alone would cost every rank 5 ms
GREETING = b"torchfleet runtime: "  # shells and profiles may print before it
HEADER = 12  # digits that say how long the archive is

# Runs on the node as `python -c`: takes the archive from stdin if this version is not there, then turns into it.
# Arguments: home, digest. Two at once are no harm: the second finds the directory there.
# Any Python must be able to read it, also 2.7, to say that it is too old.
OLDEST = (3, 8)
TOO_OLD = 86  # exit status
BOOTSTRAP = """
import os, sys
if sys.version_info < OLDEST:
    names = [os.path.join(top, "python3.%d" % minor) for minor in range(20, OLDEST[1] - 1, -1)
             for top in ("/usr/local/bin", "/usr/bin")]
    newer = ([name for name in names if os.path.exists(name)] or ["a newer one"])[0]
    sys.stderr.write("%s is Python %d.%d, and %d.%d or newer is needed: set ansible_python_interpreter to %s\\n"
                     % ((sys.executable,) + tuple(sys.version_info[:2]) + OLDEST + (newer,)))
    sys.exit(TOO_OLD)
home = os.path.abspath(os.path.expanduser(sys.argv[1]))
target = os.path.join(home, "lib", sys.argv[2])
def ours(path):
    link, found = os.lstat(path), os.stat(path)
    open_to_all = found.st_mode & 0o1002 == 0o002  # sticky: others cannot exchange what is ours
    if {link.st_uid, found.st_uid} != {os.getuid()} or open_to_all:
        sys.exit("%s is not yours alone: give torchfleet_home a directory that only you can write to" % path)
def digest():
    import hashlib
    tops = [(top, names) for top, folders, names in os.walk(target) if os.path.basename(top) != "__pycache__"]
    names = [os.path.join(top, name) for top, names in tops for name in names]
    total = hashlib.sha256()
    for name in sorted(os.path.relpath(name, target) for name in names):
        with open(os.path.join(target, name), "rb") as file:
            total.update(name.encode() + b"\\0" + file.read())
    return total.hexdigest()[:16]
for path in (home, os.path.dirname(target), target):
    os.path.exists(path) and ours(path)
have = os.path.isdir(target) and digest() == sys.argv[2]
os.write(1, b"\\n%s%s\\n" % (GREETING, b"here" if have else b"wanted"))
def take(size):
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or sys.exit("the archive ended early")
    return data
try:
    if not have:
        import io, zipfile
        data = take(int(take(HEADER)))
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        import shutil
        part = target + ".%d" % os.getpid()
        zipfile.ZipFile(io.BytesIO(data)).extractall(part)
        if os.path.isdir(target) and digest() != sys.argv[2]:
            os.rename(target, part + ".changed")
        try:
            os.rename(part, target)
        except OSError:
            os.path.isdir(target) or sys.exit("cannot be made: %s" % target)
        for left in (part, part + ".changed"):
            shutil.rmtree(left, ignore_errors=True)
except OSError as error:
    sys.exit("%s: %s" % (error.strerror, error.filename or target))
entry = os.path.join(target, "torchfleet.py")
os.execv(sys.executable, [sys.executable, "-I", "-S", entry, "supervise"])
"""


def bootstrap(interpreter: str, home: str, digest: str) -> list[str]:
    """Return the command that starts our code on a node. One line without quotes or newlines: csh takes it too."""
    code = f"GREETING, HEADER, OLDEST, TOO_OLD = {GREETING!r}, {HEADER}, {OLDEST}, {TOO_OLD}\n{BOOTSTRAP}"
    packed = base64.b64encode(code.encode()).decode()
    # As -I, which Python 2 has not: no variables, no directory of the user's, and not the one we are in.
    start = f"import sys;sys.path[:]=filter(None,sys.path);import base64;exec(base64.b64decode('{packed}'))"
    return [interpreter, "-E", "-s", "-S", "-c", start, home, digest]


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return a zip archive of files by name. Equal files give equal archives."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in sorted(files):
            packed.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def parcel(archive: bytes) -> bytes:
    """Return what the bootstrap wants to read: the length of the archive, then the archive."""
    return b"%0*d" % (HEADER, len(archive)) + archive


def own_digest() -> str:
    """Return the version of the runtime that this process runs: the name of its directory."""
    return os.path.basename(sys.path[0])


def own_archive() -> bytes:
    """Pack the runtime that this process runs, to copy it to another node."""
    root = sys.path[0]
    files = {}
    for folder, _folders, names in os.walk(root):
        for name in names if os.path.basename(folder) != "__pycache__" else ():
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                files[os.path.relpath(path, root)] = file.read()
    return pack(files)
