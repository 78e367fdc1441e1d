# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The jobs that a head knows, as rows of its list: those that wait or run, and those that are over. Types of JSON."""

from __future__ import annotations

from typing import TypedDict

from .reasons import AnyState, FinalState, LiveState
from .records import Metric, RunningJob


class QueuedJob(TypedDict):
    """A job that is to wait for its nodes (job_queue.py)."""

    job_id: str
    controller: str  # who started it (plugin_utils/_controller/identity.py)
    owner: str  # the same for people: user@controller
    hosts: list[str]
    ranks: int
    launcher: str
    backend: str
    detached: bool  # it waits without its controller
    private_tmp: str  # where a detached one lets followers in; else empty


class Ahead(RunningJob):
    """A job that one in the queue waits for."""

    state: LiveState
    seconds: float  # that it does


class FirstReport(TypedDict):
    """The first report of a job that says how much there is to do: its pace counts from there, for it may resume."""

    time: float  # since the epoch, by the head's clock
    values: dict[str, Metric]  # of metrics.PROGRESS


class JobRow(TypedDict):
    """A job that the head knows."""

    job_id: str
    state: AnyState
    owner: str  # who started it, as they say themselves: user@controller; job_queue.NOBODY if it is not known
    own: bool  # the controller that asks had started it
    fetched: bool
    seconds: float  # that it runs or waits, or since it ended
    restarts: int  # how often it was started before, in its own directory
    position: int  # of one that waits: 1 is the first in the queue; else 0
    ranks: int
    hosts: list[str]
    launcher: str
    backend: str
    values: dict[str, Metric]  # the last that its ranks reported
    before: dict[str, Metric]  # of one that runs: the first that they reported of its progress; else none
    paced_seconds: float  # since that report; 0: there is none


class WaitingRun(TypedDict):
    """A job that is over and waits on the head to be fetched."""

    job_id: str
    run_dir: str  # on the controller that started it
    state: FinalState
    own: bool  # the controller that asks had started it
    seconds: float  # since it ended
