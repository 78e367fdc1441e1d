# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Restarts of a job: types of JSON, and what a program is told of them. head/restart_rule.py has the rule."""

from __future__ import annotations

from typing import Mapping, TypedDict

from .reasons import FinalState

RETURN_SECONDS = 600.0  # for nodes to be as they were: one that restarts takes minutes
COUNT, AFTER = "TORCHFLEET_RESTART_COUNT", "TORCHFLEET_RESTART_REASON"  # what a program is told


class Rule(TypedDict):
    """What the user asked for."""

    most: int  # restarts
    states: list[str]  # in which a job is started again


class Ended(TypedDict):
    """An attempt that is over."""

    job_id: str
    state: FinalState
    failure: str  # exit status, signal and exception of the rank that failed first; empty: none failed
    progress: list[float] | None  # the last epoch and step that were reported; None: neither was
    seconds: float
    node: str  # that is to blame: it was lost, or a signal ended a rank there, or a GPU failed; empty: none


def told_of(given: Mapping[str, str], restarts: int, after: FinalState) -> dict[str, str]:
    """Return the environment of an attempt's ranks. `given`: that of the first; `after`: the state of the one before.

    A count or reason that the user gives by job_env stays.
    """
    count = {COUNT: str(restarts)} if given.get(COUNT) == "0" else {}
    return {AFTER: after, **given, **count}
