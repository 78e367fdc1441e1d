# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What nodes that a scheduler brings send of their ranks' files, written into the run directory as it comes."""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import BadFrame
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import Report
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.framed_log import Output
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session

MOST_BYTES = 1 << 30  # of all files of a run: a node that sends without end is cut off
CUT = "... the first {:,} bytes are not here: {} limits what comes home\n"


class OutputFiles:
    """The files of ranks in a run directory. Their names have been checked."""

    def __init__(self, run_dir: Path, option: str) -> None:
        """`option`: what the user gives for more of each file."""
        self.run_dir, self.option, self.room = run_dir, option, MOST_BYTES

    def take(self, frame: Output) -> None:
        """Write one block of a file. BadFrame, OSError."""
        try:
            data = base64.b64decode(frame["content"], validate=True)
        except (binascii.Error, ValueError):
            raise BadFrame("the content of a file is not base64") from None
        self.take_room(len(data) + 1)
        if frame["first"] and frame["cut"]:
            data = CUT.format(frame["cut"], self.option).encode() + data
        Session.store({"kind": "file", "name": frame["name"], "first": frame["first"], "data": data}, self.run_dir)

    def take_room(self, size: int) -> None:
        """Note that so many bytes are written. BadFrame if that is more than nodes may send."""
        self.room -= size
        if self.room < 0:
            raise BadFrame(f"all nodes send more than {MOST_BYTES >> 30} GiB")

    def note_metrics(self, frame: Report) -> None:
        """Write a report of a rank as a row of metrics.jsonl. BadFrame, OSError."""
        row = json.dumps({**frame["values"], "time": round(time.time(), 3), "rank": frame["rank"]}) + "\n"
        self.take_room(len(row))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with open(os.open(self.run_dir / "metrics.jsonl", flags, 0o600), "w") as file:
            file.write(row)
