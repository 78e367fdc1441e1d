# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The log of a pod that no controller follows, because somebody else submitted it: lines for people."""

from __future__ import annotations

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import reasons
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import NodeReport

from .framed_log import FromNode

FORM = "plain"  # the word on the command line that asks for it


def lines_for_people(frame: FromNode, host: str) -> list[str]:
    """Return the lines of a message of framed_log.py; none for what only a controller needs. `host`: this pod."""
    if frame["kind"] == "line":
        return [f"rank {frame['rank']}: {frame['text']}"]
    if frame["kind"] == "report":
        return [f"rank {frame['rank']}: " + ", ".join(f"{name} {value}" for name, value in frame["values"].items())]
    if frame["kind"] == "here":
        return [f"torchfleet: {host}: {line}" for line in frame["said"]]
    if frame["kind"] == "ending":
        return [f"torchfleet: {host} ends the job: {frame['detail'] or frame['reason']}"]
    return outcome(frame["report"], host) if frame["kind"] == "over" else []


def outcome(report: NodeReport, host: str) -> list[str]:
    """Return what became of the ranks of a pod."""
    found = []
    for rank, record in sorted(report["records"].items(), key=lambda row: int(row[0])):
        how = reasons.exit_text(record["rc"]) if "rc" in record else "no exit status"
        last = report["lines"].get(rank, ("", ""))[1] if record.get("rc") else ""
        found.append(f"torchfleet: {host}: rank {rank}: {how}" + (f": {last}" if last else ""))
    return found or [f"torchfleet: {host}: no rank was started"]
