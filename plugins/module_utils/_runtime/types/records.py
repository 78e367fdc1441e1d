# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node tells of itself, and what a job leaves: types of JSON, in messages and in the files of a job."""

from __future__ import annotations

from typing import TypedDict, Union, final

from .evidence import Evidence
from .orders import Place, UsedLauncher
from .reasons import EndReason, FinalState, ImageFlaw, NoteCode, RankError, RankState
from .run_usage import Usage
from .usage import NodeUsage

Text = str  # for people
Metric = Union[int, float, str]


class RunningJob(TypedDict):
    job_id: str
    owner: str
    own_home: bool  # of the torchfleet home that was asked; else it has its name in another one


class Leftover(TypedDict):
    """A process that outlived its rank."""

    pid: int
    command: str
    ended: str | None  # the signal that ended it, None if nothing did


# --- what a node tells of itself ----------------------------------------------------------------------------------


class PortLate(TypedDict, total=False):
    address: str | None  # of its GID
    rate_gbit: float | None


class Port(PortLate):
    """A port of an RDMA device."""

    device: str
    port: int
    gid_index: int | None
    netdev: str | None


class FabricSeatLate(TypedDict, total=False):
    same_name: bool


class FabricSeat(FabricSeatLate):
    """NIC and address of a node in a network."""

    nic: str
    address: str
    network: str


class RejectedNic(TypedDict):
    nic: str
    reason: Text
    code: str  # empty: an earlier version noted it


class FabricLate(TypedDict, total=False):
    rdma: list[Port]
    rejected: list[RejectedNic]
    rdma_off: Text  # why
    nccl_gid: str
    other_rdma: str  # a kind of RDMA device that is no rail
    daemons: FabricSeat  # by which launchers start ranks, if it is another network


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


class GpuTargets(TypedDict):
    """What a torch has code for, and what the GPUs of its node need: sm_90, gfx942. Empty where it is unknown."""

    torch: list[str]
    gpus: list[str]


class Activation(TypedDict):
    """An environment of the user's own, which programs find active."""

    kind: str  # conda or venv
    prefix: str
    failed: int  # how many scripts of conda's activation could not be run
    variables: dict[str, str]  # that activation sets


class ProgramEnvironment(TypedDict):
    """The Python environment of a program (program_environment.py)."""

    path: str
    content: str  # a digest of what is installed in it; empty: it is not made, or for another torch
    kind: str  # of machine: others may need other packages


class DataFacts(TypedDict):
    """What of a data set is on a node (data_store.py). In bytes."""

    whole: bool  # it is there, and as it was when it was checked
    missing: int  # -1: not known
    free: int


class ContainerFacts(TypedDict):
    """What a node makes of the image that ranks are to run in (containers.py)."""

    engine: str  # of engines.ENGINES; empty: there is none for such an image
    image: str  # what tells it from all others: its id, or a digest of its packages
    devices: list[str]  # of the node: keys of engine_commands.DEVICES
    limits: dict[str, list[int]]  # soft and hard, by keys of engine_commands.LIMITS; -1: none
    gid: int
    groups: list[int]  # the user's other groups
    user_home: str
    has_environment: bool  # Charliecloud's file of variables is in it
    flaw: ImageFlaw
    said: Text  # by the engine, of the flaw


class ImageFacts(TypedDict):
    """What ranks find where they run: on the node, or in an image."""

    interpreter: str  # for our own code
    glibc: bool  # whether its C library is glibc, which our MPIs from wheels need
    python: str
    python_wanted: str
    torch: dict[str, str] | None
    gpu_targets: GpuTargets
    launcher: FoundLauncher
    backends: list[str]
    accelerators: dict[str, int]
    activation: Activation | None  # None: the interpreter is the usual one, or in no environment


class SlurmPrograms(TypedDict):
    """Slurm's programs on a node. Empty texts: it has none."""

    slurmd: str
    version: str  # of slurmd
    srun: str


@final  # so that a field tells the one from the other
class NodeFacts(Seat, JobState, ImageFacts):
    """What a plan is made of (survey.py)."""

    cwd: str
    tmpdir: str
    uid: int
    hostname: str
    machine: str  # what uname names the processor; empty if it did not say
    nics: list[str]
    slurm: SlurmPrograms | None  # None: the launcher is none of Slurm's
    free_bytes: int
    container: ContainerFacts | None  # None: ranks run on the node itself
    script: str  # sha256 of a script that is not shipped; empty: it was not asked for, or is not there
    port: int | None
    clock_offset: float  # seconds by which the node's clock is ahead of the head's: the head measures it
    lost_address: str  # of fabric.json, which the node no longer has; empty if it has all
    data: DataFacts | None  # None: it was not asked for
    program: ProgramEnvironment | None  # None: it was not asked for


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
    cpu_seconds: float  # of its program, and of what that waited for
    peak_bytes: int  # of memory: the most that one process of it held
    error_code: RankError
    error: Text
    ended_by_us: bool
    stopped: bool  # torchrun's agent asked it to end, to start it again with the others
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

    reason: EndReason
    detail: Text
    at: float


class NodeReportLate(TypedDict, total=False):
    evidence: list[Evidence]  # of where its ranks hung, if job_timeout ended the job
    usage: NodeUsage | None  # what its ranks took of it; None: nothing was read


class NodeReport(NodeReportLate):
    """What the head needs to know of a node for the result. `records` and `lines` by rank."""

    records: dict[str, RankRecord]
    lines: dict[str, tuple[str, Text]]  # stream and last line
    leftovers: list[Leftover]
    launcher: LauncherExit
    metrics: list[tuple[str, int, Metric]]  # name, rank, value


class ResultRank(TypedDict):
    """One of result.ranks. What is None is not known: the rank left no record, or has not ended."""

    rank: int
    host: str
    state: RankState
    rc: int | None
    signal: int | None
    seconds: float | None
    cpu_seconds: float | None
    peak_bytes: int | None
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

    code: NoteCode
    text: Text


class Result(TypedDict):
    """result.json, as docs/result.schema.json describes it."""

    job_id: str
    state: FinalState
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
    usage: Usage
    notes: list[Note]


class Artifact(TypedDict):
    """A file that a rank wrote and that was sent."""

    path: str  # below the working directory of the ranks
    bytes: int
    sha256: str


class Artifacts(TypedDict):
    """What a node sent of what its ranks wrote (artifacts.py)."""

    files: list[Artifact]
    left_out: dict[str, int]  # how many, by one of artifacts.LEFT_OUT
    unmatched: list[Text]  # patterns that matched nothing there
    refused: str  # one of artifacts.REFUSALS: why it sent nothing
