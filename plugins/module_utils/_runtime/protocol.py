# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every kind of message of a job, with its fields: between controller, head, nodes and guards, in each direction.

A message is a frame (see channel.py) with its `kind` and the fields of its type here; orders.py and records.py have the
types of what lies in files as well. frames.py checks what the controller takes from the head, and the head from a node:
tests/unit/test_protocol.py compares it with this table.

A lost node sends no message. The head notices that its connection ended or was silent for the lease (remote_node.py),
and ends the job with reasons.node_lost(). A node that loses the head ends its part by itself (head_follower.py).
"""

from __future__ import annotations

from typing import Dict, List, Tuple, TypedDict

from .evidence import Evidence
from .orders import Order, Place, Route, RunOrder
from .reasons import EndReason, FinalState
from .records import Ahead, AnyFacts, Artifacts, JobRow, Metric, NodeReport, Result, RunningJob, Text, WaitingRun
from .restarts import Rule

Listing = List[Tuple[str, str, bool]]  # of shipped files: path, sha256, whether executable


class Nothing(TypedDict):
    """A message that is its kind."""


class Request(TypedDict, total=False):
    beats: bool  # the sender waits as long as beats come


class WantedContainer(TypedDict):
    """What ranks run in (plugin_utils/_input/containers.py checks it)."""

    image: str  # a name, or the path of a directory on the node
    engine: str  # one of engines.CHOICES
    args: list[str]
    mounts: list[list[str]]  # here, there, and "ro" or an empty text


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
    program: str  # the name of the program's environment; empty: it needs none
    data: str  # the name of the data set; empty: it needs none
    script: str  # path of a file that is to be there, and is not shipped; empty: none
    container: WantedContainer | None  # None: ranks run on the node itself


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


class DataOffer(Request):
    """A data set. Its list of files follows as `file` frames, then pieces by their number (data_manifest.py)."""

    home: str
    name: str
    list_bytes: int
    token: str  # of this start
    keep: int  # data sets that stay on a node; 0: all
    here: str  # the name of this node; empty if it needs none
    nodes: list[Route]  # those that this one sends it on to


class DataWanted(TypedDict):
    wanted: list[tuple[int, int]]  # first and last number of pieces
    unreached: list[str]  # hosts
    reason: Text  # why a node cannot take it; empty if all can


class FilesChecked(TypedDict):
    reason: Text  # why a node cannot use what was sent; empty if all can


class RunLate(Request, total=False):
    detached: bool  # the job goes on without the controller
    waits: bool  # it has its turn in the queue, or if it is detached enters that now
    queue_timeout: float | None  # seconds that a detached one waits at most
    restart: Rule | None  # by which the head starts a detached one again; None: never


class Run(RunLate):
    order: RunOrder


class Stage(Request):
    order: Order
    secrets: dict[str, str]


class Ending(TypedDict):
    """Why the job ends, or is to end."""

    reason: EndReason
    detail: Text


class OfJob(Request):
    home: str
    job_id: str


class Look(OfJob):
    asks: bool  # ranks are asked for their stacks; else /proc alone is read


class FetchLate(OfJob, total=False):
    artifacts: tuple[int, int] | None  # files and bytes that a node may send of what ranks wrote; None: nothing


class Fetch(FetchLate):
    limit: int  # bytes of the other files


class NodeArtifacts(Artifacts):
    """Comes behind the files that it lists."""

    host: str


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


class OfController(Request):
    home: str
    controller: str


class EnterQueue(Request):
    """Enter the queue, or go on waiting. `hosts`: the nodes of the job as they are planned now."""

    home: str
    job_id: str
    controller: str
    owner: str
    hosts: list[str]
    ranks: int
    launcher: str
    backend: str
    lease: float  # seconds without a word of the controller, after which it has left
    queue_timeout: float | None
    look: bool  # only say whether it would wait


class Queued(TypedDict):
    """A job waits, and for whom."""

    ahead: int  # jobs
    first: Ahead | None  # of these


class Restarted(TypedDict):
    """An attempt of a detached job is over, and the next one follows."""

    state: FinalState  # of that attempt
    restarts: int  # with the one that follows
    most: int  # of these


class Unqueued(TypedDict):
    found: bool  # whether a job of this name waited with its controller


class Jobs(TypedDict):
    jobs: list[JobRow]


class Attached(TypedDict):
    placement: list[Place]


class NodeLooked(TypedDict):
    evidence: list[Evidence]


class Looked(NodeLooked, Attached):
    missing: list[Text]  # nodes of which nothing is known, each with the reason


Messages = Dict[str, type]  # the type of the fields by kind
CONTROLLER_TO_HEAD: Messages = {
    "survey": Survey,
    "folder": FolderOffer,
    "file": File,
    "data_set": DataOffer,
    "files_sent": Request,  # all files of the folder, or pieces of the data set, are sent
    "run": Run,
    "end": Ending,
    "fetch": Fetch,
    "received": Nothing,  # all files that were fetched
    "collect": Collect,
    "forget": OfJob,
    "detach": Nothing,  # go on in a session of your own: the job that comes outlives this connection
    "attach": OfJob,
    "jobs": OfController,
    "queue": EnterQueue,
    "beat": Nothing,  # while the job waits in the queue
    "unqueue": OfJob,  # take a job out of the queue that waits with its controller
    "look": Look,
}
HEAD_TO_CONTROLLER: Messages = {
    "survey": Surveyed,
    "wanted": Wanted,
    "files_checked": FilesChecked,
    "data_wanted": DataWanted,
    "data_laid": FilesChecked,
    "refused": Refused,
    "started": Nothing,
    "beat": Nothing,
    "line": Line,
    "report": Report,
    "result": Outcome,
    "file": File,
    "artifacts": NodeArtifacts,
    "fetched": Missing,
    "waiting": Waiting,
    "forgotten": Missing,
    "attached": Attached,
    "jobs": Jobs,
    "queued": Queued,
    "restarted": Restarted,
    "turn": Nothing,  # the nodes of the job are free
    "unqueued": Unqueued,
    "looked": Looked,
}
HEAD_TO_NODE: Messages = {
    "clock": Request,
    "survey": NodeSurvey,
    "folder": FolderOffer,
    "file": File,
    "data_set": DataOffer,
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
    "look": Look,
}
NODE_TO_HEAD: Messages = {
    "clock": Clock,
    "survey": NodeSurveyed,
    "wanted": Wanted,
    "files_checked": FilesChecked,
    "data_wanted": DataWanted,
    "data_laid": FilesChecked,
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
    "artifacts": NodeArtifacts,
    "fetched": Missing,
    "forgotten": Missing,
    "looked": NodeLooked,
}
SUPERVISOR_TO_GUARD: Messages = {
    kind: HEAD_TO_NODE[kind] for kind in ("beat", "all_placed", "start_daemon", "all_done", "end")
}
GUARD_TO_SUPERVISOR: Messages = {kind: NODE_TO_HEAD[kind] for kind in ("placed", "done", "launcher_exited", "ending")}
