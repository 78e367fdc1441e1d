# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The folder of a script, shipped to nodes elsewhere: what belongs to it, and what must not leave the controller."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError

MOST_FILES, MOST_BYTES = 10_000, 256 << 20
# Never shipped: hidden files (.git, .env, .ssh), what Python makes, and the runs themselves.
SKIPPED = ("__pycache__", "node_modules", "runs", "venv")
ADVICE = "put the script into a folder of its own, and data where every node has it"


@dataclass(frozen=True)
class Folder:
    """The files of a folder: path below `root` to (sha256, whether executable)."""

    root: str
    name: str
    files: dict[str, tuple[str, bool]]

    def listing(self) -> list[list[str | bool]]:
        """Return path, digest and whether executable of each file, as a node compares them."""
        return [[path, digest, executable] for path, (digest, executable) in sorted(self.files.items())]


def folder_of(script: str) -> Folder:
    """Return the folder of a script. InputError if it is too much, or somebody's home."""
    root = Path(script).parent.resolve()
    if root in (Path.home().resolve(), Path("/")):
        raise InputError("workload", script, f"the folder {root} would be shipped to the nodes: {ADVICE}")
    files: dict[str, tuple[str, bool]] = {}
    total = 0
    for path in walk(root):
        total += path.stat().st_size
        if len(files) >= MOST_FILES or total > MOST_BYTES:
            limit = f"more than {MOST_FILES} files or {MOST_BYTES >> 20} MiB in {root}"
            raise InputError("workload", script, f"{limit} would be shipped to the nodes: {ADVICE}")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        files[str(path.relative_to(root))] = (digest, os.access(path, os.X_OK))
    return Folder(str(root), f"{root.name or 'root'}-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}", files)


def walk(root: Path) -> Iterator[Path]:
    """Yield the files of a folder that are shipped. Links are followed if they lead to a file."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file() and os.access(path, os.R_OK):
                yield path
