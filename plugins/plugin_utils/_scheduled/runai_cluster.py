# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A cluster with Run:ai: its own program starts and ends the workload, kubectl does all else.

Source of the command lines: `runai training pytorch` (docs.nvidia.com/run-ai, 2.18 to 3.0). What it says is for people;
exit statuses decide.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence

from . import bounded_program
from .bounded_program import Exceeded
from .kubectl import SECONDS, KubeCode, Kubectl, KubeError, first_line
from .pod_kinds import KINDS

PROGRAM = "runai"
VERBS = (PROGRAM, "training", "pytorch")  # of versions 2 and 3; version 1 does not know them
SAID_BYTES = 1 << 20  # of its output
HELP_SECONDS = 15.0  # for its own help, which asks nobody
PAUSE_SECONDS = 1.0  # between two looks whether the pods are gone
NOT_THERE = f"{PROGRAM} is not on your PATH"
TOO_OLD = f"{PROGRAM} on your PATH has no `training pytorch submit`, so it is of version 1, which mounts no ConfigMap"


class RunaiProgram:
    """The user's own program of Run:ai, with its ways to log in. `project`: where workloads are."""

    def __init__(self, project: str) -> None:
        self.project = project

    def run(self, *words: str, seconds: float = SECONDS) -> None:
        """Run a command line. KubeError, with the first line that the program said."""
        told = " ".join(words[:4])
        try:
            done = bounded_program.run(words, b"", seconds, SAID_BYTES)
        except FileNotFoundError:
            raise KubeError(KubeCode.NOT_STARTED, NOT_THERE, "runai") from None
        except OSError as error:
            why = f"{PROGRAM} on your PATH cannot be started: {error.strerror}"
            raise KubeError(KubeCode.NOT_STARTED, why, "runai") from None
        if done.exceeded == Exceeded.SIZE:
            much = f"{told} printed more than {SAID_BYTES >> 20} MiB, and was ended"
            raise KubeError(KubeCode.NO_ANSWER, much, "runai")
        if done.exceeded:
            raise KubeError(KubeCode.NO_ANSWER, f"{told} did not end in {seconds:.0f} s", "runai")
        if done.status:
            said = first_line(done.stderr if done.stderr.strip() else done.stdout)
            raise KubeError(KubeCode.FAILED, f"{told}: {said}", "runai")

    def succeeds(self, *words: str) -> bool:
        """Whether a command line ends with status 0."""
        try:
            self.run(*VERBS, *words)
        except KubeError:
            return False
        return True

    def delete(self, name: str) -> None:
        """Delete a workload. KubeError, unless it is not there."""
        of = ("-p", self.project)
        try:
            self.run(*VERBS, "delete", name, *of)
        except KubeError:
            if self.succeeds("describe", name, *of) or not self.succeeds("list", *of):
                raise


def lacking() -> str:
    """Return why nothing can be submitted to Run:ai from here; empty if it can."""
    if not shutil.which(PROGRAM):
        return NOT_THERE
    try:
        RunaiProgram("").run(*VERBS, "submit", "--help", seconds=HELP_SECONDS)
    except KubeError as error:  # one that hangs, or does not start, says nothing of its version
        return TOO_OLD if error.code == KubeCode.FAILED else error.told
    return ""


class RunaiCluster(Kubectl):
    """kubectl for a workload of Run:ai.

    `where`: context and namespace; `name` of the workload; `argv` submits it, and is empty if it may be there.
    """

    def __init__(self, where: tuple[str, str], project: str, name: str, argv: Sequence[str] = ()) -> None:
        super().__init__(*where, container=KINDS["runai"].container, target=PROGRAM)
        self.runai, self.name, self.argv = RunaiProgram(project), name, tuple(argv)
        self.there = not argv  # whether the workload may be there

    def begin(self) -> None:
        """Submit the workload. KubeError, which names one that is there though it was refused: it may be another's."""
        self.there, of = True, (self.name, "-p", self.runai.project)
        try:
            self.runai.run(*self.argv)
        except KubeError as error:
            self.there = error.code == KubeCode.NO_ANSWER
            if error.code == KubeCode.FAILED and self.runai.succeeds("describe", *of):
                ends = " ".join((*VERBS, "delete", *of))
                told = f"{error.told}; a workload of that name is there, and was left alone: {ends}"
                raise KubeError(KubeCode.FAILED, told, PROGRAM) from None
            raise

    def delete(self, selector: str, wait: bool, seconds: float = SECONDS) -> list[str]:
        """Delete the workload, then, after its pods, what a selector finds. KubeError.

        The pods are Run:ai's: whoever deletes one of a workload that is there gets another one. Where the workload
        cannot be deleted all else stays, for clean.yml finds the job by it.
        """
        if self.there:
            self.runai.delete(self.name)
            self.there = False
        if not wait:
            return []
        until = time.monotonic() + seconds
        while self.rows("pods", selector) and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)
        return super().delete(selector, wait, seconds)

    def left(self, selector: str) -> list[str]:
        """Return the names of what is there, the workload of Run:ai among them. KubeError."""
        return [*([f"workload {self.name} of Run:ai"] if self.there else []), *super().left(selector)]
