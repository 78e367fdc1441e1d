# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ranks wrote, on the controller: `artifacts/<host>/...` in the run directory, and `artifacts.json`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import open_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.artifact_border import (
    FOLDER,
    Border,
    Limits,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.artifacts import (
    LINK,
    NAME,
    NO_DIGEST,
    NO_FOLDER,
    SPECIAL,
    TOO_LARGE,
    TOO_MANY,
    TOO_WIDE,
    UNREADABLE,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.file_messages import File, NodeArtifacts
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Artifact
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

from .request import COLLECT_FILES
from .run_directory import noted_limits, room_for, write_private

LISTING = "artifacts.json"  # in the run directory
PLACE = ".collecting"  # beside it: where files lie until all of a node have come
BEFORE = "before"  # in that place: what they replace, on its way out
DAMAGED, LEFT, ABSENT, NONE = "damaged", "left", "absent", "none"  # codes, as UNREADABLE and those of WHY_REFUSED
WHY_REFUSED = {
    TOO_MANY: "more files than collect_files={files} match",
    TOO_LARGE: "what matches has more bytes than {limit}",
    TOO_WIDE: "there are too many files to look through: give globs without **",
    NO_FOLDER: "the working directory cannot be read",
}
WHY_LEFT_OUT = {
    LINK: "links",
    SPECIAL: "no regular files",
    UNREADABLE: "unreadable",
    NAME: "names that are too long or not printable",
}
WHY_KEPT = {
    ABSENT: "not all of its files came now",
    DAMAGED: "a file that came now is damaged",
    UNREADABLE: "more files cannot be read now than last time",
    NONE: "nothing matches there now",
}


class Fault(NamedTuple):
    """What was wrong with what came of a host: `code` decides, `text` explains. No host: it is about all of them."""

    host: str
    code: str
    text: str


class Before(NamedTuple):
    """What artifacts.json says of a host."""

    files: list[Artifact]
    left_out: dict[str, int]


class Hash(Protocol):
    """One of hashlib."""

    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


class BroughtHome:
    """The files that the nodes of a job send of what its ranks wrote: checked, hashed and listed as they come."""

    def __init__(self, hosts: Collection[str] | None, limits: Limits, by_disk: bool = False) -> None:
        """`hosts` of the job's ranks, None if they are not known here; `limits` of each.

        `by_disk`: the free disk here is why it is not more bytes.
        """
        self.border, self.limits = Border(hosts, limits), limits
        self.limit = f"{limits.bytes:,}, for the free disk here" if by_disk else f"collect_limit={limits.bytes:,}"
        self.seen: dict[str, Hash] = {}  # by name
        self.reports: dict[str, NodeArtifacts] = {}
        self.torn: dict[str, list[str]] = {}  # lines on damaged files, by host
        self.kept: dict[str, Before] = {}  # of the hosts of which what came before stays
        self.why_kept: dict[str, str] = {}  # codes, by these hosts

    def take(self, frame: File | NodeArtifacts) -> bool:
        """Take a frame if it is about what ranks wrote; return whether it is. ValueError for what no head sends."""
        if not self.border.take(frame):
            return False
        if frame["kind"] == "file":
            self.seen.setdefault(frame["name"], hashlib.sha256()).update(frame["data"])
            return True
        host = frame["host"]
        for row in frame["files"]:
            name = f"{FOLDER}/{host}/{row['path']}"
            if self.seen[name].hexdigest() != row["sha256"]:
                why = (
                    "changed while it was read, or ends too soon"
                    if row["sha256"] == NO_DIGEST
                    else "has another checksum"
                )
                self.torn.setdefault(host, []).append(f"{host}: {row['path']} {why}")
        self.reports[host] = frame
        return True

    @contextlib.contextmanager
    def arriving(self, run_dir: Path) -> Iterator[None]:
        """While it is entered, files may be written into PLACE. What was not settled is removed then."""
        shutil.rmtree(run_dir / PLACE, ignore_errors=True)  # of a playbook that was killed
        try:
            yield
        finally:
            shutil.rmtree(run_dir / PLACE, ignore_errors=True)

    def settle(self, run_dir: Path, over: bool = False) -> None:
        """Put what came in the place of what came before, host by host, for half a checkpoint is useless. OSError.

        What came of a host before stays if why_before_stays() has a reason. Of a job that is `over`, and whose node
        may be gone for good, what came is better than nothing. If it is not whole, artifacts.json does not list it.
        """
        for host, before in before_by_host(run_dir).items():
            if code := self.why_before_stays(host, before):
                self.kept[host], self.why_kept[host] = before, code
        came = self.border.files.keys() - self.kept.keys()
        for host in came if over else came & self.reports.keys() - self.torn.keys():
            replace(run_dir / PLACE / FOLDER / host, run_dir / FOLDER / host, run_dir / PLACE / BEFORE / host)
        self.write(run_dir)

    def why_before_stays(self, host: str, before: Before) -> str:
        """Return a code for why what came of a host before stays, empty if what came now takes its place.

        Files that could not be read then either, as those of another user, are no reason: else nothing ever came again.
        """
        report = self.reports.get(host)
        if report is None:
            return ABSENT
        if report["refused"]:
            return str(report["refused"])
        if host in self.torn:
            return DAMAGED
        if report["left_out"].get(UNREADABLE, 0) > before.left_out.get(UNREADABLE, 0):
            return UNREADABLE
        return "" if report["files"] else NONE

    def write(self, run_dir: Path) -> None:
        """Write artifacts.json if any node said something. OSError."""
        if self.reports:
            write_private(run_dir / LISTING, json.dumps(self.listing(), indent=2) + "\n")

    def listing(self) -> dict[str, object]:
        """Return artifacts.json: every file with host, path, bytes and sha256; what did not come, and why."""
        reports = sorted(self.reports.items())
        hosts = {host: Before(report["files"], report["left_out"]) for host, report in reports if host not in self.torn}
        there = sorted({**hosts, **self.kept}.items())
        return {
            "files": [{"host": host, **row} for host, found in there for row in found.files],
            "left_out": {host: found.left_out for host, found in there if found.left_out},
            "refused": {host: report["refused"] for host, report in reports if report["refused"]},
            "unmatched": self.unmatched(),
        }

    def unmatched(self) -> list[str]:
        """Return the globs that matched nothing on any node."""
        lists = [report["unmatched"] for report in self.reports.values() if not report["refused"]]
        return [text for text in lists[0] if all(text in other for other in lists)] if lists else []

    @property
    def damaged(self) -> list[str]:
        """Return one line for each damaged file."""
        return [text for texts in self.torn.values() for text in texts]

    @property
    def silent(self) -> set[str]:
        """Return the hosts of which no list of files came, as far as the job's are known here."""
        return set(self.border.hosts or ()) - self.reports.keys()

    @property
    def line(self) -> str:
        """Return one line on what came home, empty if nothing was to."""
        whole = {
            host: self.reports[host]["files"] for host in self.reports.keys() - self.torn.keys() - self.kept.keys()
        }
        rows = [row for files in whole.values() for row in files]
        size = sum(row["bytes"] for row in rows)
        hosts = fold_names(host for host, files in sorted(whole.items()) if files)
        files = f"{len(rows):,} file" + "s" * (len(rows) != 1)
        return f"collected: {files}, {size:,} bytes, from {hosts}: {FOLDER}/ and {LISTING}" if rows else ""

    @property
    def said(self) -> list[str]:
        """Return the lines for the end of a job."""
        return [*filter(None, [self.line]), *(f"warning: {text}" for text in self.warnings)]

    @property
    def warnings(self) -> list[str]:
        """Return one line for each glob that matched nothing, for what did not come home of a node, and what stays."""
        return [
            *(f"collect: {pattern!r} matches nothing that the job wrote" for pattern in self.unmatched()),
            *(fault.text for fault in self.not_sent),
            *(
                f"collect: {FOLDER}/{host} has the files that came earlier: {WHY_KEPT.get(code, WHY_KEPT[ABSENT])}"
                for host, code in sorted(self.why_kept.items())
            ),
        ]

    @property
    def faults(self) -> list[Fault]:
        """Return what was wrong, one or two for each host."""
        torn = [(host, texts[0], len(texts) - 1) for host, texts in sorted(self.torn.items())]
        texts = {host: text + (f", and {more:,} more files" if more else "") for host, text, more in torn}
        return [*(Fault(host, DAMAGED, text) for host, text in texts.items()), *self.not_sent]

    @property
    def refused(self) -> list[str]:
        """Return one line for each node that sent none of its files."""
        return [fault.text for fault in self.not_sent if fault.code != LEFT]

    @property
    def not_sent(self) -> list[Fault]:
        """Return one or two for each node of which something did not come home."""
        faults: list[Fault] = []
        values = {"files": f"{self.limits.files:,}", "limit": self.limit}
        for host, report in sorted(self.reports.items()):
            code = report["refused"]
            if code:
                why = WHY_REFUSED.get(code, str(code)).format(**values)
                faults.append(Fault(host, code, f"collect: nothing came from {host}: {why}; the files stay there"))
            left = [f"{count:,} {WHY_LEFT_OUT.get(code, code)}" for code, count in report["left_out"].items()]
            faults += [Fault(host, LEFT, f"collect: left on {host}: {', '.join(left)}")] if left else []
        return faults


def replace(new: Path, there: Path, before: Path) -> None:
    """Put a directory in the place of what is there, if anything is, which goes to `before`. OSError."""
    if os.path.lexists(there):
        before.parent.mkdir(mode=0o700, exist_ok=True)
        there.rename(before)
    there.parent.mkdir(mode=0o700, exist_ok=True)
    new.rename(there)


def before_by_host(run_dir: Path) -> dict[str, Before]:
    """Return what artifacts.json says by host, nothing if it is not there."""
    try:
        with open(open_file(str(run_dir / LISTING))) as file:
            found = json.load(file)
        hosts: dict[str, Before] = {}
        for row in found["files"]:
            host, left = str(row["host"]), found["left_out"].get(row["host"], {})
            there = hosts.setdefault(host, Before([], {str(code): int(count) for code, count in left.items()}))
            there.files.append({"path": row["path"], "bytes": row["bytes"], "sha256": row["sha256"]})
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    return hosts


def within_room(
    run_dir: Path, placement: Collection[tuple[int, str]] | None, most: Limits | None = None
) -> BroughtHome:
    """Return what takes the files of a run that was not asked for just now: they may fill a quarter of the free disk.

    `placement`: ranks and their hosts, None if they are not known here; `most`: what a node may send in any case.
    OSError.
    """
    hosts = {host for _rank, host in placement} if placement is not None else None
    room = room_for(run_dir) // 2 // max(1, len(hosts or ()))
    files, size = most or Limits(COLLECT_FILES, room)
    return BroughtHome(hosts, Limits(files, min(size, room)), by_disk=room <= size)


def as_asked_for(run_dir: Path, placement: Collection[tuple[int, str]]) -> BroughtHome:
    """Return what takes the files of a run of this controller that is over, within the limits that it was started with.

    As train.yml does that follows its job. OSError.
    """
    limits = noted_limits(run_dir)
    if limits is None:
        return within_room(run_dir, placement)
    return BroughtHome({host for _rank, host in placement}, limits)
