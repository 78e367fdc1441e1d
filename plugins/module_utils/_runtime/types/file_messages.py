# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The messages about files: a folder or a data set on its way to nodes, and what a job wrote on its way home.

protocol.py says in which direction each of them goes.
"""

from __future__ import annotations

from typing import List, Literal, Tuple, TypedDict

from .orders import Route
from .records import Artifacts, Text

Listing = List[Tuple[str, str, bool]]  # of shipped files: path, sha256, whether executable


class Request(TypedDict, total=False):
    beats: bool  # the sender waits as long as beats come


class FolderOffer(Request):
    kind: Literal["folder"]
    home: str
    files: Listing
    here: str  # the name of this node; empty if the folder is not for it
    nodes: list[str]


class File(TypedDict):
    """One block of a file; its bytes follow the line of the frame."""

    kind: Literal["file"]
    name: str
    first: bool
    data: bytes


class Wanted(TypedDict):
    kind: Literal["wanted"]
    wanted: list[str]  # digests


class DataOffer(Request):
    """A data set. Its list of files follows as `file` frames, then pieces by their number (data_manifest.py)."""

    kind: Literal["data_set"]
    home: str
    name: str
    list_bytes: int
    token: str  # of this start
    keep: int  # data sets that stay on a node; 0: all
    here: str  # the name of this node; empty if it needs none
    nodes: list[Route]  # those that this one sends it on to


class DataWanted(TypedDict):
    kind: Literal["data_wanted"]
    wanted: list[tuple[int, int]]  # first and last number of pieces
    unreached: list[str]  # hosts
    reason: Text  # why a node cannot take it; empty if all can


class FilesSent(Request):
    """All files of the folder, or pieces of the data set, are sent."""

    kind: Literal["files_sent"]


class FilesChecked(TypedDict):
    kind: Literal["files_checked"]
    reason: Text  # why a node cannot use what was sent; empty if all can


class DataLaid(TypedDict):
    kind: Literal["data_laid"]
    reason: Text


class OfJob(Request):
    home: str
    job_id: str


class FetchLate(OfJob, total=False):
    artifacts: tuple[int, int] | None  # files and bytes that a node may send of what ranks wrote; None: nothing


class Fetch(FetchLate):
    kind: Literal["fetch"]
    limit: int  # bytes of the other files


class Received(TypedDict):
    """All files that were fetched are there."""

    kind: Literal["received"]


class NodeArtifacts(Artifacts):
    """Comes behind the files that it lists."""

    kind: Literal["artifacts"]
    host: str


class Fetched(TypedDict):
    kind: Literal["fetched"]
    missing: list[Text]
