# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What preflight judges: the hosts, their answers, the thresholds, and one node with all of these. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import distribution

from .clock import Clock
from .facts_types import Facts
from .findings import Finding, found
from .preflight_rules import RULES


@dataclass(frozen=True)
class Target:
    """A host of the inventory, as Ansible reaches it. An empty text leaves the choice to the SSH client."""

    name: str
    address: str
    port: str = ""
    user: str = ""
    head: bool = False
    worker: bool = True
    slots: int | None = None
    may_ask_password: bool = False  # a become password is known

    @property
    def words(self) -> dict[str, str]:
        """Return the words for a rule's mend, among them the SSH command that repeats what Ansible tried."""
        where = f"{f'-p {self.port} ' if self.port else ''}{f'{self.user}@' if self.user else ''}{self.address}"
        return {
            "name": self.name,
            "address": self.address,
            "user": self.user,
            "login": f"ssh {where}",
            "copy_key": f"ssh-copy-id {where}",
            "known_as": self.address if self.port in ("", "22") else f"[{self.address}]:{self.port}",
        }


@dataclass(frozen=True)
class Answer:
    """The answer of a node: facts, or an error of the connection (`problem`) or on the node (`failure`).

    `timed_out`: the seconds that it had, if it did not answer within them.
    """

    facts: Facts | None = None
    clock: Clock | None = None
    problem: str = ""
    failure: str = ""
    timed_out: int = 0

    @property
    def known(self) -> Facts:
        """Return the facts, or an empty object: each user has made sure that the node answered, or needs none."""
        return self.facts or cast(Facts, {})


@dataclass(frozen=True)
class Limits:
    """The thresholds that a user can set; each is a variable of the role."""

    min_disk_gb: float = 3.0
    min_tmp_mb: float = 200
    min_shm_mb: float = 256
    max_clock_offset: float = 5.0
    python_min: str = "3.11"
    python_max: str = "3.14"
    supported_os: tuple[str, ...] = ("debian 12", "debian 13")
    needs_root: bool = False
    compiles: bool = False  # a backend is compiled on nodes that do not have it yet
    installs_tools: bool = True  # a compiler, on the machine that compiles it
    prerequisites: Mapping[str, str] = field(default_factory=dict)  # switches of that role: auto, true or false


@dataclass(frozen=True)
class Case:
    """One node that answered, with everything that its findings depend on."""

    target: Target
    facts: Facts
    clock: Clock | None
    limits: Limits
    count: int  # of all nodes

    @property
    def clock_is_wrong(self) -> bool:
        """Whether the clock's offset exceeds the limit by more than the uncertainty."""
        clock = self.clock
        return clock is not None and abs(clock.offset) - clock.uncertainty > self.limits.max_clock_offset

    def found(self, name: str, seen: str, /, **words: object) -> Finding:
        """Return a finding on this node."""
        return found(
            RULES, name, [self.target.name], seen, **{**self.target.words, **commands_for([self.facts]), **words}
        )


def commands_for(facts: Iterable[Facts]) -> dict[str, str]:
    """Return the commands for a rule's mend, in the form for these nodes' distribution, or for any if they differ."""
    systems = {fact["system"]["os"] for fact in facts}
    return distribution.words(systems.pop() if len(systems) == 1 else "")
