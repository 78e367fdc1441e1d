# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How long a job has shown no sign of life, and whether it is to be ended for that (options hang_look, hang_end).

The head looks, whoever follows the job, so it is the same for a detached one. A job is ended only if two looks in a
row, hang_look seconds apart, found one and the same hang: the same ranks are to blame, each in the same process and
place, no rank came to another collective, and nothing came from the job. Who may be at work nevertheless (is_at_rest)
does not end it. Where nothing is to be ended nobody looks here.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Collection, List, Mapping, NamedTuple, Tuple

from ..looks.doing import is_busy
from ..looks.hang import Verdict, VerdictCode, judge, shows_life
from ..types.evidence import Evidence
from ..types.orders import JobOrder

# The verdicts that end a job: that all wait may be the network's fault, which comes back.
ENDS = (VerdictCode.BLAMED, VerdictCode.MISMATCH)
# After the time: the controller, if there is one, looks before, and ranks answer one look at a time.
LATER_SECONDS = 5.0
IDLE = 0.01  # of a CPU, all processes of a rank together: what sleeps, and polls now and then
MOST_SECONDS = 3600.0  # between two looks that find no hang: the time doubles
LEAVE_SECONDS = 5.0  # for a look that goes on when the job is over


Spot = Tuple[int, int, List[Tuple[str, int]]]  # rank, pid, and the frames of the main thread: file and line


class Shape(NamedTuple):
    """What is the same at two looks at one hang."""

    code: str
    ranks: list[int]
    sequences: list[tuple[int, str, int]]  # rank, group, and the number of the last collective
    places: list[Spot]  # of those ranks, and of what they have started


class HangEnd:
    """Watches one job. Its methods are for one thread; `look` is called in another."""

    def __init__(self, order: JobOrder, look: Callable[[], Collection[Evidence]]) -> None:
        """`look` returns what is known of all ranks."""
        self.hosts = {place["rank"]: place["host"] for place in order["placement"]}
        self.seconds = order.get("hang_look", 0.0)  # a version before ours did not know them; 0: never
        self.ends = bool(self.seconds) and order.get("hang_end", False)
        self.look = look
        self.heard: float | None = None  # by the monotonic clock: the last sign of life; None: it has not begun
        self.begun_at: float | None = None  # what that was when the last look began
        self.due = self.pause = 0.0
        self.thread: threading.Thread | None = None
        self.seen: Collection[Evidence] | None = None
        self.first: Shape | None = None  # of a hang that one look has found
        self.verdict: Verdict | None = None  # on a hang that two looks have found

    def hear(self) -> None:
        """Note a sign of life."""
        self.heard, self.pause, self.first = time.monotonic(), self.seconds, None
        self.due = self.heard + self.seconds + LATER_SECONDS

    @property
    def silent(self) -> float:
        """Return the seconds since the last sign of life, 0 if the job has not begun."""
        return 0.0 if self.heard is None else time.monotonic() - self.heard

    @property
    def is_quiet(self) -> bool:
        """Whether there was no sign of life for hang_look."""
        return bool(self.seconds) and self.silent >= self.seconds

    def tick(self) -> Verdict | None:
        """Begin a look if it is time for one; return the verdict if the job is to be ended. Returns at once."""
        if self.thread and not self.thread.is_alive():
            self.thread = None
            self.weigh()
        if self.ends and not self.verdict and not self.thread and self.heard and time.monotonic() >= self.due:
            self.begun_at, self.seen = self.heard, None
            self.thread = threading.Thread(target=self.see, daemon=True)
            try:
                self.thread.start()
            except RuntimeError:  # the job has all threads that its user may have
                self.thread, self.due = None, time.monotonic() + self.pause
        return self.verdict

    def see(self) -> None:
        """In a thread: look. A look that fails found nothing."""
        try:
            self.seen = self.look()
        except (OSError, RuntimeError):
            self.seen = None

    def weigh(self) -> None:
        """Judge what a look has seen; nothing of one in whose midst the job went on."""
        if self.heard != self.begun_at:
            return
        found = shape_of(self.seen or (), self.hosts)
        verdict, shape = found if found else (None, None)
        if verdict and shape == self.first:
            self.verdict = verdict
        self.pause = self.seconds if shape else min(2 * self.pause, max(MOST_SECONDS, self.seconds))
        self.first, self.due = shape, time.monotonic() + self.pause

    def close(self) -> None:
        """Leave off: the job is over. A look that goes on is waited for, not for ever."""
        self.ends = False
        if self.thread:
            self.thread.join(LEAVE_SECONDS)


def shape_of(evidence: Collection[Evidence], hosts: Mapping[int, str]) -> tuple[Verdict, Shape] | None:
    """Return the verdict and what must be the same at the next look; None if this is no hang that ends a job.

    That is only one of which all is known.
    """
    rows = {row["rank"]: row for row in evidence if hosts.get(row["rank"]) == row["host"]}
    if rows.keys() != hosts.keys() or shows_life(list(rows.values()), len(hosts)):
        return None
    verdict = judge(list(rows.values()), hosts)
    if verdict.code not in ENDS or not verdict.ranks or not all(is_at_rest(rows[rank]) for rank in verdict.ranks):
        return None
    sequences = [(rank, group["name"], group["sequence"]) for rank in sorted(rows) for group in rows[rank]["groups"]]
    places = [place for rank in verdict.ranks for place in places_of(rows[rank])]
    return verdict, Shape(verdict.code, verdict.ranks, sequences, places)


def places_of(row: Evidence) -> list[Spot]:
    """Return where a rank is, and each process that it has started."""
    every = [(row["pid"], next(iter(row["threads"]), [])), *((each["pid"], each["frames"]) for each in row["workers"])]
    return [(row["rank"], pid, [(frame["file"], frame["line"]) for frame in frames]) for pid, frames in every]


def is_at_rest(row: Evidence) -> bool:
    """Whether a rank does nothing, or computes alone: then its place tells whether it goes on.

    A rank that waits for a disk (state D of proc(5)) may write a checkpoint, and cannot be ended anyhow. One that a
    debugger holds (state t) has somebody who looks after it. One that has started something that computes waits for
    that, and its own place does not change.
    """
    states = {row["state"], *(worker["state"] for worker in row["workers"])}
    idle = row["cpu"] <= IDLE * row["seconds"]
    return not states & {"D", "t"} and (idle or (is_busy(row) and not row["workers"]))
