# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why a job ends, and why a rank failed: codes, by which programs decide, and their sentences, for people only."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Iterable, Literal, Mapping, NamedTuple, Sequence, Union, get_args

from .codes import Code

if TYPE_CHECKING:
    from .job_rows import Ahead

FinalState = Literal["succeeded", "saved", "failed", "timed_out", "cancelled", "lost"]  # of a job
RankState = Literal["succeeded", "saved", "failed", "ended", "silent"]  # rank_record.rank_state() says what each means
LiveState = Literal["running", "waiting"]  # of a job that is not over
AnyState = Union[LiveState, FinalState]
FINAL_STATES: tuple[FinalState, ...] = get_args(FinalState)
RANK_STATES: tuple[RankState, ...] = get_args(RankState)


class EndReason(Code):
    """Every reason to end a job."""

    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    RANK_FAILED = "rank_failed"
    WRAPPER_DIED = "wrapper_died"
    LAUNCHER_DIED = "launcher_died"
    GUARD_DIED = "guard_died"
    NOT_STARTED = "not_started"
    SAVED = "saved"
    HUNG = "hung"


# Reasons that something died by itself, and another death may be the cause.
BY_ITSELF = (EndReason.LAUNCHER_DIED, EndReason.RANK_FAILED, EndReason.WRAPPER_DIED)


class RankError(Code):
    """Every error in the record of a rank. A rank that ends by itself, with whatever status, has none."""

    NONE = ""
    MISPLACED = "misplaced"
    WRAPPER_DIED = "wrapper_died"
    OUTPUT_LOST = "output_lost"
    DISK_FULL = "disk_full"
    OUT_OF_MEMORY = "out_of_memory"  # of its pod


class BatchEnd(Code):
    """States of a job in Slurm that Slurm, or a person there, has ended (squeue(1), job state codes)."""

    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    DEADLINE = "DEADLINE"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"


class NoteCode(Code):
    """What a note in result.json tells."""

    RANKS_NEVER_MET = "ranks_never_met"
    CANCELLED_BY_A_NODE = "cancelled_by_a_node"
    HANG_END = "hang_end"  # it was ended because it hung
    HUNG = "hung"  # who kept the others waiting when it was ended
    KEPT_WAITING = "kept_waiting"  # the same of one that took too long: it may have gone on
    NOT_STARTED_AGAIN = "not_started_again"
    NODE_AWAY = "node_away"
    NODE_REMOVED = "node_removed"
    NODE_CHANGED = "node_changed"
    PORT_TAKEN = "port_taken"


# What a detached job may find when its turn comes that it was not planned for.
NotAsPlanned = Literal[NoteCode.NODE_AWAY, NoteCode.NODE_REMOVED, NoteCode.NODE_CHANGED, NoteCode.PORT_TAKEN]


class ImageFlaw(Code):
    """What keeps a node from running ranks in an image. The words for people: plugin_utils/_launch/containers.py."""

    NONE = ""
    NO_ENGINE = "no_engine"
    ENGINE_FAILED = "engine_failed"
    NO_IMAGE = "no_image"
    NO_SHELL = "no_shell"
    NO_PYTHON = "no_python"
    OLD_PYTHON = "old_python"
    NOT_STARTED = "not_started"
    NO_NAMESPACES = "no_namespaces"


class Unseen(Code):
    """Why it is not known which containers an engine has."""

    NO_ENGINE = "no_engine"  # it was there when jobs used it
    ENGINE_FAILED = "engine_failed"


# The state that a job gets that was ended, unless all of its ranks succeeded.
STATES: Mapping[EndReason, FinalState] = {
    EndReason.TIMED_OUT: "timed_out",
    EndReason.CANCELLED: "cancelled",
    EndReason.LOST: "lost",
    EndReason.RANK_FAILED: "failed",
    EndReason.WRAPPER_DIED: "failed",
    EndReason.LAUNCHER_DIED: "failed",
    EndReason.GUARD_DIED: "failed",
    EndReason.NOT_STARTED: "failed",
    EndReason.SAVED: "saved",
    EndReason.HUNG: "failed",
}
# What ends a round only, where torchrun's agents start ranks again. A node that is lost, an agent that died or a time
# that is over ends the job.
OF_A_ROUND = (EndReason.RANK_FAILED, EndReason.WRAPPER_DIED, EndReason.SAVED)
# Of a program that has saved its work and asks to be run again: EX_TEMPFAIL of sysexits.h.
EXIT_SAVED = 75

# Signals by which programs die. Others that end a process by default (SIGUSR1, SIGALRM) are ends that somebody planned.
DEADLY = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS),
    *(signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE, signal.SIGTERM, signal.SIGXCPU, signal.SIGXFSZ),
    signal.SIGSYS,
)
ITS_WRAPPER_DIED = "its wrapper died"
RANK_OUT_OF_MEMORY = "killed by SIGKILL, for its pod has no more memory (OOMKilled)"


class Reason(NamedTuple):
    """Why a job ends."""

    code: EndReason
    detail: str  # a sentence


def reason_in(message: Mapping[str, object]) -> Reason:
    """Return the reason that a message or end.json has. ValueError if its code is none."""
    return Reason(EndReason(message["reason"]), str(message["detail"]))


SUPERVISOR_DIED = Reason(EndReason.LOST, "the supervisor died")
SUPERVISOR_STOPPED = Reason(EndReason.LOST, "the supervisor was stopped")
CONTROLLER_DIED = Reason(EndReason.LOST, "the controller died")
HEAD_GONE = Reason(EndReason.LOST, "the head is gone")
THE_GUARD_DIED = Reason(EndReason.GUARD_DIED, "the guard died")
# Of ansible-playbook, whose job it is.
TERMINAL_CLOSED = Reason(
    EndReason.LOST, "the terminal of ansible-playbook was closed; tmux, nohup or systemd-run keep a long run"
)
PLAYBOOK_KILLED = Reason(EndReason.LOST, "ansible-playbook was killed")
CANCELLED_BY_USER = Reason(EndReason.CANCELLED, "playbooks/jobs.yml -e do=cancel")
# Of a job that waits in the queue without its controller.
DIED_WAITING = Reason(
    EndReason.LOST,
    "the process that kept the job's place in the queue was killed or failed; the job never started",
)
TAKEN_OUT_OF_QUEUE = Reason(EndReason.CANCELLED, "its ticket was taken out of the queue")


def silent(who: str, seconds: float) -> Reason:
    """`who`: the supervisor or the head, of which nothing came for the lease."""
    return Reason(EndReason.LOST, f"the {who} was silent for {seconds:g} s")


def node_lost(name: str, how: str) -> Reason:
    return Reason(EndReason.LOST, f"{name} is lost: {how}")


def timed_out(seconds: float) -> Reason:
    return Reason(EndReason.TIMED_OUT, f"job_timeout of {seconds:g} s")


def hung(seconds: float) -> Reason:
    """`seconds` without a sign of life."""
    return Reason(EndReason.HUNG, f"two looks found the same hang, {seconds:.0f} s without a sign of life (hang_end)")


def signalled(name: str, whom: str) -> Reason:
    """`name` of the signal that a person, or a batch system, sent."""
    return Reason(EndReason.CANCELLED, f"{name} to {whom}")


def rank_failed(rank: int) -> Reason:
    return Reason(EndReason.RANK_FAILED, f"rank {rank} failed")


def stopped_by_agent(rank: int) -> Reason:
    """`rank`: whose agent stops its ranks, because another rank failed, or because it was asked to end."""
    return Reason(EndReason.RANK_FAILED, f"torchrun's agent stopped rank {rank}")


def wrapper_died(rank: int) -> Reason:
    return Reason(EndReason.WRAPPER_DIED, f"the wrapper of rank {rank} died")


def others_run_on(rank: int, seconds: float) -> Reason:
    """`rank`: the first that had saved its work and exited; `seconds` that the others had to do the same."""
    return Reason(EndReason.SAVED, f"rank {rank} saved its work and exited, and others still ran {seconds:g} s later")


def all_done(rank_hosts: Iterable[str]) -> Reason:
    """`rank_hosts`: nodes whose ranks have saved their work; all ranks are done."""
    return Reason(EndReason.SAVED, f"ranks on {', '.join(sorted(rank_hosts))} saved their work and exited")


def not_started(hosts: Iterable[str], seconds: float) -> Reason:
    return Reason(EndReason.NOT_STARTED, f"ranks on {', '.join(sorted(hosts))} not started after {seconds:.0f} s")


def never_started(problem: object) -> Reason:
    """`problem`: why a job that waited, or was to be started again, could not be."""
    return Reason(EndReason.NOT_STARTED, str(problem))


def nodes_not_started(missing: int, count: int, seconds: float, why: str, units: str = "nodes") -> Reason:
    """`why`: what the scheduler says of the first of them, or an empty text; `units`: what people call them."""
    said = f": {why}" if why else ""
    return Reason(EndReason.NOT_STARTED, f"{missing} of {count} {units} did not start in {seconds:.0f} s{said}")


def pod_out_of_memory(host: str) -> Reason:
    """Of a pod that the kernel killed whole, so that nothing in it could say so."""
    return Reason(EndReason.GUARD_DIED, f"all of {host} was killed, for the pod has no more memory (OOMKilled)")


def waited_too_long(seconds: float, ahead: Sequence[Ahead]) -> Reason:
    """`seconds` of queue_timeout; `ahead`: the jobs that it still waited for."""
    first = ahead[0] if ahead else None
    whom = f", the first is {first['job_id']} of {first['owner']}, which is {first['state']}" if first else ""
    return Reason(EndReason.TIMED_OUT, f"it waited for {seconds:g} s (queue_timeout): {len(ahead)} ahead{whom}")


def launcher_ended(name: str, host: str, status: int) -> Reason:
    """`status`: as a shell has it, so 128 + n of a launcher that signal n killed; prted has 213 of its own."""
    killed = 128 < status <= 128 + signal.SIGRTMAX
    how = f"was killed by {signal_name(status - 128)}" if killed else f"ended with status {status}"
    return Reason(EndReason.LAUNCHER_DIED, f"{name} on {host} {how}")


def ended_in_queue(state: BatchEnd) -> Reason:
    """`state` that Slurm had for the job when its processes died, and we had not taken it back."""
    if state == BatchEnd.CANCELLED:
        return Reason(EndReason.CANCELLED, "somebody cancelled it in Slurm (scancel)")
    return Reason(EndReason.LAUNCHER_DIED, f"Slurm ended the job: {state}")


def launcher_killed(host: str, number: int) -> Reason:
    """`number` of the signal that ended the launcher, or its daemon, on that host."""
    return Reason(EndReason.LAUNCHER_DIED, f"the launcher's process on {host} was killed by {signal_name(number)}")


def exit_text(status: int) -> str:
    """Return an exit status in words, with the signal if it is one by which shells report a program that died of it.

    A shell script as a rank, or a container's runtime, exits with 128 + the signal's number (POSIX, sh: exit status).
    """
    number = status - 128
    return f"exit status {status}" + (f" ({signal_name(number)}, as shells report it)" if number in DEADLY else "")


def signal_name(number: int) -> str:
    """Return "SIGKILL" for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
