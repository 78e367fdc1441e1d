# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every kind of message of a job, with its fields: between controller, head, nodes and guards, in each direction.

A message is a frame (see channel.py): `kind`, by which mypy knows its type, and the fields of that. file_messages.py
has those about files, queue_messages.py those about jobs in the queue or in the list. The types of what lies in files
as well are in orders.py, records.py and job_rows.py. The unions at the end say what may be sent in each direction.
frames.py reads what the controller takes from the head, the head from a node, and a job from its followers.

A lost node sends no message. The head notices that its connection ended or was silent for the lease (remote_node.py),
and ends the job with reasons.node_lost(). A node that loses the head ends its part by itself (head_follower.py).
"""

from __future__ import annotations

from typing import Literal, TypedDict, Union, final

from ..types.evidence import Evidence
from ..types.file_messages import (
    DataLaid,
    DataOffer,
    DataWanted,
    Fetch,
    Fetched,
    File,
    FilesChecked,
    FilesSent,
    FolderOffer,
    NodeArtifacts,
    OfJob,
    Received,
    Request,
    Wanted,
)
from ..types.job_rows import WaitingRun
from ..types.orders import Order, Place, Route, RunOrder
from ..types.queue_messages import EnterQueue, Jobs, JobsRequest, Queued, Restarted, Turn, Unqueue, Unqueued
from ..types.reasons import EndReason, FinalState, Reason
from ..types.records import AnyFacts, Metric, NodeReport, Result, RunningJob, Text
from ..types.restarts import Rule


class Beat(TypedDict):
    """A sign of life."""

    kind: Literal["beat"]


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


class SurveyRoute(Route):
    request: SurveyRequest


@final
class NodeSurvey(Request):
    kind: Literal["survey"]
    request: SurveyRequest


@final
class Survey(Request):
    kind: Literal["survey"]
    request: SurveyRequest
    nodes: list[SurveyRoute]  # the other ones


class NodeSurveyed(TypedDict):
    kind: Literal["survey"]
    facts: AnyFacts


class Surveyed(NodeSurveyed):
    nodes: dict[str, AnyFacts]  # of the other ones, by host


class RunLate(Request, total=False):
    detached: bool  # the job goes on without the controller
    waits: bool  # it has its turn in the queue, or if it is detached enters that now
    queue_timeout: float | None  # seconds that a detached one waits at most
    restart: Rule | None  # by which the head starts a detached one again; None: never


class Run(RunLate):
    kind: Literal["run"]
    order: RunOrder


class Stage(Request):
    kind: Literal["stage"]
    order: Order
    secrets: dict[str, str]


class Start(TypedDict):
    """The job is staged on every node."""

    kind: Literal["start"]


class Unstage(TypedDict):
    """A node could not stage it."""

    kind: Literal["unstage"]


class AllPlaced(TypedDict):
    """Every rank of the job is where the plan has it."""

    kind: Literal["all_placed"]


class AllDone(TypedDict):
    """Every rank of the job is done."""

    kind: Literal["all_done"]


class End(TypedDict):
    """The job is to end, and why."""

    kind: Literal["end"]
    reason: EndReason
    detail: Text
    looks: bool  # the ranks are looked at before they are ended: of the head alone, to its nodes


class EndRound(TypedDict):
    """The round is to end, and why: torchrun's agents may start the ranks again."""

    kind: Literal["end_round"]
    reason: EndReason
    detail: Text


class NextRound(TypedDict):
    """The next round is to begin."""

    kind: Literal["next_round"]
    restarts: int  # with this one
    after: FinalState  # the state of the round before


class RoundEnded(TypedDict):
    """No program of the round is left here."""

    kind: Literal["round_ended"]


class RoundBegun(TypedDict):
    """There is room for the ranks of the next round."""

    kind: Literal["round_begun"]


class RoundReport(TypedDict):
    """The round is over here."""

    kind: Literal["round_report"]
    report: NodeReport


class Ending(TypedDict):
    """The job ends here, and why."""

    kind: Literal["ending"]
    reason: EndReason
    detail: Text


class Forget(OfJob):
    kind: Literal["forget"]


class Attach(OfJob):
    kind: Literal["attach"]


class ReportRequest(OfJob):
    kind: Literal["node_report"]


class Look(OfJob):
    kind: Literal["look"]
    asks: bool  # ranks are asked for their stacks; else /proc alone is read


class Collect(Request):
    kind: Literal["collect"]
    home: str
    controller: str
    dry_run: bool


class Detach(TypedDict):
    """Go on in a session of your own: the job that comes outlives this connection."""

    kind: Literal["detach"]


class Forgotten(TypedDict):
    kind: Literal["forgotten"]
    missing: list[Text]


class NotAlone(TypedDict, total=False):
    running: dict[str, list[RunningJob]]  # by host: jobs that keep this one from running


class Refused(NotAlone):
    kind: Literal["refused"]
    reason: Text


class StagedLate(TypedDict, total=False):
    """No field: the job is staged. Else why it is not, and the jobs that keep it from running."""

    reason: Text
    running: list[RunningJob]


class Staged(StagedLate):
    kind: Literal["staged"]


class Started(TypedDict):
    kind: Literal["started"]


class Line(TypedDict):
    kind: Literal["line"]
    rank: int
    stream: str
    text: Text
    skipped: int


class Report(TypedDict):
    kind: Literal["report"]
    rank: int
    values: dict[str, Metric]


class StartDaemon(TypedDict):
    kind: Literal["start_daemon"]
    command: str  # of a launcher's daemon, for /bin/sh


class Placed(TypedDict):
    """This node's ranks are where the plan has them."""

    kind: Literal["placed"]


class Done(TypedDict):
    """This node's ranks are done."""

    kind: Literal["done"]
    saved: bool  # one of them asks to be run again


class LauncherExited(TypedDict):
    """The launcher or its daemon exited."""

    kind: Literal["launcher_exited"]
    rc: int
    text: Text  # the end of its output


class ShellRequest(TypedDict):
    """What a remote shell asks of the head's supervisor: to start a launcher's daemon on a node."""

    host: Text
    command: Text  # for a shell, as ssh takes it


class ShellAnswer(TypedDict):
    """How that ended."""

    rc: int
    text: Text  # the end of its output, or why it was not started


class ClockRequest(Request):
    kind: Literal["clock"]


class Clock(TypedDict):
    kind: Literal["clock"]
    time: float


class Over(TypedDict):
    kind: Literal["over"]
    report: NodeReport


class MaybeReport(TypedDict):
    kind: Literal["node_report"]
    report: NodeReport | None


class Outcome(TypedDict):
    kind: Literal["result"]
    result: Result


class Waiting(TypedDict):
    kind: Literal["waiting"]
    jobs: list[WaitingRun]


class Attached(TypedDict):
    kind: Literal["attached"]
    placement: list[Place]


class NodeLooked(TypedDict):
    kind: Literal["looked"]
    evidence: list[Evidence]


class SeenJob(TypedDict):
    """What is known of the ranks of a job."""

    placement: list[Place]
    evidence: list[Evidence]
    missing: list[Text]  # nodes of which nothing is known, each with the reason


class Looked(SeenJob):
    kind: Literal["looked"]


def end(reason: Reason, looks: bool = False) -> End:
    return {"kind": "end", "reason": reason.code, "detail": reason.detail, "looks": looks}


def ending(reason: Reason) -> Ending:
    return {"kind": "ending", "reason": reason.code, "detail": reason.detail}


# What a follower of a job sends to its supervisor: any program of the user may connect.
FromFollower = Union[End, Beat]
# What the controller sends to the head. A beat: while the job waits in the queue.
ToHead = Union[
    Survey, FolderOffer, File, DataOffer, FilesSent, Run, End, Fetch, Received, Collect, Forget, Detach, Attach,
    JobsRequest, EnterQueue, Beat, Unqueue, Look,
]  # fmt: skip
FromHead = Union[
    Surveyed, Wanted, FilesChecked, DataWanted, DataLaid, Refused, Started, Beat, Line, Report, Outcome, File,
    NodeArtifacts, Fetched, Waiting, Forgotten, Attached, Jobs, Queued, Restarted, Turn, Unqueued, Looked,
]  # fmt: skip
# What the head sends to another node.
ToNode = Union[
    ClockRequest, NodeSurvey, FolderOffer, File, DataOffer, FilesSent, Stage, Start, Unstage, AllPlaced, StartDaemon,
    AllDone, EndRound, NextRound, End, Beat, Fetch, Received, Forget, ReportRequest, Look,
]  # fmt: skip
FromNode = Union[
    Clock, NodeSurveyed, Wanted, FilesChecked, DataWanted, DataLaid, Staged, Beat, Line, Report, Placed, Done,
    LauncherExited, Ending, RoundReport, Over, MaybeReport, File, NodeArtifacts, Fetched, Forgotten, NodeLooked,
]  # fmt: skip
# Between a supervisor and its guard.
ToGuard = Union[Beat, AllPlaced, StartDaemon, AllDone, EndRound, NextRound, End]
ForHead = Union[Placed, Done, LauncherExited, Ending]  # of what a guard tells
FromGuard = Union[ForHead, RoundEnded, RoundBegun]
OfKnownJobs = Union[Fetch, Received, Collect, Forget, ReportRequest, Attach, JobsRequest, Look]
Shown = Union[Started, Queued, Restarted, Line, Report]  # on the controller, while a job runs or waits
# What is only for a supervisor that is at work with its other end: shipping, staging, or running a job.
Late = Union[File, FilesSent, Start, Unstage, AllPlaced, StartDaemon, AllDone, EndRound, NextRound, End, Beat]
# A supervisor is that of a head, or of another node.
ToSupervisor = Union[ToHead, ToNode]
FromSupervisor = Union[FromHead, FromNode]
