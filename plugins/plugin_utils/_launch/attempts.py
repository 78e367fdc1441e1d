# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job that is started again: each attempt is a job and a run of its own, and they share a checkpoint directory."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import field, json_in
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.restart_rule import kept_out
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import NodeFacts
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.restarts import Ended
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import StopWatch

from .connection import ASK_SECONDS
from .request import Request
from .run_directory import write_private

LIST_BYTES = 1 << 20
ATTEMPTS = "attempts.json"  # in the run directory of every attempt but a single one


@dataclass(frozen=True)
class Attempt:
    """One start of a job. `first`: the id of the first one; empty where no checkpoint directory is asked for.

    `after`: the state of the attempt before. `hosts`: the nodes that this had, in rank order; `size`: its ranks, and
    `kept_out`: nodes that failed twice. All are empty of the first attempt.
    """

    job_id: str = ""
    restarts: int = 0
    first: str = ""
    directory: str | None = None
    after: str = ""
    hosts: tuple[str, ...] = ()
    size: int = 0
    kept_out: tuple[str, ...] = ()

    def directory_on(self, fact: NodeFacts) -> str:
        """Return the checkpoint directory on a node, the same for all attempts; empty: none."""
        if self.directory:
            return self.directory
        return f"{fact['home']}/checkpoints/{self.first}" if self.first else ""

    @property
    def reason(self) -> tuple[str, str]:
        """Return why the checkpoint directory is this one, and where that comes from."""
        if self.directory:
            return "checkpoint_dir", "user"
        return "all attempts of this job have it (max_restarts)", "default"


ONLY = Attempt()


def attempt_of(
    request: Request, first: str, ended: Sequence[Ended], hosts: Sequence[str] = (), size: int = 0
) -> Attempt:
    """Return the next attempt of a job. `first`: the id of its first one; `ended`: the attempts before.

    `hosts`: the nodes of the last one in rank order; `size`: the ranks of the first one.
    """
    wanted = request.max_restarts > 0 and not request.checkpoint_dir
    return Attempt(
        job_id=id_of(first, len(ended)),
        restarts=len(ended),
        first=first if wanted else "",
        directory=request.checkpoint_dir,
        after=ended[-1]["state"] if ended else "",
        hosts=tuple(hosts) if ended else (),
        size=size if ended else 0,
        kept_out=tuple(kept_out(ended)),
    )


def id_of(first: str, restarts: int) -> str:
    """Return the job id of an attempt: that of the first one, and the number of the restart."""
    return f"{first}-r{restarts}" if restarts else first


def note_attempts(run_dir: Path, ended: Sequence[Ended]) -> None:
    """Write the list of all attempts so far into a run directory. OSError."""
    write_private(run_dir / ATTEMPTS, json.dumps({"attempts": list(ended)}, indent=2) + "\n")


def rounds_in(request: Request, answer: Mapping[str, object]) -> dict[str, int]:
    """Return how often the ranks of a job that is over were started, if torchrun's agents were to start them again.

    `answer`: what the task returns. The list is in the run directory if that was more than once.
    """
    if not request.options.rounds or "state" not in answer:
        return {}
    found = json_in(str(Path(str(answer["run_dir"])) / ATTEMPTS), LIST_BYTES)
    rows = field(found, "attempts", list)
    return {"attempts": len(rows) if rows else 1}


def rest(seconds: float) -> None:
    """Let some seconds pass between two attempts. Stopped if the user stops it."""
    until = time.monotonic() + seconds
    with StopWatch() as stop:
        while time.monotonic() < until:
            stop.check()
            time.sleep(min(ASK_SECONDS, max(0.0, until - time.monotonic())))
