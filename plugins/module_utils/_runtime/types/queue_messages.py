# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The messages about the jobs that a head knows: those that run or are over, and those that wait in its queue.

protocol.py says in which direction each of them goes.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from .file_messages import OfJob, Request
from .job_rows import Ahead, JobRow
from .reasons import FinalState


class Unqueue(OfJob):
    """Take a job out of the queue that waits with its controller."""

    kind: Literal["unqueue"]


class JobsRequest(Request):
    kind: Literal["jobs"]
    home: str
    controller: str


class EnterQueue(Request):
    """Enter the queue, or go on waiting. `hosts`: the nodes of the job as they are planned now."""

    kind: Literal["queue"]
    home: str
    job_id: str
    controller: str
    owner: str
    hosts: list[str]
    ranks: int
    launcher: str
    backend: str
    lease: float  # seconds without a word of the controller, after which it has left
    queue_timeout: float | None
    look: bool  # only say whether it would wait


class Queued(TypedDict):
    """A job waits for other jobs."""

    kind: Literal["queued"]
    ahead: int  # jobs
    first: Ahead | None  # of these


class Turn(TypedDict):
    """The nodes of the job are free."""

    kind: Literal["turn"]


class Restarted(TypedDict):
    """An attempt of a detached job, or a round of one, is over, and the next one follows."""

    kind: Literal["restarted"]
    state: FinalState  # of that attempt
    restarts: int  # with the one that follows
    most: int  # of these


class Unqueued(TypedDict):
    kind: Literal["unqueued"]
    found: bool  # whether a job of this name waited with its controller


class Jobs(TypedDict):
    kind: Literal["jobs"]
    jobs: list[JobRow]
