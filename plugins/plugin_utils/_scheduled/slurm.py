# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Slurm's programs on the head: lists of words in, rows out. What they print is checked here: shape and bounds.

The head is the one machine that is asked, over the SSH that Ansible would use or on this very machine.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.codes import Code
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import printable
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from . import bounded_program
from .bounded_program import Exceeded

SECONDS = 30.0  # of one command
ANSWER_BYTES = 8 << 20
ROWS_MOST = 10_000
TEXT = 500  # characters of what Slurm says
REASON = 200  # of why a job waits: it may name nodes
NO_REASON = "None"
NUMBER = re.compile(r"[0-9]{1,18}(_[0-9]{1,9})?\Z")
WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,60}\Z")  # of a state or a reason (slurm.h)
# The names may have any character but those of a comment, which comes last.
FORMAT = "%i|%T|%r|%j|%k"
COMMENT = "torchfleet "  # begins the comment of our jobs; the owner follows
OURS = re.compile(r"torchfleet-(.+)-([0-9a-f]{12})\Z")
ENDED = (
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE"),
    "BOOT_FAIL",
)
# A shell may have these for its user's eyes: they leave jobs out of what is shown or ended (squeue(1), scancel(1)).
OF_OTHERS = {
    "squeue": tuple(f"SQUEUE_{name}" for name in (
        *("ACCOUNT", "ALL", "ARRAY", "FEDERATION", "FORMAT", "FORMAT2", "LICENSES", "LOCAL", "NAMES", "PARTITION"),
        *("PRIORITY", "QOS", "SIBLING", "SORT", "STATES", "USERS"),
    )),
    "scancel": tuple(f"SCANCEL_{name}" for name in (
        *("ACCOUNT", "BATCH", "CRON", "CTLD", "FULL", "HURRY", "INTERACTIVE", "NAME", "PARTITION", "QOS", "STATE"),
        *("USER", "VERBOSE", "WCKEY"),
    )),
}  # fmt: skip
HINT = 'Try "'  # begins the line after that on an unknown option
# srun and our program say which failed by their own words; ssh, env and shells by these statuses.
NOT_REACHED, NO_PROGRAM = 255, 127


class SlurmCode(Code):
    """Why a program of Slurm gave no answer that counts."""

    NOT_REACHED = "slurm_head_not_reached"
    NO_PROGRAM = "slurm_no_program"
    NO_ANSWER = "slurm_no_answer"
    FAILED = "slurm_failed"


class SlurmError(InputError):
    """A program of Slurm failed, or there is none. One line, with the first that it said, and a code."""

    def __init__(self, code: SlurmCode, told: str) -> None:
        super().__init__("target", "slurm", told)
        self.code, self.told = code.value, told


class Row(NamedTuple):
    """A job in Slurm's queue. `state` and `reason` are Slurm's own words for them; empty: it has none that we know.

    `told`: the reason as people read it, which may be a sentence.
    """

    number: str
    state: str
    reason: str
    name: str
    comment: str
    told: str = ""

    @property
    def job_id(self) -> str:
        """Return the id of a job of ours; empty of others."""
        found = OURS.match(self.name)
        return found.group(1) if found and self.comment.startswith(COMMENT) else ""

    @property
    def owner(self) -> str:
        """Return who started it, as that person says."""
        return self.comment[len(COMMENT) :]

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs, or will. One that completes is being taken off its nodes."""
        return self.state in ENDED


class Slurm:
    """Slurm as its users see it on the head. Every call is bounded in time and in what it prints.

    `ssh`: words that run a command on a head elsewhere; none if it is this machine. `name`: of the head.
    """

    def __init__(self, name: str, ssh: Sequence[str] = (), srun: str = "", seconds: float = SECONDS) -> None:
        """`srun`: its path on the head; empty: by its name. The others are beside it. `seconds` that one may take."""
        self.name, self.ssh, self.seconds = name, tuple(ssh), seconds
        self.folder = srun.rpartition("/")[0]

    def program(self, name: str) -> str:
        """Return the path of a program of Slurm."""
        return f"{self.folder}/{name}" if self.folder else name

    def words(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on the head."""
        return [*self.ssh, "exec " + shlex.join(argv)] if self.ssh else list(argv)

    def run(self, program: str, *words: str) -> str:
        """Return what a program prints. SlurmError."""
        try:
            argv = self.words([*without(program), self.program(program), *words])
            done = bounded_program.run(argv, b"", self.seconds, ANSWER_BYTES)
        except OSError as error:
            raise self.missing(program, error.strerror or "") from None
        if done.exceeded:
            how = f"gave no answer in {self.seconds:.0f} s" if done.exceeded == Exceeded.TIME else "printed without end"
            raise SlurmError(SlurmCode.NO_ANSWER, f"{program} on {self.name} {how}")
        said = error_line(done.stderr)
        if self.ssh and done.status == NOT_REACHED:
            raise self.not_reached(said)
        if done.status == NO_PROGRAM:
            raise self.missing(program, said)
        if done.status:
            raise SlurmError(SlurmCode.FAILED, f"{program} on {self.name}: {said}")
        return done.stdout.decode("utf-8", "replace")

    def missing(self, program: str, said: str) -> SlurmError:
        """Return the error for a head without a program of Slurm."""
        how = "the head is the machine on which you type srun; another path is torchfleet_srun of that host"
        return SlurmError(SlurmCode.NO_PROGRAM, f"no {program} on {self.name} ({said or 'not found'}): {how}")

    def not_reached(self, said: str) -> SlurmError:
        """Return the error for a head that SSH does not reach."""
        return SlurmError(SlurmCode.NOT_REACHED, f"{self.name}: {said}; try: ansible {self.name} -m ping")

    def jobs(self, *which: str) -> list[Row]:
        """Return jobs in the queue of the user that logs in there: whoever sees a name there can give it to a job.

        `which`: options of squeue. SlurmError.
        """
        text = self.run("squeue", "--me", "--noheader", f"--format={FORMAT}", *which)
        return [row for line in text.splitlines()[:ROWS_MOST] if (row := row_of(line))]

    def cancel(self, numbers: Sequence[str]) -> None:
        """Cancel jobs by their numbers. One that has ended meanwhile is no error. SlurmError."""
        if numbers:
            self.run("scancel", "--quiet", *numbers)


def without(program: str) -> list[str]:
    """Return words that run a program without the variables of its user that are for other purposes (env(1))."""
    return ["env", *(word for name in OF_OTHERS.get(program, ()) for word in ("-u", name))]


def row_of(line: str) -> Row | None:
    """Return a row of squeue, None for what is none."""
    number, *rest = printable(line)[: 4 * TEXT].strip().split("|", 4)
    if len(rest) != 4 or not NUMBER.match(number):
        return None
    state, reason, name, comment = rest
    reason = "" if reason == NO_REASON else reason
    state, known = (word if WORD.match(word) else "" for word in (state, reason))
    return Row(number, state, known, name, comment, reason[:REASON])


def error_line(said: bytes) -> str:
    """Return the line that says what failed, bounded: the first that names an error, for others say that a job waits.

    Else the last line: SSH prints the banner of a login node first, and getopt's hint is the only one that comes late.
    """
    lines = [printable(line).strip()[:TEXT] for line in said.decode("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith(HINT)]
    return next((line for line in lines if " error: " in line), next(reversed(lines), "it failed"))
