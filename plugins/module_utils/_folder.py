# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A folder shipped to this node: only what differs comes over the wire; what the program wrote there stays."""

from __future__ import annotations

import hashlib
import os
from typing import Any, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._jobdir import JobDir

FOLDERS = "workloads"  # below torchfleet_home


class FolderCopy:
    """One shipped folder. `files`: path, sha256 and whether executable of each."""

    def __init__(self, home: str, name: str, files: Sequence[Sequence[Any]]) -> None:
        self.root = os.path.join(home, FOLDERS, name)
        self.files = {path: (digest, executable) for path, digest, executable in files}
        self.receipts = JobDir(os.path.join(home, FOLDERS))
        self.receipt = name + ".json"
        self.wanted = [path for path, (digest, _executable) in self.files.items() if self.digest(path) != digest]
        self.reason = ""

    def digest(self, path: str) -> str:
        """Return the sha256 of a file as it lies here, or an empty text."""
        try:
            with open(os.path.join(self.root, path), "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()
        except OSError:
            return ""

    def put(self, frame: Mapping[str, Any]) -> None:
        """Write one block of a file beside its place. A reason not to is kept for the end."""
        path = os.path.join(self.root, frame["name"])
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if frame["first"] else os.O_APPEND)
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(os.open(path + ".part", flags, 0o600), "wb") as file:
                file.write(frame["data"])
        except OSError as error:
            self.reason = self.reason or str(error)

    def lay(self) -> str:
        """Put the files in place, take away those shipped before that are no more; return what went wrong, or nothing.

        A file is replaced whole: a job that has the old one open keeps it.
        """
        try:
            os.makedirs(self.root, mode=0o700, exist_ok=True)
            for path in [] if self.reason else self.wanted:
                os.replace(os.path.join(self.root, path + ".part"), os.path.join(self.root, path))
            for path, (_digest, executable) in self.files.items():
                os.chmod(os.path.join(self.root, path), 0o700 if executable else 0o600)
            for path in self.receipts.read(self.receipt) or []:
                if path not in self.files:
                    os.unlink(os.path.join(self.root, path))
            self.receipts.write(self.receipt, sorted(self.files))
        except OSError as error:
            self.reason = self.reason or str(error)
        torn = [path for path in self.wanted if self.digest(path) != self.files[path][0]]
        if torn and not self.reason:
            self.reason = f"{torn[0]} changed while it was shipped: try again"
        return self.reason
