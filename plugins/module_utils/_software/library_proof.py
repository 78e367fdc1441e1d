# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The proof that a communication library loads, and has the requested version and parts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

from .proof_error import UnprovenError

SECONDS = 120
# Loads libraries one after the other, so that each finds those before it. In a process of its own: a library may print,
# or abort, when it is loaded.
LOAD = "import ctypes, sys; [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in sys.argv[1:]]"


class Library(NamedTuple):
    """The header with a library's version, the prefix of the macros in it, and the files to load."""

    header: str
    macro: str
    files: tuple[str, ...]


LIBRARIES: Mapping[str, Library] = {
    "ucx": Library("include/ucp/api/ucp_version.h", "UCP_API", ("libucs.so.0", "libuct.so.0", "libucp.so.0")),
    "ucc": Library("include/ucc/api/ucc_version.h", "UCC_API", ("libucc.so.1",)),
}


def prove(library: str, path: Path, version: str = "", parts: Sequence[str] = ()) -> str:
    """Return the version (MAJOR.MINOR) of a library that works. UnprovenError if it does not.

    `path`: where it was installed; a wheel has it among its packages. `version`: the one that it must be, or "".
    `parts`: patterns of files among its libraries: a build leaves out what it does not find.
    """
    prefix = find_prefix(library, path)
    found = find_version(library, prefix, version)
    lacking = [part for part in parts if not find_files(prefix, part)]
    if lacking:
        raise UnprovenError(f"{prefix} was built without {', '.join(lacking)}")
    load(library, prefix)
    return found


def find_prefix(library: str, path: Path) -> Path:
    """Return the directory with include/ and lib/."""
    header = LIBRARIES[library].header
    packaged = sorted(path.glob(f"lib/python3*/site-packages/lib{library}"))
    for prefix in (path, *packaged):
        if (prefix / header).is_file():
            return prefix
    raise UnprovenError(f"{path} has no {header}")


def find_version(library: str, prefix: Path, wanted: str) -> str:
    """Return the version in the header. Raise UnprovenError if it is not the required one."""
    header, macro, _files = LIBRARIES[library]
    text = (prefix / header).read_text(encoding="utf-8", errors="replace")
    numbers = [re.search(rf"^#\s*define\s+{macro}_{part}\s+(\d+)", text, re.MULTILINE) for part in ("MAJOR", "MINOR")]
    version = ".".join(match.group(1) if match else "?" for match in numbers)
    if wanted and wanted.split(".")[:2] != version.split("."):
        raise UnprovenError(f"{prefix} should be {library} {wanted}, but is {version}")
    return version


def find_files(prefix: Path, pattern: str) -> list[Path]:
    """Return the files of a pattern in the directories of libraries."""
    return [file for place in places(prefix) for file in sorted(place.glob(pattern))]


def places(prefix: Path) -> Iterator[Path]:
    """Yield the directories of libraries."""
    yield prefix / "lib"
    yield from prefix.glob("lib/*-linux-gnu")
    yield prefix / "lib64"


def load(library: str, prefix: Path) -> None:
    """Load a library. UnprovenError if it cannot be loaded."""
    found = {name: find_files(prefix, name) for name in LIBRARIES[library].files}
    lacking = [name for name, files in found.items() if not files]
    if lacking:
        raise UnprovenError(f"{prefix} has no {', '.join(lacking)}")
    argv = [sys.executable, "-I", "-c", LOAD, *(str(files[0]) for files in found.values())]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise UnprovenError(f"loading {library} of {prefix} did not end within {SECONDS} s") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"]
        raise UnprovenError(f"{library} of {prefix} cannot be loaded: {lines[-1][:300]}")
