# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a report shows: the types of a run, as read from its directory. All texts are printable, all numbers finite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import NoteCode, RankError
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.run_usage import Finding
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.usage import NodeUsage

Points = tuple[tuple[float, float], ...]  # seconds since the epoch by the head's clock, and value; NaN: was no number
Series = Mapping[str, Mapping[int, Points]]  # by name and rank, in order of time


@dataclass(frozen=True)
class Waiting:
    """What a rank has to do with waiting: how often it came last to a collective, the rest in seconds."""

    last: int
    late: float  # after the last but one, the median
    cost: float  # to the others
    waited: float  # for others


@dataclass(frozen=True)
class RankRun:
    """One rank. Times are in seconds since the epoch by the head's clock; None: not recorded."""

    rank: int
    host: str
    state: str  # of docs/result.schema.json, or empty
    rc: int | None = None
    signal: int | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    peak_bytes: float | None = None  # of memory
    last_line: str = ""
    cpus: int = 0  # how many it might use; 0: not recorded
    error_code: RankError = RankError.NONE
    began: float | None = None
    ended: float | None = None
    waiting: Waiting | None = None  # None: not known


@dataclass(frozen=True)
class NodeRun:
    """One node, as the plan has it."""

    name: str
    address: str = ""
    nic: str = ""
    network: str = ""
    fabric: str = ""  # the digest of what role fabric published
    cores: int = 0
    torch: str = ""
    runtime: str = ""  # the digest of our code there
    gpus: Mapping[str, int] = field(default_factory=dict)  # by vendor, those that it has
    clock_offset: float | None = None  # seconds by which its clock was ahead of the head's; None: not recorded


@dataclass(frozen=True)
class Failure:
    """What went wrong first. `rank`: None if it was the launcher."""

    rank: int | None
    host: str
    cause: str
    message: str
    log: str  # below the run directory


@dataclass(frozen=True)
class Known:
    """The entry of the book of causes that a failure has. `rank`: which says so in `line`; None if no rank does."""

    id: str
    cause: str
    mend: str
    rank: int | None
    host: str
    line: str


@dataclass(frozen=True)
class Note:
    """A remark of the result."""

    code: NoteCode | None  # None: of another version
    text: str


@dataclass(frozen=True)
class Leftover:
    """A process that outlived its rank."""

    host: str
    pid: int
    command: str
    ended: str  # the signal that ended it; empty: nothing did


@dataclass(frozen=True)
class Taken:
    """What was read of a node while the job ran; times are by the head's clock."""

    host: str
    usage: NodeUsage


@dataclass(frozen=True)
class Reason:
    """Words of the command, or a variable, with why it is there and where that comes from."""

    words: str
    reason: str
    source: str


@dataclass(frozen=True)
class Link:
    """What verify.yml measured from one node to another."""

    source: str
    target: str
    mbit: float
    rtt_us: float | None = None


@dataclass(frozen=True)
class Links:
    """The matrix of a proof. `at`: when."""

    at: str
    network: str
    pairs: tuple[Link, ...]


@dataclass(frozen=True)
class Run:
    """All that is known of a run. Empty texts, zeros and None: not recorded."""

    job_id: str
    run_dir: str
    state: str = ""
    rc: int | None = None
    began: float | None = None
    ended: float | None = None
    seconds: float | None = None
    launcher: str = ""
    launcher_version: str = ""
    backend: str = ""
    backend_reason: str = ""
    world_size: int = 0
    ranks: tuple[RankRun, ...] = ()
    nodes: tuple[NodeRun, ...] = ()
    failure: Failure | None = None
    known: Known | None = None  # why it failed
    slow: str = ""  # who kept the others waiting, a sentence
    collectives: int = 0  # by which that was judged
    budget: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # by rank: shares of its time by part
    notes: tuple[Note, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    metrics: Mapping[str, float | str] = field(default_factory=dict)  # the last values
    series: Series = field(default_factory=dict)
    sampled: bool = False  # of the reports only some were read, evenly spread
    command: tuple[Reason, ...] = ()
    variables: Mapping[str, tuple[Reason, ...]] = field(default_factory=dict)  # of the ranks, by node
    program: tuple[str, ...] = ()  # script or module, and arguments
    code: str = ""  # a digest of it
    data: str = ""
    packages: tuple[str, ...] = ()
    job_timeout: float | None = None
    warnings: tuple[str, ...] = ()
    diagnosis: tuple[str, ...] = ()  # the lines of the last look at it: the sentence, then the stacks of its ranks
    taken: tuple[Taken, ...] = ()
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of NodeFigures, by node
    findings: tuple[Finding, ...] = ()  # what is out of the ordinary in that
    attempts: tuple[tuple[str, str], ...] = ()  # id and state of each, this one among them
    links: Links | None = None
    missing: tuple[str, ...] = ()  # what of the run could not be read, each with the reason

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the nodes of the ranks in rank order."""
        return tuple(dict.fromkeys(rank.host for rank in self.ranks))

    @cached_property
    def start(self) -> float:
        """Return the moment from which times are counted: the start of the job, or the first that is known."""
        known = [self.began, *(rank.began for rank in self.ranks)]
        points = (rows[0][0] for ranks in self.series.values() for rows in ranks.values() if rows)
        return min((moment for moment in (*known, *points) if moment is not None), default=0.0)

    @cached_property
    def end(self) -> float:
        """Return the last moment that is known."""
        known = [self.ended, *(rank.ended for rank in self.ranks)]
        points = (rows[-1][0] for ranks in self.series.values() for rows in ranks.values() if rows)
        return max((moment for moment in (*known, *points) if moment is not None), default=self.start)
