# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every kind of message of a job, with its fields: between controller, head, nodes and guards, in each direction.

A message is a frame (see channel.py) with its `kind` and the fields of its type here. frames.py checks what the
controller takes from the head, and the head from a node: tests/unit/test_protocol.py compares it with this table.

A lost node sends no message. The head notices that its connection ended or was silent for the lease (RemoteNode in
peer.py), and ends the job with reasons.node_lost(). A node that loses the head ends its part by itself (HeadFollower in
head_follower.py).
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple, TypedDict, Union, final

Text = str  # for people
Metric = Union[int, float, str]
Listing = List[Tuple[str, str, bool]]  # of shipped files: path, sha256, whether executable


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


# --- the order of a job ---------------------------------------------------------------------------------------------
# The controller makes it once (plugin_utils/_launch/order.py), and nobody changes it after that. What a node adds when
# it stages the job is a Staging.


class UsedLauncher(TypedDict):
    name: str
    version: str
    path: str  # on the head


class JobOrder(TypedDict):
    """The part of an order that is the same on all nodes of a job. Times are in seconds."""

    job_id: str
    controller: str  # who started the job (plugin_utils/_controller/identity.py)
    run_dir: str  # on the controller
    head: str  # its host
    world_size: int
    placement: list[Place]  # by rank
    backend: str
    launcher: UsedLauncher
    launcher_environment: dict[str, str]
    shown_command: list[str]
    queue: list[list[str]]  # of a batch system: a command that lists the job's numbers there, one that cancels them
    master_addr: str
    master_port: int
    job_timeout: float | None
    grace: float | None  # between SIGTERM and SIGKILL; None: by what a process does with SIGTERM
    lease: float
    exclusive: bool
    show_ranks: list[int]


class LocalNames(TypedDict):
    """What launchers take to have the same name on every node, and has not (remote_shell.py)."""

    launcher_prefix: str  # the directory in which the launcher is installed
    nic: str  # empty: none was chosen


class NodeOrder(LocalNames):
    """The part of an order that is one node's own."""

    host: str
    ranks: list[int]  # that run on this node
    address: str
    home: str
    command: list[str]  # that the guard starts: the launcher, or its agent; empty where something else starts it
    launcher_search: list[str]  # directories
    argv: list[str]  # of the program of each rank
    cwd: str
    tmpdir: str
    path_first: str  # directory of the ranks' Python; empty: none
    environment: dict[str, str]
    secret_names: list[str]  # of variables whose values are in no file (secrets.py)
    known_jobs: list[str]  # that ran on this node when the job was planned
    programs: dict[str, list[str]]  # that launchers start by name: their command lines


class Order(JobOrder, NodeOrder):
    """order.json: all that one node is told of a job."""


class Route(TypedDict):
    """How the head reaches another node: a host of the mesh's ssh configuration, and where our code is there."""

    host: str
    home: str
    interpreter: str


class JobRoute(Route, LocalNames):
    """One of routes.json, which the head alone has: for a launcher's daemons, and for later questions of a job."""

    address: str
    launcher_search: list[str]


class RunOrder(TypedDict):
    """All that the head needs to run a job by itself."""

    job: JobOrder
    nodes: dict[str, NodeOrder]  # by host, the head's among them
    routes: list[JobRoute]  # to the other nodes
    secrets: dict[str, dict[str, str]]  # by host: variables that are in no file
    files: dict[str, str]  # for the job directory on the head: text by name


class Staging(TypedDict):
    """staging.json: what a node itself adds when it stages a job."""

    started: float
    private_tmp: str  # directory of the launcher, 0700


# --- what a node says of itself -------------------------------------------------------------------------------------


class Port(TypedDict):
    """A port of an RDMA device."""

    device: str
    port: int
    gid_index: int | None
    netdev: str | None


class RejectedNic(TypedDict):
    nic: str
    reason: Text
    code: str  # empty: an earlier version noted it


class FabricLate(TypedDict, total=False):
    rdma: list[Port]
    rejected: list[RejectedNic]
    rdma_off: Text  # why
    nccl_gid: str


class Fabric(FabricLate):
    """fabric.json, as far as jobs read it: what role fabric chose for a node."""

    nic: str
    address: str
    network: str


class FoundLauncher(TypedDict):
    """A launcher as a node has it. Empty texts: it does not."""

    path: str
    version: str
    wanted: str  # where it was looked for
    said: Text  # in place of a version
    refused: Text  # of launcher_args


class LeftProcess(TypedDict):
    """A process of a job that is over."""

    pid: int
    job_id: str
    command: str


class JobState(TypedDict):
    jobs: list[str]  # known here
    running: list[RunningJob]
    leftovers: list[LeftProcess]


class Seat(TypedDict):
    """What a host file takes of a node."""

    home: str
    cores: int
    accelerators: dict[str, int]
    fabric: Fabric | None


@final  # so that a field tells the one from the other
class NodeFacts(Seat, JobState):
    """What a plan is made of (survey.py)."""

    cwd: str
    tmpdir: str
    interpreter: str
    python: str
    python_wanted: str
    uid: int
    torch: dict[str, str] | None
    hostname: str
    nics: list[str]
    launcher: FoundLauncher
    backends: list[str]
    free_bytes: int
    port: int | None
    clock_offset: float  # seconds by which the node's clock is ahead of the head's: the head measures it


@final
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


class Seen(TypedDict):
    """Where a rank came up; None if it never did."""

    host: str | None
    local_rank: int | None


class ResultPlace(Place):
    seen: Seen
    pid: int | None  # of the program; None if it never started
    cpus: list[int]


class FirstFailure(TypedDict):
    rank: int | None  # None: the launcher
    host: str
    cause: Text
    message: Text
    log: str  # path on the controller


class Note(TypedDict):
    """What a person should know of a job."""

    code: str
    text: Text


class Result(TypedDict):
    """result.json, as docs/result.schema.json describes it."""

    job_id: str
    state: str
    rc: int
    started: str  # times as ISO 8601
    ended: str
    seconds: float
    launcher: UsedLauncher
    backend: str
    world_size: int
    command: list[str]
    placement: list[ResultPlace]
    ranks: list[ResultRank]
    first_failure: FirstFailure | None
    silent_ranks: list[int]
    leftovers: dict[str, list[Leftover]]  # by host
    metrics: dict[str, Metric]
    notes: list[Note]


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


class SurveyRequest(TypedDict):
    """What a node is asked. Empty texts: the node's default."""

    home: str
    python: str
    launcher: str
    launcher_path: str
    launcher_args: list[str]
    backend: str  # that its torch is asked for; empty: it need not be asked
    port: int | None  # that is wanted for the rendezvous
    ports: tuple[int, int] | None  # first and last that a firewall lets through


class NodeSurvey(Request):
    request: SurveyRequest


class SurveyRoute(Route):
    request: SurveyRequest


class Survey(NodeSurvey):
    nodes: list[SurveyRoute]  # the other ones


class NodeSurveyed(TypedDict):
    facts: AnyFacts


class Surveyed(NodeSurveyed):
    nodes: dict[str, AnyFacts]  # of the other ones, by host


class FolderOffer(Request):
    home: str
    files: Listing
    here: str  # the name of this node; empty if the folder is not for it
    nodes: list[str]


class File(TypedDict):
    """One block of a file; its bytes follow the frame."""

    name: str
    first: bool


class Wanted(TypedDict):
    wanted: list[str]  # digests


class FilesChecked(TypedDict):
    reason: Text  # why a node cannot use the folder; empty if all can


class Run(Request):
    order: RunOrder


class Stage(Request):
    order: Order
    secrets: dict[str, str]


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
    running: dict[str, list[RunningJob]]  # by host: jobs that keep this one from running


class Refused(NotAlone):
    reason: Text


class Staged(TypedDict, total=False):
    """No field: the job is staged. Else why it is not, and the jobs that keep it from running."""

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


class StartDaemon(TypedDict):
    command: str  # of a launcher's daemon, for /bin/sh


class LauncherExited(TypedDict):
    """The launcher or its daemon exited."""

    rc: int
    text: Text  # the end of its output


class Clock(TypedDict):
    time: float


class Over(TypedDict):
    report: NodeReport


class MaybeReport(TypedDict):
    report: NodeReport | None


class Outcome(TypedDict):
    result: Result


class Waiting(TypedDict):
    jobs: list[WaitingRun]


Messages = Dict[str, Any]  # the type of the fields by kind
CONTROLLER_TO_HEAD: Messages = {
    "survey": Survey,
    "folder": FolderOffer,
    "file": File,
    "files_sent": Request,  # all files of the folder are sent
    "run": Run,
    "end": Ending,
    "fetch": Fetch,
    "received": Nothing,  # all files that were fetched
    "collect": Collect,
    "forget": OfJob,
}
HEAD_TO_CONTROLLER: Messages = {
    "survey": Surveyed,
    "wanted": Wanted,
    "files_checked": FilesChecked,
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
    "files_sent": Request,
    "stage": Stage,
    "start": Nothing,  # the job is staged on every node
    "unstage": Nothing,  # a node could not stage it
    "all_placed": Nothing,  # every rank of the job is where the plan has it
    "start_daemon": StartDaemon,
    "all_done": Nothing,  # every rank of the job is done
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
    "files_checked": FilesChecked,
    "staged": Staged,
    "beat": Nothing,
    "line": Line,
    "report": Report,
    "placed": Nothing,  # this node's ranks are where the plan has them
    "done": Nothing,  # this node's ranks are done
    "launcher_exited": LauncherExited,
    "ending": Ending,
    "over": Over,
    "node_report": MaybeReport,
    "file": File,
    "fetched": Missing,
    "forgotten": Missing,
}
SUPERVISOR_TO_GUARD: Messages = {
    kind: HEAD_TO_NODE[kind] for kind in ("beat", "all_placed", "start_daemon", "all_done", "end")
}
GUARD_TO_SUPERVISOR: Messages = {kind: NODE_TO_HEAD[kind] for kind in ("placed", "done", "launcher_exited", "ending")}
