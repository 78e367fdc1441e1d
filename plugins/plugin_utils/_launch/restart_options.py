# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who starts a job again (option restart_by): torchfleet, or torchrun's agents its ranks in the running job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import parse_choice, parse_names

from .launcher_options import LauncherOptions

STATES = ("saved", "failed", "lost", "timed_out")  # in which a job may end and be started again
RESTART_ON = ("saved", "failed", "lost")
OF_ROUNDS = ("saved", "failed")  # after which the agents are still there
BY_TORCHFLEET, BY_TORCHRUN = "torchfleet", "torchrun"


def parse_restart_by(given: Mapping[str, object], max_restarts: int) -> str:
    """Return who starts a job again. InputError for what torchrun's agents cannot do."""
    by = parse_choice("restart_by", given.get("restart_by"), (BY_TORCHFLEET, BY_TORCHRUN)) or BY_TORCHFLEET
    if by == BY_TORCHFLEET:
        return by
    if given.get("launcher") != "torchrun":
        raise InputError("restart_by", by, "it needs torchrun's agents: add -e launcher=torchrun")
    if not max_restarts:
        raise InputError("restart_by", by, "say how often: add -e max_restarts=10")
    if given.get("rendezvous") not in (None, "c10d"):
        reason = "with static, agents restart only the ranks of one node: with restart_by=torchrun leave it out (c10d)"
        raise InputError("rendezvous", given["rendezvous"], reason)
    if given.get("ports") is not None:
        reason = "each start takes a new free port for rank 0, maybe outside these: leave out ports, or restart_by"
        raise InputError("ports", given["ports"], reason)
    if given.get("min_nodes") is not None:
        why = "with restart_by=torchrun ranks restart on the same nodes: leave one out"
        raise InputError("min_nodes", given["min_nodes"], why)
    return by


def parse_restart_on(given: Mapping[str, object], by: str) -> tuple[str, ...]:
    """Return the states after which a job is started again. InputError for those in which no agent is there."""
    value = given.get("restart_on")
    usual, allowed = (OF_ROUNDS, OF_ROUNDS) if by == BY_TORCHRUN else (RESTART_ON, STATES)
    states = usual if value is None else parse_names("restart_on", value)
    for state in states:
        if state not in allowed:
            example, also = ("saved,failed", " with restart_by=torchrun") if by == BY_TORCHRUN else ("saved,lost", "")
            raise InputError("restart_on", state, f"choose from {', '.join(allowed)}{also}: -e restart_on={example}")
    return states


def with_rounds(options: LauncherOptions, by: str, most: int, states: Sequence[str]) -> LauncherOptions:
    """Return how the launcher starts the ranks: agents that start them again must agree on it, by c10d."""
    if by == BY_TORCHFLEET:
        return options
    return replace(options, rendezvous="c10d", rounds={"most": most, "states": list(states)})
