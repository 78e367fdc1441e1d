# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The output of a node's ranks, read in a thread of its own: a disk that hangs must not block the supervisor.

The supervisor's main thread touches no file while a job runs. So its beats say that it can end the job, and a slow
checkpoint, a hanging network file system or a flood of output does not look like a dead node.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Iterable, Iterator

from ..basics.job_directory import JobDir
from ..ranks.metrics import Metrics
from ..ranks.output_lines import Follower, Line, Value
from ..types.orders import Order
from ..wire.protocol import Line as LineMessage
from ..wire.protocol import Report

LOOK_SECONDS = 0.1  # between two looks at the files
LAST_SECONDS = 2.0  # for reading what ranks wrote before they ended
FRAMES_MOST = 10_000  # that wait to be shown; the oldest are dropped


class OutputFollower:
    """Follows the files of a node's ranks: lines and reports to show, every report into metrics.jsonl."""

    def __init__(self, job: JobDir, order: Order) -> None:
        """Open metrics.jsonl. OSError."""
        self.job, self.order = job, order
        self.metrics = Metrics(job)
        self.latest: dict[int, dict[str, Value]] = {}
        self.frames: deque[LineMessage | Report] = deque(maxlen=FRAMES_MOST)
        self.followers = list(self.make_followers())
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.follow, daemon=True)

    def make_followers(self) -> Iterable[Follower]:
        for rank in self.order["ranks"]:
            show = rank in self.order["show_ranks"]
            for stream in ("stdout", "stderr") if show else ("stdout",):
                path = self.job.rank(rank, stream)
                yield Follower(path, rank, stream, show, self.show_line, self.take_report)

    def show_line(self, line: Line) -> None:
        self.frames.append(
            {"kind": "line", "rank": line.rank, "stream": line.stream, "text": line.text, "skipped": line.skipped}
        )

    def take_report(self, rank: int, values: dict[str, Value]) -> None:
        self.metrics.add(rank, values)
        if rank in self.order["show_ranks"]:
            self.latest[rank] = values

    def start(self) -> None:
        """Follow the files until finish()."""
        self.thread.start()

    def finish(self) -> None:
        """Read what ranks wrote last, when nobody can write any more."""
        self.ended.set()
        if self.thread.ident is not None:
            self.thread.join()

    def follow(self) -> None:
        while not self.ended.wait(LOOK_SECONDS):
            self.look()
        self.look(last=True)

    def look(self, last: bool = False) -> None:
        """Read what ranks wrote; of many reports in one look the last is shown, all are kept.

        The last look takes no longer than LAST_SECONDS: of a flood of reports only the end is read then.
        """
        until = time.monotonic() + LAST_SECONDS
        for follower in self.followers:
            passed = follower.look(last, until)
            if passed and follower.stream == "stdout":
                self.metrics.add(follower.rank, {"bytes_not_read": passed})
        self.metrics.flush()
        for rank, values in self.latest.items():
            self.frames.append({"kind": "report", "rank": rank, "values": values})
        self.latest.clear()

    def shown(self) -> Iterator[LineMessage | Report]:
        """Yield the frames that wait to be shown. For one thread only."""
        while self.frames:
            yield self.frames.popleft()
