"""The fault matrix as a table: what is done to whom, and what must be true afterwards. docs/fault-matrix.md shows it.

A job of four ranks runs on the four nodes n1 (the head) to n4, one on each. Every rank ignores SIGTERM, and has a child
in a session of its own and a daemon (program/steady.py). `known`: the faults of the reference that a row stands for.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.driver import END_SECONDS, SCRIPTS
from tests.faults import deeds
from tests.faults.bed import PROGRAM
from tests.faults.deeds import Deed, all_of, nothing, signal_part, tell, to_node, wait

OWN = ("openmpi", "torchrun", "mpich", "intelmpi")  # whose daemons are the job's
SLURM = ("srun", "sbatch")  # whose daemons are the site's
LAUNCHERS = (*OWN, *SLURM)
MPIS = ("openmpi", "mpich", "intelmpi")
ANY = -1  # rank: whichever
LEASE = 10.0
LEASED = LEASE + END_SECONDS  # within which what waits for a lease is over
GIVEN_UP = 20.0 + END_SECONDS  # within which what waits for the kernel to give up a connection is over
TWICE = 2 * END_SECONDS  # the time to save of the rank that is blamed, then that of the others
UNKILLABLE = 75.0  # until a job gives up a process that SIGKILL does not end: twice the longest grace, and some
SLURM_MINUTE = 60.0 + 30.0 + 5.0 + END_SECONDS  # of a limit, until slurmctld looks, and its KillWait
JOBS = deeds.JOBS


@dataclass(frozen=True)
class Row:
    """One fault.

    `hosts`, `rank`: what first_failure must name; no host: there must be none; rank None: it is no rank's. `within`
    (seconds): when nothing is left on any node but those in `late`, which end their part once `undo` is done, and in
    `cleaned`, where clean.yml does. `goes_on`: the job lives through it, and is then told to finish. `fetched`: whether
    the playbook itself brings the run home, else clean.yml does. `rest`: clean.yml brings what a lost node has.
    `starts`: whether the ranks ever run. `whole`: all that ranks flushed is home. `down`: the node that loses power.
    """

    id: str
    known: str
    what: str
    do: Deed
    states: tuple[str, ...] = ("failed",)
    rc: int | None = None
    hosts: tuple[str, ...] = ()
    rank: int | None = ANY
    cause: str = ""
    program: str = "none"
    culprit: int = 1
    given: Mapping[str, Any] = field(default_factory=dict)
    before: Deed = nothing
    undo: Deed = nothing
    within: float = END_SECONDS
    late: tuple[str, ...] = ()
    cleaned: tuple[str, ...] = ()
    goes_on: bool = False
    fetched: bool = True
    rest: bool = False
    starts: bool = True
    whole: bool = True
    down: str = ""
    launchers: tuple[str, ...] = LAUNCHERS
    script: Path = PROGRAM

    @property
    def needs_cleaning(self) -> bool:
        """Whether clean.yml brings its run home, or part of it."""
        return bool(not self.fetched or self.cleaned or self.rest)


def failing(name: str, known: str, what: str, rc: int, cause: str = "", **more: Any) -> Row:
    """Return the row of a rank on n2 that fails by itself."""
    return Row(name, known, what, tell(), rc=rc, hosts=("n2",), rank=1, cause=cause, program=name, **more)


def living(name: str, known: str, what: str, do: Deed, **more: Any) -> Row:
    """Return the row of a job that goes on as if nothing had happened."""
    return Row(name, known, what, do, states=("succeeded",), rc=0, goes_on=True, **more)


def hanging(name: str, known: str, what: str, case: str) -> Row:
    """Return the row of a rank on n2 that keeps the others waiting in a collective, until the job's time is over."""
    limit = 90.0
    given = {"job_timeout": limit, "backend": "gloo", "job_env": {"CULPRIT": "1"}}
    more: dict[str, Any] = {"program": case, "given": given, "script": SCRIPTS / "hangs.py", "whole": False}
    states, within = ("timed_out",), limit + END_SECONDS
    return Row(name, known, what, nothing, states, 124, ("n2",), 1, "time-over", within=within, **more)


WRAPPER = signal_part("n2", "wrapper", signal.SIGKILL)
WATCHED: dict[str, Any] = {"hosts": ("n2",), "rank": 1, "cause": "wrapper-died"}
RANKS = (
    failing("exit", "F14 F22", "a rank exits with status 7", 7),
    failing("raise", "F14", "a rank raises an exception", 1),
    failing("killed", "F12 F20", "a rank is killed by SIGKILL", 137, "killed"),
    failing("segfault", "F13", "a rank reads memory that is not its own", 139, "segfault"),
    failing("abort", "F16", "a rank calls MPI_Abort(7)", 7, launchers=MPIS),
    failing("shm", "F30", "a rank fills /dev/shm through a mapping", 135, "bus-error",
            before=deeds.small_disk("n2", "/dev/shm", "8m"), undo=deeds.unmount("n2", "/dev/shm")),
    Row(
        "memory", "F12", "the kernel kills a rank, whose control group is out of memory", deeds.short_of_memory("n2"),
        rc=137, hosts=("n2",), rank=1, cause="killed", program="memory", undo=deeds.remove_groups,
    ),
    living("early", "F15", "a rank leaves with status 0, the others go on", all_of(tell(), wait(1)), program="early"),
    hanging("hang", "F18", "a rank sleeps, the others wait in all_reduce; `job_timeout` of 90 s passes", "own_code"),
    hanging("rank-stop", "F17", "a rank gets SIGSTOP, the others wait for it; the same", "is_stopped"),
    living("flood", "F32", "each rank writes 500,000 lines as fast as it can", nothing, program="flood"),
    living("binary", "F33", "each rank writes 24 MiB of bytes without an end of line", nothing, program="binary"),
    Row("wrapper", "F35", "the process that watches a rank is killed", WRAPPER, launchers=OWN, **WATCHED),
    # Nothing of ours is above it under Slurm: a daemon without a mark is known once the sampler has noted it.
    Row("wrapper-late", "F35", "the same after two seconds", all_of(wait(2), WRAPPER), launchers=SLURM, **WATCHED),
)  # fmt: skip


def killed(what: str, node: str, name: str, known: str = "F35", launchers: tuple[str, ...] = LAUNCHERS) -> Row:
    """Return the row of a part of ours, or of the launcher, that is killed on a node."""
    lost = what == "supervisor"
    more: dict[str, Any] = {"states": ("lost",) if lost else ("failed",), "rank": ANY if lost else None}
    more["launchers"] = launchers
    text = f"SIGKILL to {name}"
    do = signal_part(node, what, signal.SIGKILL)
    return Row(f"{what}-{node}", known, text, do, hosts=(node,), fetched=(what, node) != ("supervisor", "n1"), **more)


def stopped(what: str, node: str, name: str) -> Row:
    """Return the row of a guardian that is stopped: its twin takes it for dead after some ten seconds."""
    lost = what == "supervisor"
    state: dict[str, Any] = {"states": ("lost",) if lost else ("failed",), "rank": ANY if lost else None}
    more = {"hosts": (node,), "within": 15.0, "fetched": (what, node) != ("supervisor", "n1"), **state}
    return Row(f"{what}-stop-{node}", "F35", f"SIGSTOP to {name}", signal_part(node, what, signal.SIGSTOP), **more)


PARTS = (
    killed("launcher", "n1", "the launcher on the head", "F02 F23"),
    killed("launcher", "n2", "its daemon on n2", "F09", launchers=OWN),
    living("stepd", "F09", "the same; then the ranks finish", signal_part("n2", "launcher", signal.SIGKILL),
           launchers=SLURM),
    living("launcher-stop", "F03", "SIGSTOP to the launcher; then the ranks finish",
           signal_part("n1", "launcher", signal.SIGSTOP), within=15.0),
    living("daemon-stop", "F10", "SIGSTOP to its daemon on n2; then the ranks finish",
           signal_part("n2", "launcher", signal.SIGSTOP), launchers=OWN, within=15.0),
    living("stepd-stop", "F10", "the same; it goes on when the job is over",
           signal_part("n2", "launcher", signal.SIGSTOP), launchers=SLURM, undo=deeds.go_on("n2", "slurmstepd"),
           within=15.0),
    killed("guard", "n1", "our guard on the head"),
    killed("guard", "n2", "our guard on n2"),
    killed("supervisor", "n1", "our supervisor on the head"),
    killed("supervisor", "n2", "our supervisor on n2"),
    stopped("guard", "n2", "our guard on n2"),
    stopped("supervisor", "n2", "our supervisor on n2"),
    # A daemon without a mark is known to clean.yml once the sampler has noted it.
    Row("both-n2", "F35", "after two seconds SIGKILL to guard and supervisor on n2 at once",
        all_of(wait(2), deeds.kill_both("n2")), ("lost",), rest=True, hosts=("n2",), cleaned=("n2",)),
    Row("both-n1", "F35", "after two seconds SIGKILL to guard and supervisor on the head at once",
        all_of(wait(2), deeds.kill_both("n1")), ("lost",), hosts=("n1",), cleaned=("n1",), fetched=False),
    Row("link", "F11", "SIGKILL to the head's ssh to n2", deeds.kill_link("n2"), ("lost",), hosts=("n2",)),
    living("sshd", "F11", "the SSH servers of n1 and n2 are restarted",
           all_of(deeds.restart_sshd("n1", "n2"), wait(2))),
)  # fmt: skip
SMALL = {"lease": LEASE}
CONTROLLER = (
    Row("ctrl-c", "F01 F06 F19 F21", "Ctrl-C", deeds.signal_controller(signal.SIGINT), ("cancelled",), 130),
    Row("term", "F01", "SIGTERM to `ansible-playbook`", deeds.signal_controller(signal.SIGTERM), ("cancelled",), 130),
    Row("hup", "F01", "SIGHUP to `ansible-playbook`: the terminal is closed", deeds.signal_controller(signal.SIGHUP),
        ("lost",), 1, ("n1", "n2", "n3", "n4")),
    Row("kill", "F04 F07", "SIGKILL to `ansible-playbook`", deeds.signal_controller(signal.SIGKILL), ("lost",), 1,
        ("n1", "n2", "n3", "n4")),
    Row("kill-all", "F05", "SIGKILL to all processes of the playbook", deeds.signal_controllers(signal.SIGKILL),
        ("lost",), 1, ("n1", "n2", "n3", "n4"), fetched=False),
    living("sleep", "F04", "all processes of the playbook are stopped for 14 s, longer than the lease of 10 s",
           all_of(deeds.signal_controllers(signal.SIGSTOP), wait(14), deeds.signal_controllers(signal.SIGCONT)),
           given=SMALL),
    Row("away", "F08", "nothing passes between controller and head, whose kernel gives up after 5 tries: 13 s"
        " (by itself 15: some 15 minutes)", deeds.cut_controller, ("lost",), hosts=("n1", "n2", "n3", "n4"),
        given=SMALL, within=GIVEN_UP, fetched=False, undo=deeds.heal_controller),
    Row("timeout", "F34", "`job_timeout` of 20 s passes", nothing, ("timed_out",), 124, ("n1", "n2", "n3", "n4"),
        cause="time-over", given={"job_timeout": 20}, within=20 + END_SECONDS),
)  # fmt: skip
LOST: dict[str, Any] = {"states": ("lost",), "given": SMALL, "within": LEASED, "cause": "watcher-gone"}
MACHINES = (
    Row("cut-n2", "F25", "no packet goes in or out of n2; lease 10 s", to_node("cut", "n2"), rest=True, hosts=("n2",),
        undo=to_node("heal", "n2"), **LOST),
    living("short-cut", "F26", "the same for 4 s", all_of(to_node("cut", "n2"), wait(4), to_node("heal", "n2")),
           given=SMALL),
    Row("cut-n1", "F25", "the head is cut off from the other nodes; lease 10 s", to_node("cut", "n1"),
        rest=True, hosts=("n2", "n3", "n4"), undo=to_node("heal", "n1"), **LOST),
    Row("pause-n2", "F40", "n2 is suspended; lease 10 s", to_node("pause", "n2"), rest=True, hosts=("n2",),
        late=("n2",), undo=to_node("resume", "n2"), **LOST),
    living("short-pause", "F40", "the same for 4 s", all_of(to_node("pause", "n2"), wait(4), to_node("resume", "n2")),
           given=SMALL),
    Row("pause-n1", "F40", "the head is suspended; lease 10 s", to_node("pause", "n1"), hosts=("n1", "n2", "n3", "n4"),
        late=("n1",), undo=to_node("resume", "n1"), fetched=False, **LOST),
    Row("power-n2", "F27", "n2 loses power; lease 10 s", to_node("kill", "n2"), rest=True, hosts=("n2",),
        undo=deeds.restart("n2"), down="n2", whole=False, **LOST),
    Row("power-n1", "F27", "the head loses power; lease 10 s", all_of(deeds.until_saved, to_node("kill", "n1")),
        hosts=("n1", "n2", "n3", "n4"), undo=deeds.restart("n1"), down="n1", fetched=False, whole=False, **LOST),
    Row("launch-cut", "F28", "n2 is cut off before the job is started", nothing, ("refused",),
        before=to_node("cut", "n2"), undo=to_node("heal", "n2"), starts=False, hosts=("n2",), within=15.0),
    Row("disk-n2", "F31", "the disk of n2 is full while a rank writes to it", nothing, hosts=("n2",), rank=1,
        cause="output-disk-full", program="flood", before=deeds.small_disk("n2", JOBS, "2m"),
        undo=deeds.unmount("n2", JOBS), whole=False, within=TWICE),
    Row("disk-n1", "F31", "the disk of the head is full while a rank writes to it", nothing, hosts=("n1",), rank=0,
        cause="output-disk-full", program="flood", before=deeds.small_disk("n1", JOBS, "2m"),
        undo=deeds.unmount("n1", JOBS), whole=False, within=TWICE),
    living("tmp", "F29", "/tmp of n2 is full from the start", nothing, launchers=LAUNCHERS[1:],
           before=deeds.small_disk("n2", "/tmp", "64k"), undo=deeds.unmount("n2", "/tmp")),
    Row("tmp-daemon", "F29", "the same: its daemon needs room there", nothing, hosts=("n2",), rank=None, starts=False,
        cause="launcher-daemon", launchers=LAUNCHERS[:1], before=deeds.small_disk("n2", "/tmp", "64k"),
        undo=deeds.unmount("n2", "/tmp"), within=60.0, whole=False),
    living("squat", "F37", "another user has the launchers' directories in /tmp of n2", nothing, launchers=OWN,
           before=deeds.squat("n2"), undo=deeds.unsquat("n2")),
    Row("frozen", "F39", "Ctrl-C while a rank is in state D: no signal ends it",
        all_of(deeds.freeze("n2"), deeds.signal_controller(signal.SIGINT)), ("cancelled",), 130, late=("n2",),
        within=UNKILLABLE, undo=deeds.remove_groups, whole=False),
)  # fmt: skip
TWO = (
    Row("two-ranks", "F14", "the rank on n2 is killed, 0.3 s later that on n3",
        all_of(signal_part("n2", "rank", signal.SIGKILL), wait(0.3), signal_part("n3", "rank", signal.SIGKILL)),
        hosts=("n2",), rank=1, rc=137, cause="killed"),
    Row("daemon-and-controller", "F07 F09", "SIGKILL to the launcher's daemon on n2 and to `ansible-playbook`",
        all_of(signal_part("n2", "launcher", signal.SIGKILL), deeds.signal_controller(signal.SIGKILL)),
        ("failed", "lost"), hosts=("n1", "n2", "n3", "n4")),
    Row("guard-and-supervisor", "F35", "SIGKILL to our guard on n2 and our supervisor on n3",
        all_of(signal_part("n2", "guard", signal.SIGKILL), signal_part("n3", "supervisor", signal.SIGKILL)),
        ("failed", "lost"), hosts=("n2", "n3")),
    Row("node-and-rank", "F14 F25", "n2 is cut off, and the rank on n3 is killed; lease 10 s",
        all_of(to_node("cut", "n2"), signal_part("n3", "rank", signal.SIGKILL)), ("failed",), rest=True,
        hosts=("n3",), rank=2, rc=137, cause="killed", given=SMALL, within=LEASED, undo=to_node("heal", "n2")),
)  # fmt: skip
SLURMCTLD = all_of(deeds.until_saved, deeds.kill_service("n1", "slurmctld", "all"))
UNKNOWN: dict[str, Any] = {"known": "Slurm", "launchers": SLURM}  # to the reference
SITE = (
    living("slurmctld", what="slurmctld is killed and started again; then the ranks finish",
           do=all_of(SLURMCTLD, wait(2), deeds.wake), **UNKNOWN),
    living("slurmctld-gone", what="slurmctld is killed; then the ranks finish",
           do=SLURMCTLD, undo=deeds.wake, **UNKNOWN),
    Row("slurmctld-ctrl-c", what="Ctrl-C when slurmctld has been killed", states=("cancelled",), rc=130,
        do=all_of(SLURMCTLD, deeds.signal_controller(signal.SIGINT)), undo=deeds.wake,
        **UNKNOWN),
    living("slurmd", what="slurmd on n2 is killed; then the ranks finish", do=deeds.kill_service("n2", "slurmd"),
           undo=deeds.wake, **UNKNOWN),
    Row("slurmd-exit", what="a rank on n2 exits with status 7 when slurmd there has been killed", program="exit",
        do=all_of(deeds.kill_service("n2", "slurmd"), tell()), rc=7, hosts=("n2",), rank=1, undo=deeds.wake, **UNKNOWN),
    Row("scancel", what="somebody cancels the job in Slurm", do=deeds.in_slurm("scancel"), states=("cancelled",),
        rc=130, within=2 * END_SECONDS, **UNKNOWN),  # Slurm's KillWait comes first
    Row("slurm-time", what="Slurm's time limit of a minute passes", do=nothing, given={"launcher_args": "--time=1"},
        hosts=("n1",), rank=None, cause="slurm-time", within=SLURM_MINUTE, **UNKNOWN),
    living("suspend", what="Slurm suspends the job for 4 s", **UNKNOWN,
           do=all_of(deeds.in_slurm("scontrol", "suspend"), wait(4), deeds.in_slurm("scontrol", "resume"))),
)  # fmt: skip
GROUPS: Mapping[str, tuple[Row, ...]] = {
    "A rank": RANKS,
    "A part of the job": PARTS,
    "The controller": CONTROLLER,
    "A machine, its network, its disk": MACHINES,
    "Two at once": TWO,
    "A part of Slurm": SITE,
}
ROWS: Mapping[str, Row] = {row.id: row for rows in GROUPS.values() for row in rows}
