# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A Python of our own below torchfleet's home, for nodes whose Python is too old for PyTorch: python-VERSION.

It is an install_only archive of python-build-standalone, which runs wherever glibc is 2.17 or newer, and in any place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from pathlib import Path

from .archive import unpack
from .environment_files import RECEIPT, NotMadeError, free_mb, locked, nearest_directory, replaced
from .interpreter import NOTHING, number, probe

NAME = re.compile(r"python-(\d{1,3}\.\d{1,3}\.\d{1,3})\Z")
NEEDED_MB = 500
PROGRAM = Path("bin", "python3")


def place_of(home: str, version: str) -> Path:
    """Return the directory of a version."""
    return Path(home, f"python-{version}")


def newest(home: str) -> str:
    """Return the newest version that is there as a whole; an empty string where there is none."""
    try:
        names = os.listdir(home)
    except OSError:
        return ""
    found = [match.group(1) for match in map(NAME.match, names) if match]
    whole = [version for version in found if (place_of(home, version) / RECEIPT).is_file()]
    return max(whole, key=number, default="")


def usual(python: str, home: str) -> str:
    """Return the interpreter that makes environments: the one that is named, our own, or the one that runs this."""
    if python:
        return os.path.expanduser(python)
    home = os.path.expanduser(home)
    version = newest(home) if home else ""
    return str(place_of(home, version) / PROGRAM) if version else sys.executable


def make(home: str, version: str, archive: str, sha256: str) -> bool:
    """Unpack a version, unless it is there. Return whether it was unpacked. NotMadeError if it cannot be.

    The archive is removed.
    """
    path = place_of(home, version)
    try:
        with locked(path):
            if (path / RECEIPT).is_file():
                return False
            check(path, archive, sha256)
            with replaced(path):
                path.mkdir()
                unpack(archive, path)
                found = probe(str(path / PROGRAM)).version
                if found == NOTHING or number(found) != number(version)[:2]:
                    raise NotMadeError(f"the Python in {archive} does not run here, or is not {version}")
                (path / RECEIPT).write_text(json.dumps({"python": version, "sha256": sha256}) + "\n", encoding="utf-8")
        return True
    finally:
        with contextlib.suppress(OSError):
            os.unlink(archive)


def check(path: Path, archive: str, sha256: str) -> None:
    """Raise NotMadeError for an archive that is not the one that was sent, and for a disk that is too full."""
    digest = hashlib.sha256()
    with open(archive, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    if digest.hexdigest() != sha256:
        raise NotMadeError(f"{archive} did not arrive whole")
    near = nearest_directory(path)
    if free_mb(near) < NEEDED_MB:
        raise NotMadeError(f"Python needs {NEEDED_MB} MB in {near}, where {free_mb(near)} MB are free")
