# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""When the ranks of a run came to their collectives, by the head's clock, from what they and the head wrote.

All of it may be nonsense: it is typed and bounded here. Lines that are not ours are left out, and so are process
groups in which a rank is then missing.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import json_in, open_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.hooks.arrivals_note import FILE as ARRIVALS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.hooks.arrivals_note import (
    FILE_BYTES,
    KINDS_MOST,
    RING_MOST,
    Run,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.clocks import FILE as CLOCKS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import (
    BadFrame,
    Form,
    listed,
    short,
    whole,
)

MICROSECONDS_MOST = 1 << 53
CLOCK_MOST = 1e11  # seconds since the epoch
RANKS_MOST = 4096
ENTRIES_MOST = 600_000  # of all ranks: two seconds of work
ENTRIES_OF_RANK = 20_000  # at most, and 2,000 at least: the last ones
RUN_MOST, RUNS_MOST = 20_000, 2000  # collectives in a run, runs in a line
CLOCK_BYTES = 1 << 20
LINES_MOST = 500  # of a rank, the last ones: it writes some 45 in a week
VALUES_MOST = 8 * RING_MOST  # of a line: an entry of the recorder is two
READ_SECONDS = 10.0  # for all ranks: without those that are left nobody is named


class Kind(NamedTuple):
    """What a collective is."""

    operation: str
    sizes: str


class Came(NamedTuple):
    """When a rank came to a collective: seconds since the epoch by the head's clock."""

    at: float
    kind: Kind


class Arrivals(NamedTuple):
    """What is known of one rank. `groups`: by name of its process groups their sizes."""

    groups: Mapping[str, int]
    came: Mapping[tuple[str, int], Came]  # by group and number of the collective


class Clock(NamedTuple):
    """How far a node's clock was ahead of the head's at two moments, in seconds, and the uncertainty of that."""

    began: float
    offset: float
    ended: float
    offset_at_end: float
    uncertainty: float

    def offset_at(self, moment: float) -> float:
        """Return how far it was ahead at a moment, as if it had drifted evenly."""
        share = (moment - self.began) / (self.ended - self.began) if self.ended > self.began else 0.0
        return self.offset + min(1.0, max(0.0, share)) * (self.offset_at_end - self.offset)


class Runs(TypedDict):
    """What is read of a line of arrivals.jsonl."""

    runs: list[Run]


HEAD = Clock(0.0, 0.0, 0.0, 0.0, 0.0)
GAP = whole(-MICROSECONDS_MOST, MICROSECONDS_MOST)
RUN: Form[Run] = Form(
    {
        "group": short,
        "size": whole(2, 1 << 24),
        "first": whole(0, 1 << 53),
        "at": whole(0, MICROSECONDS_MOST),
        "gaps": listed(GAP, RUN_MOST),
        "kinds": listed(whole(0, KINDS_MOST), RUN_MOST),
    }
)
LINE: Form[Runs] = Form({"runs": listed(RUN, RUNS_MOST)})
UNKNOWN = Kind("", "")


def read_clocks(run_dir: Path, hosts: set[str], head: str) -> dict[str, Clock]:
    """Return the clocks of the nodes that are known: the head's, and those that were measured twice."""
    found: dict[str, Clock] = {head: HEAD}
    rows = json_in(str(run_dir / CLOCKS), CLOCK_BYTES)
    known = rows if isinstance(rows, dict) else {}
    for host in hosts - {head}:
        clock = clock_of(known.get(host))
        if clock:
            found[host] = clock
    return found


def clock_of(rows: object) -> Clock | None:
    """Return a clock from its two measurements. Its uncertainty is theirs, plus its drift in between."""
    if not isinstance(rows, list) or len(rows) != 2:
        return None
    numbers = [value for row in rows if isinstance(row, list) for value in row]
    if len(numbers) != 6 or not all(type(value) is float and math.isfinite(value) for value in numbers):
        return None
    if max(map(abs, numbers)) > CLOCK_MOST:
        return None
    began, offset, first, ended, offset_at_end, second = numbers
    astray = abs(offset_at_end - offset) / 2
    return Clock(began, offset, ended, offset_at_end, max(abs(first), abs(second)) + astray)


def read_arrivals(run_dir: Path, ranks: Mapping[int, Clock]) -> dict[int, Arrivals]:
    """Return what these ranks wrote. `ranks`: the clock of each one's node."""
    chosen = dict(list(ranks.items())[:RANKS_MOST])
    most = min(ENTRIES_OF_RANK, max(2000, ENTRIES_MOST // max(1, len(chosen))))
    read: dict[int, Arrivals] = {}
    until = time.monotonic() + READ_SECONDS
    for rank, clock in chosen.items():
        if time.monotonic() < until:
            read[rank] = read_rank(run_dir / "ranks" / str(rank) / ARRIVALS, clock, most)
    return {rank: arrivals for rank, arrivals in read.items() if arrivals.came}


def read_rank(path: Path, clock: Clock, most: int) -> Arrivals:
    """Return about the last `most` arrivals of a rank; none if the file is not ours."""
    groups: dict[str, int] = {}
    came: dict[tuple[str, int], Came] = {}
    for line in reversed(lines_of(path)):
        for group, size, sequence, arrival in arrivals_in(line, clock) if len(came) < most else ():
            if groups.setdefault(group, size) == size:
                came.setdefault((group, sequence), arrival)
    return Arrivals(groups, came)


def lines_of(path: Path) -> list[bytes]:
    try:
        with open(open_file(str(path)), "rb") as file:
            return file.read(FILE_BYTES).rstrip(b"\n").rsplit(b"\n", LINES_MOST)[-LINES_MOST:]
    except OSError:
        return []


def arrivals_in(line: bytes, clock: Clock) -> Iterator[tuple[str, int, int, Came]]:
    """Yield group, its size, number and arrival of each collective in a line; nothing if it is nonsense."""
    if line.count(b",") > VALUES_MOST or line.count(b"[") > 2 * RUNS_MOST + KINDS_MOST + 10:
        return
    try:
        found = json.loads(line)
        runs = LINE({"runs": found["runs"]})["runs"]
        kinds = [kind_of(row) for row in found["kinds"][:KINDS_MOST]]
    except (BadFrame, ValueError, LookupError, TypeError, RecursionError, OverflowError):
        return
    for run in runs:
        at = run["at"]
        for number, (gap, kind) in enumerate(zip(run["gaps"], run["kinds"], strict=False)):
            at += gap
            moment = at / 1e6
            came = Came(moment - clock.offset_at(moment), kinds[kind] if kind < len(kinds) else UNKNOWN)
            yield run["group"], run["size"], run["first"] + number, came


def kind_of(row: object) -> Kind:
    """Return what a collective is. BadFrame."""
    if not isinstance(row, list) or len(row) != 2:
        raise BadFrame("no kind of collective")
    return Kind(short(row[0]), short(row[1]))
