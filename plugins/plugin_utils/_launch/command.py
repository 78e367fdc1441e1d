# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A launcher's command: words that each say why they are there and where that comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import (
    AGENT_PROGRAM,
    RANK_PROGRAM,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import LAUNCHERS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostfile import hostfile_lines

from .environment import Setting
from .plan import LaunchPlan

SAFE_PATH = re.compile(r"[A-Za-z0-9._/-]+\Z")
WRAPPER = "the rank wrapper: environment, placement, output, record"


@dataclass(frozen=True)
class Option:
    """Words of a command line that belong together, why they are there and where that comes from.

    `free`: launcher_args may say otherwise. What is not free is the plan's, and launcher_args may not touch it.
    """

    words: tuple[str, ...]
    reason: str
    source: str  # default, inventory, measured, user
    free: bool = False


@dataclass(frozen=True)
class LaunchCommand:
    """What is started.

    `on`: the options in order, by node: the head's launcher alone, or an agent on every node. `environment`: the
    launcher's own. `files`: what it reads, by name. `cancel`: what takes the job back from a batch system: a
    command that tells its numbers there, and one that they are given to.
    """

    on: Mapping[str, tuple[Option, ...]]
    environment: tuple[Setting, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    cancel: tuple[tuple[str, ...], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[Option, ...]:
        """Return the options of the command that people are shown: the head's, or the first node's."""
        return next(iter(self.on.values()))

    @property
    def argv(self) -> tuple[str, ...]:
        """Return that command as a list of words."""
        return words_of(self.options)


def words_of(options: Iterable[Option]) -> tuple[str, ...]:
    """Return the words of options in order."""
    return tuple(word for option in options for word in option.words)


def program_option(plan: LaunchPlan) -> Option:
    """Return the launcher's program."""
    return Option((plan.launcher_path,), f"{LAUNCHERS[plan.launcher].title} {plan.launcher_version}", "measured")


def count_option(plan: LaunchPlan, flag: str) -> Option:
    """Return the number of ranks of the first app context."""
    _kind, ranks = plan.contexts[0]
    which = "ranks" if ranks == plan.world_size else f"the first of {plan.world_size} ranks"
    return Option((flag, str(ranks)), f"{which}: {plan.np_reason}", plan.np_source)


def rank_option(plan: LaunchPlan, *again: str) -> Option:
    """Return the program of all ranks, an app context for each kind of node.

    `again`: the words, without their number, that begin the second and further ones.
    """
    program = (RANK_PROGRAM,) if plan.other_nodes else plan.head.wrapper
    _first, *more = plan.contexts
    words = [*program]
    for _kind, ranks in more:
        words += [":", *again, str(ranks), *program]
    kinds = ", ".join(f"{ranks} ranks on nodes with {kind}" for kind, ranks in plan.contexts)
    return Option(tuple(words), WRAPPER + f" ({kinds})" * bool(more), "inventory" if more else "default")


def hostfile(plan: LaunchPlan) -> str:
    """Return the host file of a plan: its nodes in rank order."""
    entries = [(node.address if plan.other_nodes else "localhost", node.slots) for node in plan.nodes]
    return "".join(line + "\n" for line in hostfile_lines(LAUNCHERS[plan.launcher].hostfile, entries))


def agent_path(plan: LaunchPlan) -> str:
    """Return the path of what launchers start instead of ssh. InputError for one that they would tear apart."""
    path = f"{plan.head.job_dir}/bin/{AGENT_PROGRAM}"
    if not SAFE_PATH.match(path):  # Open MPI splits the value at spaces, 4.1 runs what is in `$()`
        raise InputError(
            "torchfleet_home", plan.head.home, f"{plan.launcher} needs a path of letters, digits and ._-/ here"
        )
    return path
