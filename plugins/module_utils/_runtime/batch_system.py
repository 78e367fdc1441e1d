# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job that its launcher gave to a batch system, such as Slurm: it is taken back when the job ends."""

from __future__ import annotations

import re
import subprocess

from .job_directory import JobDir, field

NUMBER = re.compile(r"[0-9]{1,18}\Z")  # of a job in a batch system
SECONDS = 20  # for its command


def cancel(job: JobDir) -> None:
    """Take a job back from the batch system that its launcher gave it to, if it did."""
    queue: list[object] = field(job.read("order.json"), "queue", list) or []
    commands = [[str(word) for word in words] for words in queue if isinstance(words, list)]
    if not len(queue) == len(commands) == 2:
        return
    find, cancel = commands
    numbers = [word for word in output_of(find).split() if NUMBER.match(word)]
    if numbers:
        output_of([*cancel, *numbers])


def output_of(command: list[str]) -> str:
    """Return the output of a batch system's command, or an empty string if it fails."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
