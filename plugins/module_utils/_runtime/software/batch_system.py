# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job that its launcher gave to a batch system, such as Slurm: it is taken back when the job ends."""

from __future__ import annotations

import re
import subprocess
import time

from ..basics.bounded_write import write_in_thread
from ..basics.job_directory import JobDir, field
from ..types.codes import known
from ..types.reasons import BatchEnd

NUMBER = re.compile(r"[0-9]{1,18}\Z")  # of a job in a batch system
SECONDS = 20.0  # for its command
STATE_SECONDS = 1.0  # for one that delays the end of a job
ENDING = "COMPLETING"  # hides how a job ended, as long as any node has something of it
ENDED_SECONDS = 5.0  # for that
PAUSE_SECONDS = 0.2
STATE = "batch.json"  # in the job directory


def cancel(job: JobDir) -> None:
    """Take a job back from the batch system that its launcher gave it to, if it did."""
    find, cancel = commands_of(job)
    numbers = [word for word in output_of(find).split() if NUMBER.match(word)] if find else []
    if numbers:
        output_of([*cancel, *numbers])


def commands_of(job: JobDir) -> tuple[list[str], list[str]]:
    """Return what lists the job in its batch system, and what cancels it there; nothing if there is none."""
    queue: list[object] = field(job.read("order.json"), "queue", list) or []
    commands = [[str(word) for word in words] for words in queue if isinstance(words, list)]
    return (commands[0], commands[1]) if len(queue) == len(commands) == 2 else ([], [])


def state_of(job: JobDir) -> str:
    """Return the state of a job in its batch system, empty if that does not say. Takes STATE_SECONDS at most."""
    find = commands_of(job)[0]
    words = output_of(find, STATE_SECONDS).split() if find else []
    return words[1] if len(words) == 2 else ""


def note_end(job: JobDir, state: str) -> None:
    """Keep which end the batch system has made of a job. `state`: what it was before we took the job back.

    Our taking back makes CANCELLED of a job that runs, and changes nothing of one that is about to end.
    """
    deadline = time.monotonic() + ENDED_SECONDS
    while state == ENDING and time.monotonic() < deadline:
        time.sleep(PAUSE_SECONDS)
        state = state_of(job)
    if known(BatchEnd, state):
        write_in_thread(lambda: job.write(STATE, {"state": state}))


def noted_end(job: JobDir) -> BatchEnd | None:
    """Return the end that was kept."""
    return known(BatchEnd, field(job.read(STATE), "state", str))


def output_of(command: list[str], seconds: float = SECONDS) -> str:
    """Return the output of a batch system's command, or an empty string if it fails."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
