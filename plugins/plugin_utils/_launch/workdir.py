# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The folder of a script, shipped to nodes elsewhere: what belongs to it, and what must not leave the controller."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.job_files import MOST_BYTES, MOST_FILES
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.file_messages import Listing
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import AnyFacts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster

from .ignored import IGNORE_FILE, SKIPPED, Ignored

CODE_DIGITS = 16
ADVICE = "put the script into a folder of its own, and data where every node has it"


@dataclass(frozen=True)
class Folder:
    """The files of a folder: path below `root` to (sha256, whether executable).

    `left_out`: what lies there and is not shipped, though it has no name that is never shipped. `bytes` of the files.
    `by_name`, `by_file`: how many files and directories are left out by their names, and by .torchfleetignore.
    """

    root: str
    files: dict[str, tuple[str, bool]]
    left_out: tuple[str, ...] = ()
    bytes: int = 0
    by_name: int = 0
    by_file: int = 0

    def listing(self) -> Listing:
        """Return path, digest and whether executable of each file, as a node compares them."""
        return [(path, digest, executable) for path, (digest, executable) in sorted(self.files.items())]

    @property
    def line(self) -> str:
        """Return one line on what is shipped and what is left out by rules."""
        names = f"{self.by_name:,} hidden or called {', '.join(SKIPPED)}"
        rules = [f"{self.by_file:,} by {IGNORE_FILE}"] * (self.by_file > 0) + [names] * (self.by_name > 0)
        files = f"{len(self.files):,} file" + "s" * (len(self.files) != 1)
        return f"shipped from {self.root}: {files}, {self.bytes:,} bytes; left out: {'; '.join(rules) or 'nothing'}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return one line on what is left out, if anything is."""
        if not self.left_out:
            return ()
        which = "linked or empty directories, links to files elsewhere, files that cannot be read"
        return (f"not shipped from {self.root}: {len(self.left_out)} ({which}), the first is {self.left_out[0]!r}",)


def root_of(script: str, module: str = "") -> Path:
    """Return the folder of a script, or the one in which `python -m` finds a module, whose file `script` is."""
    path = Path(script)
    if not (script and module):
        return path.parent
    return path.parents[len(module.split(".")) - (path.name != "__main__.py")]


def folder_of(script: str, module: str = "") -> Folder:
    """Return the folder of a program. InputError if it is too much, or somebody's home."""
    root = root_of(script, module)
    name = str(Path(script).relative_to(root))
    root = root.resolve()
    if root in (Path.home().resolve(), Path("/")):
        raise InputError("workload", script, f"the folder {root} would be shipped to the nodes: {ADVICE}")
    files: dict[str, tuple[str, bool]] = {}
    left_out: list[str] = []
    total, ignored = 0, Ignored(root)
    for path, shipped in walk(root, ignored):
        if not shipped and path != root / name:
            left_out.append(str(path.relative_to(root)))
            continue
        total += path.stat().st_size
        if len(files) >= MOST_FILES or total > MOST_BYTES:
            limit = f"more than {MOST_FILES} files or {MOST_BYTES >> 20} MiB in {root}"
            raise InputError("workload", script, f"{limit} would be shipped to the nodes: {ADVICE}")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        files[str(path.relative_to(root))] = (digest, os.access(path, os.X_OK))
    if name not in files:
        advice = f"it is hidden, or {IGNORE_FILE} leaves it out: rename it, or add !/{name} there"
        raise InputError("workload", script, advice)
    return Folder(str(root), files, tuple(sorted(left_out)), total, ignored.by_name, ignored.by_file)


def walk(root: Path, ignored: Ignored) -> Iterator[tuple[Path, bool]]:
    """Yield what lies in a folder, and whether it is shipped: files are, through links in the folder too.

    Links that lead out are not: in somebody else's folder one may lead to a key of yours. Nor are directories that are
    links (around in circles), nor those without a file to ship, nor what cannot be read. What is left out by its name
    is counted and not mentioned.
    """
    unreadable: list[OSError] = []
    for folder, folders, names in os.walk(root, onerror=unreadable.append):
        folders[:] = sorted(name for name in folders if ignored.keeps(Path(folder, name), is_folder=True))
        links = [name for name in folders if Path(folder, name).is_symlink()]
        yield from ((Path(folder, name), False) for name in links)
        paths = [path for path in (Path(folder, name) for name in sorted(names)) if ignored.keeps(path, False)]
        yield from ((path, is_inside(path, root) and path.is_file() and os.access(path, os.R_OK)) for path in paths)
        if not paths and not folders and Path(folder) != root:
            yield Path(folder), False
    yield from ((Path(error.filename), False) for error in unreadable)


def is_inside(path: Path, root: Path) -> bool:
    """Whether a path leads to something below a folder; `root` has no links."""
    return not path.is_symlink() or root in Path(os.path.realpath(path)).parents


def folder_words(folder: Folder | None) -> tuple[tuple[str, ...], str]:
    """Return the warnings of a folder that is shipped, and the line on it; nothing where none is."""
    return (folder.warnings, folder.line) if folder else ((), "")


def code_digest(folder: Folder | None, script: str) -> str:
    """Return a digest of the files that are copied to the nodes, or of a .py file that is not; empty for all else.

    Two runs with the same digest had the same code. An executable may be a container's image: it is not read.
    """
    if folder:
        return hashlib.sha256(json.dumps(folder.listing()).encode()).hexdigest()[:CODE_DIGITS]
    try:
        return hashlib.sha256(Path(script).read_bytes()).hexdigest()[:CODE_DIGITS] if script.endswith(".py") else ""
    except OSError:  # only a report needs it
        return ""


def check_in_place(script: str, cluster: Cluster, facts: Mapping[str, AnyFacts]) -> None:
    """InputError unless the script is at its path on every worker as it is here. `facts` by node, as surveyed.

    Nodes that did not answer are refused with their reason by the plan.
    """
    here = hashlib.sha256(Path(script).read_bytes()).hexdigest()
    answers = {node.name: facts[node.name] for node in cluster.workers}
    found = {name: fact.get("script") for name, fact in answers.items() if "unreachable" not in fact}
    absent = fold_names(name for name, digest in found.items() if not digest)
    others = fold_names(name for name, digest in found.items() if digest and digest != here)
    if absent or others:
        what = [f"it is not on {absent}"] * bool(absent) + [f"it is another file on {others}"] * bool(others)
        advice = "with ship=false it is at the same path on every node: mount the file system there, or leave ship out"
        raise InputError("workload", script, f"{'; '.join(what)}: {advice}")
