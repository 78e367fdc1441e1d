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

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.job_files import MOST_BYTES, MOST_FILES
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

# Never shipped: hidden files (.git, .env, .ssh), what Python makes, and the runs themselves.
SKIPPED = ("__pycache__", "node_modules", "runs", "venv")
ADVICE = "put the script into a folder of its own, and data where every node has it"


@dataclass(frozen=True)
class Folder:
    """The files of a folder: path below `root` to (sha256, whether executable).

    `left_out`: what lies there and is not shipped, though it has no name that is never shipped.
    """

    root: str
    files: dict[str, tuple[str, bool]]
    left_out: tuple[str, ...] = ()

    def listing(self) -> list[list[str | bool]]:
        """Return path, digest and whether executable of each file, as a node compares them."""
        return [[path, digest, executable] for path, (digest, executable) in sorted(self.files.items())]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return one line on what is left out, if anything is."""
        if not self.left_out:
            return ()
        which = "linked or empty directories, links to files elsewhere, files that cannot be read"
        return (f"not shipped from {self.root}: {len(self.left_out)} ({which}), the first is {self.left_out[0]!r}",)


def folder_of(script: str) -> Folder:
    """Return the folder of a script. InputError if it is too much, or somebody's home."""
    root = Path(script).parent.resolve()
    if root in (Path.home().resolve(), Path("/")):
        raise InputError("workload", script, f"the folder {root} would be shipped to the nodes: {ADVICE}")
    files: dict[str, tuple[str, bool]] = {}
    left_out: list[str] = []
    total = 0
    for path, shipped in walk(root):
        if not shipped and path != root / Path(script).name:
            left_out.append(str(path.relative_to(root)))
            continue
        total += path.stat().st_size
        if len(files) >= MOST_FILES or total > MOST_BYTES:
            limit = f"more than {MOST_FILES} files or {MOST_BYTES >> 20} MiB in {root}"
            raise InputError("workload", script, f"{limit} would be shipped to the nodes: {ADVICE}")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        files[str(path.relative_to(root))] = (digest, os.access(path, os.X_OK))
    return Folder(str(root), files, tuple(sorted(left_out)))


def walk(root: Path) -> Iterator[tuple[Path, bool]]:
    """Yield what lies in a folder, and whether it is shipped: files are, through links in the folder too.

    Links that lead out are not: in somebody else's folder one may lead to a key of yours. Nor are directories that are
    links (around in circles), nor those without a file to
    ship, nor what cannot be read. What has a name that is never shipped is not mentioned.
    """
    unreadable: list[OSError] = []
    for folder, folders, names in os.walk(root, onerror=unreadable.append):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        links = [name for name in folders if Path(folder, name).is_symlink()]
        yield from ((Path(folder, name), False) for name in links)
        paths = [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
        yield from ((path, is_inside(path, root) and path.is_file() and os.access(path, os.R_OK)) for path in paths)
        if not paths and not folders and Path(folder) != root:
            yield Path(folder), False
    yield from ((Path(error.filename), False) for error in unreadable)


def is_inside(path: Path, root: Path) -> bool:
    """Whether a path leads to something below a folder; `root` has no links."""
    return not path.is_symlink() or root in Path(os.path.realpath(path)).parents
