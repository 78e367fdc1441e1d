# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How the clocks of a job's nodes went against the head's: measured before the job began, and when it is fetched.

`clocks.json` of a run has `[moment, seconds ahead of the head's, uncertainty]` of each measurement, by host.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Dict, Iterable, List

from ..basics.job_directory import JobDir

if TYPE_CHECKING:
    from .remote_node import RemoteNode

FILE = "clocks.json"  # in the job directory of the head
Clocks = Dict[str, List[List[float]]]


def note_clocks(job: JobDir, peers: Iterable[RemoteNode]) -> None:
    """Write what was measured before the job begins. OSError."""
    job.write(FILE, {peer.name: [list(peer.clock)] for peer in peers})


def clocks_until_now(job: JobDir, peers: Iterable[RemoteNode]) -> bytes:
    """Return what was written, and what has been measured now, as JSON; nothing if there are no other nodes."""
    found = job.read(FILE)
    clocks: Clocks = {}
    for peer in peers:
        before = found.get(peer.name) if isinstance(found, dict) else None
        rows = [row for row in before if is_row(row)] if isinstance(before, list) else []
        clocks[peer.name] = [*rows[:1], list(peer.clock)]
    return json.dumps(clocks).encode() + b"\n" if clocks else b""


def is_row(row: object) -> bool:
    """Whether this is a measurement: a program of the job could write into that file."""
    return isinstance(row, list) and len(row) == 3 and all(type(value) is float for value in row)
