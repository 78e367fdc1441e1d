# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What another node sends of what its ranks wrote, checked where it comes in: names, order, number and bytes."""

from __future__ import annotations

from typing import Collection, Iterable, NamedTuple, Union

from ..stores.job_files import parts_of
from ..types.file_messages import File, NodeArtifacts
from ..types.records import Artifact
from ..wire.channel import Channel
from ..wire.link import ConnectionLost
from ..wire.protocol import FromNode

FOLDER = "artifacts"  # in the run directory
HOSTS_MOST = 10_000  # of a job that was planned elsewhere
LEAST_BLOCK, SPARE_BLOCKS = 1 << 12, 100  # bytes; one that sends a byte at a time would take days for what it may send
ArtifactChannel = Channel[Union[File, NodeArtifacts], object]


class Limits(NamedTuple):
    """What one node may send."""

    files: int
    bytes: int


def forward_artifact(channel: ArtifactChannel, frame: FromNode, border: Border) -> bool:
    """Forward a frame of what the ranks of another node wrote; return whether it is one. ConnectionLost."""
    if frame["kind"] != "file" and frame["kind"] != "artifacts":
        return False
    try:
        taken = border.take(frame)
    except ValueError as error:
        raise ConnectionLost(f"it sent no artifact of the job: {error}") from None
    if taken:
        channel.send(frame)
    return taken


class Border:
    """The files that one node sends of a job: each name, their order, number and bytes, checked where they come in."""

    def __init__(self, hosts: Collection[str] | None, limits: Limits) -> None:
        """`hosts` that may send some, `limits`: of each of them; None for any, which then share the limits."""
        self.hosts, self.limits = hosts, limits
        self.files: dict[str, set[str]] = {}
        self.folders: dict[str, set[str]] = {}
        self.bytes: dict[str, int] = {}
        self.blocks: dict[str, int] = {}
        self.shared = hosts is None
        self.told: set[str] = set()

    def take(self, frame: File | NodeArtifacts) -> bool:
        """Take a frame if it is about what ranks wrote; return whether it is. ValueError as in check() and end()."""
        if frame["kind"] == "artifacts":
            self.end(frame["host"], frame["files"])
            return True
        if not frame["name"].startswith(f"{FOLDER}/"):
            return False
        self.check(frame["name"], frame["first"], len(frame["data"]))
        return True

    def check(self, name: str, first: bool, size: int) -> tuple[str, str]:
        """Return host and path of one block of a file. ValueError for what no honest node sends."""
        folder, *parts = parts_of(name)
        if folder != FOLDER or len(parts) < 2 or (self.hosts is not None and parts[0] not in self.hosts):
            raise ValueError(f"{name[:100]!r} is no file of its ranks")
        host, path = parts[0], "/".join(parts[1:])
        if host in self.told:
            raise ValueError("a file came behind the list of its files")
        files, folders = self.files.setdefault(host, set()), self.folders.setdefault(host, set())
        above = {"/".join(parts[1:end]) for end in range(2, len(parts))}
        if first == (path in files) or not (first or size) or path in folders or above & files:
            raise ValueError(f"the file {path[:100]!r} came more than once")
        files.add(path)
        folders |= above
        self.bytes[host] = self.bytes.get(host, 0) + size
        self.blocks[host] = self.blocks.get(host, 0) + 1
        count, size, number = len(files), self.bytes[host], self.blocks[host]
        if self.shared:
            count, size = sum(map(len, self.files.values())), sum(self.bytes.values())
            number = sum(self.blocks.values())
        if count > self.limits.files or size > self.limits.bytes:
            raise ValueError("more files or bytes came than it may send (collect_files, collect_limit)")
        if number > 2 * self.limits.files + self.limits.bytes // LEAST_BLOCK + SPARE_BLOCKS:
            raise ValueError("its files came in too many small blocks")
        return host, path

    def end(self, host: str, files: Iterable[Artifact]) -> None:
        """Take the list of a host's files, which comes last. ValueError if it differs from the files that came."""
        rows = [row["path"] for row in files]
        allowed = self.hosts is None or host in self.hosts
        if self.shared and len(self.told) >= HOSTS_MOST:
            raise ValueError("it sent lists of files for too many hosts")
        if not allowed or host in self.told or len(set(rows)) < len(rows) or set(rows) != self.files.get(host, set()):
            raise ValueError("its list of files differs from the files that came")
        self.told.add(host)
