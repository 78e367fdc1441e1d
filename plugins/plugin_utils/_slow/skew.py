# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who kept the others waiting: from when each rank came to each collective. Pure.

What a rank costs is how much sooner the collectives would have begun without it: from the moment when the last but one
came until it came. Moments count once, however many collectives began in them. Of the collectives of one step only the
longest delay counts: the buckets of DistributedDataParallel are on their way at once, and one that comes late makes the
next ones late. What is within the uncertainty of the clocks counts for nothing. So the cost is at least that.

A rank is named only if it clearly is the one: it cost most of what all cost together, and it did so often. A single
long delay (the start, a checkpoint) names nobody, and hides nobody. Where no rank is, the nodes are compared in the
same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.codes import Code

from .arrivals import Arrivals, Came, Kind


class SkewCode(Code):
    """Who kept the others waiting."""

    RANK = "waited_for_rank"
    NODE = "waited_for_node"
    NOBODY = "no_straggler"
    TOO_LITTLE = "too_little_known"


LEAST_SECONDS = 0.001  # by which the last one comes later than the last but one: less is noise
LEAST_COLLECTIVES = 20
OFTEN = 0.1  # of all collectives
MOST_OF_IT = 0.75  # of what all cost together
WORTH = 0.03  # of the time
OUTLIER = 5  # times the median of the delays: what is longer counts for no more than that when one is chosen
FEW = 5  # delays have no median of their own: that of all delays is taken
PERIOD_MOST = 64  # collectives of one step
ALIKE = 0.95  # of the collectives that a period explains

Unit = int | str  # a rank, or a node
Interval = tuple[float, float]


class Met(NamedTuple):
    """A collective to which all of a group came, and when."""

    group: str
    sequence: int
    kind: Kind
    came: Mapping[Unit, float]


@dataclass
class Share:
    """What one rank, or one node, has to do with the waiting. Seconds."""

    late: list[float] = field(default_factory=list)  # after the last but one, each time that it came last
    cost: list[Interval] = field(default_factory=list)
    waited: list[Interval] = field(default_factory=list)
    kinds: Counter[Kind] = field(default_factory=Counter)  # in which it came last

    @property
    def middle(self) -> float:
        """Return the median of its delays."""
        return median(self.late) if self.late else 0.0

    def usual(self, middle_of_all: float) -> float:
        """Return what it would cost without outliers. `middle_of_all`: the median of all delays, of all ranks."""
        most = OUTLIER * (self.middle if len(self.late) >= FEW else middle_of_all)
        return min(length(self.cost), sum(min(end - begin, most) for begin, end in self.cost))


@dataclass(frozen=True)
class Skew:
    """The verdict. `culprit`: the rank or the node that is named, None if nobody is."""

    code: SkewCode
    collectives: int = 0
    seconds: float = 0.0  # of the run that were seen
    uncertainty: float = 0.0  # of two clocks together at most, in seconds; 0: all ranks have the same clock
    culprit: Unit | None = None
    ranks: Mapping[Unit, Share] = field(default_factory=dict)
    nodes: Mapping[Unit, Share] = field(default_factory=dict)

    @property
    def share(self) -> Share:
        """Return what the culprit has to do with it."""
        if self.culprit is None:
            return Share()
        return (self.ranks if self.code == SkewCode.RANK else self.nodes)[self.culprit]


def judge(found: Mapping[int, Arrivals], hosts: Mapping[int, str], uncertain: Mapping[str, float]) -> Skew:
    """Return who kept the others waiting. `hosts` by rank; `uncertain`: of each node's clock, in seconds."""
    met = list(meetings(found))
    if len(met) < LEAST_COLLECTIVES:
        return Skew(SkewCode.TOO_LITTLE, len(met))
    where: dict[Unit, str] = dict(hosts.items())
    ranks, seconds = shares(met, where, uncertain), length(seen(met))
    clocks = sorted(uncertain[host] for host in {hosts[rank] for rank in found})
    known = Skew(SkewCode.NOBODY, len(met), seconds, sum(clocks[-2:]) if len(clocks) > 1 else 0.0, ranks=ranks)
    culprit = straggler(ranks, len(met), seconds)
    if culprit is not None:
        return replace(known, code=SkewCode.RANK, culprit=culprit)
    if not 1 < len(clocks) < len(found):  # one node, or one rank on each
        return known
    by_node = [of_nodes(row, where) for row in met]
    by_node = [row for row in by_node if len(row.came) > 1]
    nodes = shares(by_node, {host: host for host in where.values()}, uncertain)
    slow = straggler(nodes, len(by_node), seconds)
    return known if slow is None else replace(known, code=SkewCode.NODE, culprit=slow, nodes=nodes)


def meetings(found: Mapping[int, Arrivals]) -> Iterator[Met]:
    """Yield the collectives to which all of a group came, by group and number.

    A group of which a rank is missing has none. One that its ranks take for different ones is left out.
    """
    members: dict[str, dict[int, dict[int, Came]]] = {}
    for rank, arrivals in found.items():
        for group in arrivals.groups:
            members.setdefault(group, {})[rank] = {}
        for (group, sequence), arrival in arrivals.came.items():
            members[group][rank][sequence] = arrival
    for group, ranks in members.items():
        if any(found[rank].groups[group] != len(ranks) for rank in ranks):
            continue
        first, *others = ranks.values()
        for sequence in sorted(number for number in first if all(number in came for came in others)):
            if len({came[sequence].kind.operation for came in ranks.values()}) == 1:
                arrived: dict[Unit, float] = {rank: came[sequence].at for rank, came in ranks.items()}
                yield Met(group, sequence, first[sequence].kind, arrived)


def of_nodes(row: Met, where: Mapping[Unit, str]) -> Met:
    """Return a collective by nodes: a node has come when all of its ranks have."""
    came: dict[Unit, float] = {}
    for unit, at in row.came.items():
        came[where[unit]] = max(at, came.get(where[unit], at))
    return row._replace(came=came)


def shares(met: Sequence[Met], where: Mapping[Unit, str], uncertain: Mapping[str, float]) -> dict[Unit, Share]:
    """Return what each has to do with the waiting. `where`: the node of each."""
    found: dict[Unit, Share] = {unit: Share() for row in met for unit in row.came}
    for burst in bursts(met):
        waited: dict[Unit, Interval] = {}
        cost: dict[Unit, Interval] = {}
        for row, after in burst:
            second, last = sorted(row.came, key=lambda unit: row.came[unit])[-2:]
            end = row.came[last]
            for unit in row.came:
                if end - row.came[unit] > doubt(where[unit], where[last], uncertain):
                    keep_longest(waited, unit, (begin_of(row, after, unit), end))
            late = end - row.came[second]
            if late > doubt(where[second], where[last], uncertain):
                found[last].late.append(late)
                found[last].kinds[row.kind] += 1
                keep_longest(cost, last, (begin_of(row, after, second), end))
        for unit, interval in waited.items():
            found[unit].waited.append(interval)
        for unit, interval in cost.items():
            found[unit].cost.append(interval)
    return found


def doubt(one: str, other: str, uncertain: Mapping[str, float]) -> float:
    """Return the smallest difference between arrivals on two nodes that is not clock error."""
    return LEAST_SECONDS if one == other else max(LEAST_SECONDS, uncertain[one] + uncertain[other])


def keep_longest(found: dict[Unit, Interval], unit: Unit, interval: Interval) -> None:
    begin, end = found.get(unit, (0.0, 0.0))
    if interval[1] - interval[0] > end - begin:
        found[unit] = interval


def begin_of(row: Met, after: Met | None, unit: Unit) -> float:
    """Return since when one may have waited in a collective: it did not while it went on to the next."""
    next_one = after.came.get(unit) if after else None
    return next_one if next_one is not None and row.came[unit] < next_one < max(row.came.values()) else row.came[unit]


def bursts(met: Sequence[Met]) -> Iterator[list[tuple[Met, Met | None]]]:
    """Yield collectives, each with the next of its group, those of one step together."""
    by_group: dict[str, list[Met]] = {}
    for row in met:
        by_group.setdefault(row.group, []).append(row)
    for rows in by_group.values():
        period = period_of([row.kind for row in rows])
        pairs = list(zip(rows, [*rows[1:], None], strict=True))
        yield from (pairs[first : first + period] for first in range(0, len(pairs), period))


def period_of(kinds: Sequence[Kind]) -> int:
    """Return after how many collectives a program does the same again: those of one step; 1 if that is not seen."""
    for period in range(1, min(PERIOD_MOST, len(kinds) // 2) + 1):
        pairs = list(zip(kinds, kinds[period:], strict=False))
        if sum(one == other for one, other in pairs) >= ALIKE * len(pairs):
            return period
    return 1


def seen(met: Sequence[Met]) -> list[Interval]:
    """Return the times between collectives that follow each other."""
    pairs = pairwise(met)
    follow = [pair for pair in pairs if pair[0].group == pair[1].group and pair[0].sequence + 1 == pair[1].sequence]
    return [(max(one.came.values()), max(other.came.values())) for one, other in follow]


def length(intervals: Iterable[Interval]) -> float:
    """Return how long intervals are together; what several cover counts once."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def straggler(found: Mapping[Unit, Share], collectives: int, seconds: float) -> Unit | None:
    """Return the one that is to be named, None if it is not clear."""
    delays = [late for share in found.values() for late in share.late]
    middle_of_all = median(delays) if delays else 0.0
    cost = {unit: share.usual(middle_of_all) for unit, share in found.items()}
    worst = max(cost, key=lambda unit: cost[unit], default=None)
    if worst is None or len(found[worst].late) < max(LEAST_COLLECTIVES, OFTEN * collectives):
        return None
    clear = cost[worst] >= MOST_OF_IT * sum(cost.values()) and cost[worst] >= WORTH * seconds
    return worst if clear and seconds > 0 else None
