# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every kind of message of a job, with its fields: between controller, head, nodes and guards, in each direction.

A message is a frame (see channel.py) with its `kind` and the fields of its type here. frames.py checks what the
controller takes from the head, and the head from a node: tests/unit/test_protocol.py compares it with this table.
"""

from __future__ import annotations

from typing import Any, Dict, TypedDict, Union

Text = str  # for people
Metric = Union[int, float, str]


class Place(TypedDict):
    """Where a rank runs."""

    rank: int
    local_rank: int
    host: str


class RunningJob(TypedDict):
    job_id: str
    owner: str


class Leftover(TypedDict):
    """A process that outlived its rank."""

    pid: int
    command: str
    ended: str | None  # the signal that ended it, None if nothing did


# --- what a node says of itself -------------------------------------------------------------------------------------


class NodeFactsLate(TypedDict, total=False):
    clock_offset: float  # seconds by which the node's clock is ahead of the head's


class NodeFacts(NodeFactsLate):
    """What a plan is made of (survey.py)."""

    home: str
    cwd: str
    tmpdir: str
    interpreter: str
    python: str
    python_wanted: str
    cores: int
    uid: int
    accelerators: dict[str, int]
    fabric: dict[str, Any] | None  # fabric.json
    torch: dict[str, str] | None
    hostname: str
    nics: list[str]
    launcher: dict[str, str]
    backends: list[str]
    free_bytes: int
    port: int | None
    jobs: list[str]
    running: list[RunningJob]
    leftovers: list[dict[str, Any]]


class Unreachable(TypedDict):
    unreachable: Text


AnyFacts = Union[NodeFacts, Unreachable]


# --- what a job leaves ----------------------------------------------------------------------------------------------


class RankRecordLate(TypedDict, total=False):
    pid: int
    started_tick: float
    ended: float
    ended_tick: float
    rc: int
    signal: int | None
    finished: bool
    error_code: str  # one of reasons.RANK_ERRORS
    error: Text
    ended_by_us: bool
    group: int  # size of the largest process group that it used
    leftovers: list[Leftover]


class RankRecord(RankRecordLate):
    """ranks/<n>/record.json: the first fields when a rank starts, the others when it ends. Times are in seconds."""

    rank: int
    local_rank: int
    host: str
    wrapper_pid: int
    cpus: list[int]
    started: float


class LauncherExit(TypedDict, total=False):
    """launcher.json: what became of a launcher or its daemon."""

    pid: int
    rc: int
    at: float
    unasked: bool  # it ended before we had begun to end the job
    last_line: Text


class BlamedLauncher(LauncherExit, total=False):
    host: str


class EndLate(TypedDict, total=False):
    host: str  # where it happened; empty: on this node
    tick: float  # of the monotonic clock


class End(EndLate):
    """end.json: why the job was ended. The first writer wins."""

    reason: str  # one of reasons.STATES
    detail: Text
    at: float


class NodeReport(TypedDict):
    """What the head needs to know of a node for the result. `records` and `lines` by rank."""

    records: dict[str, RankRecord]
    lines: dict[str, tuple[str, Text]]  # stream and last line
    leftovers: list[Leftover]
    launcher: LauncherExit
    metrics: list[tuple[str, int, Metric]]  # name, rank, value


class ResultRank(TypedDict):
    """One of result.ranks; `rc` and `signal` are None of a rank that left no record, or has not ended."""

    rank: int
    host: str
    state: str
    rc: int | None
    signal: int | None
    seconds: float | None
    last_line: Text


class FirstFailure(TypedDict):
    rank: int | None  # None: the launcher
    host: str
    cause: Text
    message: Text
    log: str


class WaitingRun(TypedDict):
    job_id: str
    run_dir: str
    state: str
    own: bool
    seconds: float


# --- messages -------------------------------------------------------------------------------------------------------


class Nothing(TypedDict):
    """A message that is its kind."""


class Request(TypedDict, total=False):
    beats: bool  # the sender waits as long as beats come


class NodeSurvey(Request):
    request: dict[str, Any]


class Survey(NodeSurvey):
    others: list[dict[str, Any]]  # how the head reaches each of the other nodes, and what it asks there


class NodeSurveyed(TypedDict):
    facts: AnyFacts


class Surveyed(NodeSurveyed):
    others: dict[str, AnyFacts]  # by node


class FolderOffer(Request):
    home: str
    files: list[tuple[str, str, bool]]  # path, sha256, whether executable
    here: str  # the name of this node; empty if the folder is not for it
    nodes: list[str]


class File(TypedDict):
    """One block of a file; its bytes follow the frame."""

    name: str
    first: bool


class Wanted(TypedDict):
    wanted: list[str]  # digests


class Laid(TypedDict):
    reason: Text  # why a node cannot use the folder; empty if all can


class Order(Request):
    order: dict[str, Any]


class Ending(TypedDict):
    """Why the job ends, or is to end."""

    reason: str  # one of reasons.STATES
    detail: Text


class OfJob(Request):
    home: str
    job_id: str


class Fetch(OfJob):
    limit: int  # bytes


class Collect(Request):
    home: str
    controller: str
    dry_run: bool


class Missing(TypedDict):
    missing: list[Text]


class NotAlone(TypedDict, total=False):
    running: dict[str, list[RunningJob]]  # by node: jobs beside which this one is not to run


class Refused(NotAlone):
    reason: Text


class Staged(TypedDict, total=False):
    """No field: the job is staged. Else why it is not, and the jobs beside which it is not to run."""

    reason: Text
    running: list[RunningJob]


class Line(TypedDict):
    rank: int
    stream: str
    text: Text
    skipped: int


class Report(TypedDict):
    rank: int
    values: dict[str, Metric]


class Start(TypedDict):
    command: str  # of a launcher's daemon, for /bin/sh


class Left(TypedDict):
    """The launcher or its daemon exited."""

    rc: int
    text: Text


class Clock(TypedDict):
    time: float


class Over(TypedDict):
    report: NodeReport


class MaybeReport(TypedDict):
    report: NodeReport | None


class Outcome(TypedDict):
    result: dict[str, Any]  # docs/result.schema.json


class Waiting(TypedDict):
    jobs: list[WaitingRun]


Messages = Dict[str, Any]  # the type of the fields by kind
CONTROLLER_TO_HEAD: Messages = {
    "survey": Survey,
    "folder": FolderOffer,
    "file": File,
    "lay": Request,  # all files of the folder are sent
    "run": Order,
    "end": Ending,
    "fetch": Fetch,
    "received": Nothing,  # all files that were fetched
    "collect": Collect,
    "forget": OfJob,
}
HEAD_TO_CONTROLLER: Messages = {
    "survey": Surveyed,
    "wanted": Wanted,
    "laid": Laid,
    "refused": Refused,
    "started": Nothing,
    "beat": Nothing,
    "line": Line,
    "report": Report,
    "result": Outcome,
    "file": File,
    "fetched": Missing,
    "waiting": Waiting,
    "forgotten": Missing,
}
HEAD_TO_NODE: Messages = {
    "clock": Request,
    "survey": NodeSurvey,
    "folder": FolderOffer,
    "file": File,
    "lay": Request,
    "stage": Order,
    "go": Nothing,  # the job is staged everywhere
    "drop": Nothing,  # it is not
    "begin": Nothing,  # every rank is where the plan has it
    "start": Start,
    "leave": Nothing,  # every rank of the job is done
    "end": Ending,
    "beat": Nothing,
    "fetch": Fetch,
    "received": Nothing,
    "forget": OfJob,
    "node_report": OfJob,
}
NODE_TO_HEAD: Messages = {
    "clock": Clock,
    "survey": NodeSurveyed,
    "wanted": Wanted,
    "laid": Laid,
    "staged": Staged,
    "beat": Nothing,
    "line": Line,
    "report": Report,
    "placed": Nothing,  # this node's ranks are where the plan has them
    "done": Nothing,  # this node's ranks are done
    "left": Left,
    "ending": Ending,
    "over": Over,
    "node_report": MaybeReport,
    "file": File,
    "fetched": Missing,
    "forgotten": Missing,
}
SUPERVISOR_TO_GUARD: Messages = {kind: HEAD_TO_NODE[kind] for kind in ("beat", "begin", "start", "leave", "end")}
GUARD_TO_SUPERVISOR: Messages = {kind: NODE_TO_HEAD[kind] for kind in ("placed", "done", "left", "ending")}
