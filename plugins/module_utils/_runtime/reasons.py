# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why a job ends, and why a rank failed: codes, by which programs decide, and their sentences, for people only."""

from __future__ import annotations

import signal
from typing import Iterable, NamedTuple

TIMED_OUT, CANCELLED, LOST = "timed_out", "cancelled", "lost"
RANK_FAILED, WRAPPER_DIED, LAUNCHER_DIED, GUARD_DIED = "rank_failed", "wrapper_died", "launcher_died", "guard_died"
NOT_STARTED, SAVED = "not_started", "saved"
# Every reason to end a job, with the state that the job gets unless all of its ranks succeeded.
STATES = {
    TIMED_OUT: "timed_out",
    CANCELLED: "cancelled",
    LOST: "lost",
    RANK_FAILED: "failed",
    WRAPPER_DIED: "failed",
    LAUNCHER_DIED: "failed",
    GUARD_DIED: "failed",
    NOT_STARTED: "failed",
    SAVED: "saved",
}
# Of a program that has saved its work and asks to be run again: EX_TEMPFAIL of sysexits.h.
EXIT_SAVED = 75

MISPLACED, OUTPUT_LOST, DISK_FULL = "misplaced", "output_lost", "disk_full"
# Every code of an error in the record of a rank. A rank that ends by itself, with whatever status, has none.
RANK_ERRORS = ("", MISPLACED, WRAPPER_DIED, OUTPUT_LOST, DISK_FULL)
# Signals by which programs die. Others that end a process by default (SIGUSR1, SIGALRM) are ends that somebody planned.
DEADLY = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS),
    *(signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE, signal.SIGTERM, signal.SIGXCPU, signal.SIGXFSZ),
    signal.SIGSYS,
)
ITS_WRAPPER_DIED = "its wrapper died"


class Reason(NamedTuple):
    """Why a job ends."""

    code: str  # one of STATES
    detail: str  # a sentence


SUPERVISOR_DIED = Reason(LOST, "the supervisor died")
SUPERVISOR_STOPPED = Reason(LOST, "the supervisor was stopped")
CONTROLLER_DIED = Reason(LOST, "the controller died")
HEAD_GONE = Reason(LOST, "the head is gone")
THE_GUARD_DIED = Reason(GUARD_DIED, "the guard died")


def silent(who: str, seconds: float) -> Reason:
    """`who`: the supervisor or the head, of which nothing came for the lease."""
    return Reason(LOST, f"the {who} was silent for {seconds:g} s")


def node_lost(name: str, how: str) -> Reason:
    return Reason(LOST, f"{name} is lost: {how}")


def timed_out(seconds: float) -> Reason:
    return Reason(TIMED_OUT, f"job_timeout of {seconds:g} s")


def signalled(name: str, whom: str) -> Reason:
    """`name` of the signal that a person, or a batch system, sent."""
    return Reason(CANCELLED, f"{name} to {whom}")


def rank_failed(rank: int) -> Reason:
    return Reason(RANK_FAILED, f"rank {rank} failed")


def wrapper_died(rank: int) -> Reason:
    return Reason(WRAPPER_DIED, f"the wrapper of rank {rank} died")


def others_run_on(rank: int, seconds: float) -> Reason:
    """`rank`: the first that had saved its work and exited; `seconds` that the others had to do the same."""
    return Reason(SAVED, f"rank {rank} saved its work and exited, and others still ran {seconds:g} s later")


def not_started(hosts: Iterable[str], seconds: float) -> Reason:
    return Reason(NOT_STARTED, f"ranks on {', '.join(sorted(hosts))} not started after {seconds:.0f} s")


def launcher_ended(name: str, host: str, status: int) -> Reason:
    """`status`: as a shell has it, so 128 + n of a launcher that signal n killed; prted has 213 of its own."""
    killed = 128 < status <= 128 + signal.SIGRTMAX
    how = f"was killed by {signal_name(status - 128)}" if killed else f"ended with status {status}"
    return Reason(LAUNCHER_DIED, f"{name} on {host} {how}")


def launcher_killed(host: str, number: int) -> Reason:
    """`number` of the signal that ended the launcher, or its daemon, on that host."""
    return Reason(LAUNCHER_DIED, f"the launcher's process on {host} was killed by {signal_name(number)}")


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
