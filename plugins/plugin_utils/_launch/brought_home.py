# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ranks wrote, on the controller: `artifacts/<host>/...` in the run directory, and `artifacts.json`."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.artifacts import (
    FOLDER,
    LINK,
    NAME,
    NO_FOLDER,
    SPECIAL,
    TOO_LARGE,
    TOO_MANY,
    TOO_WIDE,
    TORN,
    UNREADABLE,
    Border,
    Limits,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.channel import Frame
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.job_directory import open_file
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

from .request import COLLECT_FILES
from .run_directory import room_for, write_private

LISTING = "artifacts.json"  # in the run directory
PLACE = ".collecting"  # beside it: where files of a job that runs lie until they are whole
WHY_REFUSED = {
    TOO_MANY: "more files than collect_files={files} match",
    TOO_LARGE: "what matches has more bytes than collect_limit={bytes}",
    TOO_WIDE: "there are too many files to look through: give globs without **",
    NO_FOLDER: "the working directory cannot be read",
}
WHY_LEFT_OUT = {
    LINK: "links",
    SPECIAL: "no regular files",
    UNREADABLE: "unreadable",
    NAME: "names that are too long or not printable",
}


class BroughtHome:
    """The files that the nodes of a job send of what its ranks wrote: checked, hashed and listed as they come."""

    def __init__(self, hosts: Collection[str] | None, limits: Limits, place: Path | None = None) -> None:
        """`hosts` of the job's ranks, None if they are not known here; `limits` of each.

        `place`: where files are written until `settle`, None for the run directory.
        """
        self.border, self.limits, self.place = Border(hosts, limits), limits, place
        self.seen: dict[str, Any] = {}  # a hash by name
        self.reports: dict[str, Frame] = {}
        self.damaged: list[str] = []
        self.torn: set[str] = set()  # hosts with damaged files
        self.kept: dict[str, list[Any]] = {}  # rows of what came before, by the hosts of which it stays

    def take(self, frame: Frame) -> bool:
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
                why = "changed while it was read, or ends too soon" if row["sha256"] == TORN else "has another checksum"
                self.damaged.append(f"{host}: {row['path']} {why}")
                self.torn.add(host)
        self.reports[host] = frame
        return True

    def settle(self, run_dir: Path) -> None:
        """Put what came in the place of what came before, host by host, for half of a checkpoint is none. OSError.

        What came of a host before stays if it sent nothing now, or something that is damaged.
        """
        for host, rows in files_by_host(run_dir).items():
            report = self.reports.get(host)
            if report is None or report["refused"] or host in self.torn:
                self.kept[host] = rows
        for host in self.reports.keys() - self.kept.keys() - self.torn:
            there = run_dir / FOLDER / host
            shutil.rmtree(there, ignore_errors=True)
            if self.reports[host]["files"]:
                there.parent.mkdir(mode=0o700, exist_ok=True)
                ((self.place or run_dir) / FOLDER / host).rename(there)
        self.write(run_dir)

    def write(self, run_dir: Path) -> None:
        """Write artifacts.json if any node said something. OSError."""
        if self.reports:
            write_private(run_dir / LISTING, json.dumps(self.listing(), indent=2) + "\n")

    def listing(self) -> dict[str, Any]:
        """Return artifacts.json: every file with host, path, bytes and sha256; what did not come, and why."""
        reports = sorted(self.reports.items())
        files = {**{host: report["files"] for host, report in reports if host not in self.torn}, **self.kept}
        return {
            "files": [{"host": host, **row} for host, rows in sorted(files.items()) for row in rows],
            "left_out": {host: report["left_out"] for host, report in reports if report["left_out"]},
            "refused": {host: report["refused"] for host, report in reports if report["refused"]},
            "unmatched": self.unmatched(),
        }

    def unmatched(self) -> list[str]:
        """Return the globs that matched nothing on any node."""
        lists = [report["unmatched"] for report in self.reports.values() if not report["refused"]]
        return [text for text in lists[0] if all(text in other for other in lists)] if lists else []

    @property
    def line(self) -> str:
        """Return one line on what came home, empty if nothing was to."""
        rows = [row for report in self.reports.values() for row in report["files"]]
        size = sum(row["bytes"] for row in rows)
        hosts = fold_names(host for host, report in self.reports.items() if report["files"])
        files = f"{len(rows):,} file" + "s" * (len(rows) != 1)
        return f"collected: {files}, {size:,} bytes, from {hosts}: {FOLDER}/ and {LISTING}" if rows else ""

    @property
    def said(self) -> list[str]:
        """Return the lines for the end of a job."""
        return [*filter(None, [self.line]), *(f"warning: {text}" for text in self.warnings)]

    @property
    def warnings(self) -> list[str]:
        """Return one line for each glob that matched nothing, and for what did not come home of a node."""
        return [
            f"collect: {pattern!r} matches nothing that the job wrote" for pattern in self.unmatched()
        ] + self.not_sent

    @property
    def not_sent(self) -> list[str]:
        """Return a line or two for each node of which something did not come home."""
        lines: list[str] = []
        values = {"files": f"{self.limits.files:,}", "bytes": f"{self.limits.bytes:,}"}
        for host, report in sorted(self.reports.items()):
            code = report["refused"]
            if code:
                why = WHY_REFUSED.get(code, str(code)).format(**values)
                lines.append(f"collect: nothing came from {host}: {why}; the files stay there")
            left = [f"{count:,} {WHY_LEFT_OUT.get(code, code)}" for code, count in report["left_out"].items()]
            lines += [f"collect: left on {host}: {', '.join(left)}"] if left else []
        return lines


def files_by_host(run_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of artifacts.json by host, none if it is not there."""
    try:
        with open(open_file(str(run_dir / LISTING))) as file:
            found = json.load(file)["files"]
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in found:
            rows.setdefault(str(row["host"]), []).append({name: row[name] for name in ("path", "bytes", "sha256")})
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return rows


def within_room(
    run_dir: Path,
    placement: Collection[tuple[int, str]] | None,
    place: Path | None = None,
    most: Limits | None = None,
) -> BroughtHome:
    """Return what takes the files of a run that was not asked for just now: they may fill a quarter of the free disk.

    `placement`: ranks and their hosts, None if they are not known here; `place`: as of BroughtHome; `most`: what a node
    may send in any case. OSError.
    """
    hosts = {host for _rank, host in placement} if placement is not None else None
    files, size = most or Limits(COLLECT_FILES, room_for(run_dir))
    return BroughtHome(hosts, Limits(files, min(size, room_for(run_dir) // 2 // max(1, len(hosts or ())))), place)
