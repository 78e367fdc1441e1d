# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The data set of a job: where ranks find it, which nodes do not have it yet, and what is sent to them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.data_manifest import (
    Manifest,
    Piece,
    name_of,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.data_store import root_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import NodeFacts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster

from .data_reading import Found, State, changed, find_files, piece_of, read_files, state_of, unreadable
from .progress import Say, silent
from .request import Request

VARIABLE = "TORCHFLEET_DATA"  # of the ranks: the path on their node
REASON = ("the data set, the same on all nodes", "user")


@dataclass(frozen=True)
class DataSet:
    """A data set on this machine. `name`: what it is called on nodes; empty: ranks read it where it is."""

    path: str
    found: Found = field(repr=False)
    manifest: Manifest = field(default_factory=lambda: Manifest(()), repr=False)
    text: bytes = field(default=b"", repr=False)
    name: str = ""

    def path_on(self, home: str) -> str:
        """Return where the ranks of a node find it. `home`: of torchfleet there."""
        if not self.name:
            return self.path
        root = root_of(home, self.name)
        return f"{root}/{self.manifest.rows[0].path}" if self.manifest.single else root

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return one line on what is left out, if anything is."""
        if not self.found.left_out:
            return ()
        which = "linked or empty directories, links to files elsewhere, what is neither file nor directory"
        count, first = len(self.found.left_out), min(self.found.left_out)
        return (f"left out of the data set {self.path}: {count} ({which}), the first is {first!r}",)

    def blocks(self, pieces: Iterable[int]) -> Iterator[tuple[int, bytes, bool]]:
        """Yield number, bytes and whether they are its first, of each block of some pieces. InputError.

        A file that is not what it was when it was read is noticed, before it is sent and after.
        """
        for number in pieces:
            piece = self.manifest.piece(number)
            row = self.manifest.rows[piece.file]
            try:
                yield from ((number, block, first) for block, first in self.piece(row.path, piece))
            except OSError as error:
                raise unreadable(self.path, error) from None

    def piece(self, name: str, piece: Piece) -> Iterator[tuple[bytes, bool]]:
        """Yield the blocks of one piece. OSError, InputError."""
        state, left = self.found.files[name], piece.size
        with open(os.open(os.path.join(self.found.root, name), os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            self.check(name, state, file.fileno())
            for block in piece_of(file.fileno(), piece.offset, piece.size):
                yield block, left == piece.size
                left -= len(block)
            self.check(name, state, file.fileno())

    def check(self, name: str, state: State, file: int) -> None:
        """InputError if an open file is not what it was when it was read."""
        if state_of(os.fstat(file)) != state:
            raise changed(self.path, name)


def data_set_for(request: Request, cluster: Cluster, say: Say = silent) -> DataSet | None:
    """Return the data set of a job, read unless this machine is the whole cluster; None without one. InputError.

    `say` shows how far the reading is.
    """
    if not request.data:
        return None
    path = os.path.abspath(os.path.expanduser(request.data))
    if cluster.local:
        refuse_useless(path)
        return DataSet(path, Found(path))
    found = find_files(path)
    manifest = read_files(found, path, say)
    text = manifest.text
    return DataSet(path, found, manifest, text, name_of(text))


def refuse_useless(path: str) -> None:
    """InputError for a data set that is not there, cannot be read, or has no file. Its files are not looked at."""
    errors: list[OSError] = []
    if os.path.isdir(path):
        there = any(names for _folder, _folders, names in os.walk(path, onerror=errors.append))
    else:
        there = os.path.exists(path) and os.path.getsize(path) > 0
    try:
        os.stat(path)
        if errors:
            raise errors[0]
        if not os.access(path, os.R_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise unreadable(path, error) from None
    if not there:
        raise InputError("data", path, "there is nothing in it: give a folder or a file with data")


def lacking(data: DataSet | None, facts: Mapping[str, NodeFacts]) -> tuple[str, ...]:
    """Return the nodes on which the data set is not, or not whole. InputError if one has no room for it."""
    if not data or not data.name:
        return ()
    names = []
    for name, fact in facts.items():
        seen = fact["data"]
        if seen and seen["whole"]:
            continue
        needed = seen["missing"] if seen and seen["missing"] >= 0 else data.manifest.bytes
        free = seen["free"] if seen else fact["free_bytes"]
        if needed > free:
            room = f"{name} has {free:,} bytes free in {fact['home']}, and {needed:,} are needed"
            raise InputError("data", data.path, f"{room}: make room, or give the data another way (docs/data.md)")
        names.append(name)
    return tuple(names)


def line_of(data: DataSet | None, homes: Mapping[str, str], missing: Sequence[str]) -> str:
    """Return one line on a data set; empty without one. `homes`: of torchfleet by node."""
    if not data:
        return ""
    if not data.name:
        return f"data {data.path}: used where it is ({VARIABLE})"
    files = f"{len(data.manifest.rows):,} file" + "s" * (len(data.manifest.rows) != 1)
    where: dict[str, list[str]] = {}
    for name, home in homes.items():
        where.setdefault(data.path_on(home), []).append(name)
    paths = "; ".join(f"{path} on {fold_names(names)}" for path, names in where.items())
    sent = f"to be copied to {fold_names(missing)}" if missing else "is there"
    return f"data {data.path}: {files}, {data.manifest.bytes:,} bytes, {sent}: {paths} ({VARIABLE})"
