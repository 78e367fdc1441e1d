# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The environment of a program beside the proven torch: what it needs, which name that has, who must still make it.

The name is a digest of what was asked for, so nothing is asked of an index to find out whether it is there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.program_environment import PROGRAMS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import NodeFacts
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment import without_password
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.kept_packages import WITH_TORCH
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import OWNED_NAMES
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.program_requirements import (
    NONE,
    Requirements,
    file_for,
    read_requirements,
    refuse_other_torch,
)

from .request import Request
from .secrets import USUAL
from .workdir import root_of

NAME_LETTERS = 24
VERSION = 1  # of what is made: another one makes all anew


@dataclass(frozen=True)
class ProgramEnvironment:
    """What a program needs beside torch. `name`: of the directory on each node; empty if it needs nothing."""

    requirements: Requirements
    index_url: str
    wheelhouse: str
    fill: bool = False  # whether the controller downloads what is missing there
    keep: int = 0  # how many environments stay on a node

    @property
    def name(self) -> str:
        """Return the digest of all that decides what is installed."""
        if not self.requirements.packages:
            return ""
        lines = sorted([asked.text, *sorted(asked.hashes)] for asked in self.requirements.packages)
        source = [VERSION, lines, without_password(self.index_url), self.wheelhouse]
        source += [list(self.compiled_for_torch)] if self.compiled_for_torch else []
        return hashlib.sha256(json.dumps(source).encode()).hexdigest()[:NAME_LETTERS]

    @property
    def compiled_for_torch(self) -> tuple[str, ...]:
        """Return what comes from the index of the proven build of torch."""
        return tuple(asked.text for asked in self.requirements.packages if asked.name in WITH_TORCH)

    @property
    def lines(self) -> list[str]:
        """Return what is shown to people."""
        asked = ", ".join(asked.text for asked in self.requirements.packages) or "nothing beside torch"
        where = f" from {self.wheelhouse}" if self.wheelhouse else ""
        return [f"  asked for by {self.requirements.file}{where}: {asked}"]


def environment_for(request: Request, script: str) -> ProgramEnvironment | None:
    """Return what a program needs beside torch, None if no file says so. InputError for a file that is wrong."""
    file = file_for(
        root_of(script, request.module), request.requirements, script.endswith(".py") and not request.python
    )
    if not file:
        return None
    found = read_requirements(file)
    wheelhouse = os.path.realpath(os.path.expanduser(request.program_wheelhouse)) if request.program_wheelhouse else ""
    index, fill, keep = request.program_index_url, request.program_wheelhouse_fill, request.program_keep
    return ProgramEnvironment(found, index or found.index_url, wheelhouse, fill, keep)


def check_environment(wanted: ProgramEnvironment | None, facts: Mapping[str, NodeFacts]) -> None:
    """InputError if the nodes' torch is not what the program asks for, or their environments differ."""
    if not wanted:
        return
    proven = {name: fact["torch"]["version"] for name, fact in facts.items() if fact["torch"]}
    bare = [name for name, fact in facts.items() if not fact["torch"]]
    if bare and wanted.name:
        setup = "install it with: ansible-playbook setup.yml"
        raise InputError(
            "requirements", wanted.requirements.file, f"there is no torch on {bare[0]} to build on; {setup}"
        )
    refuse_other_torch(wanted.requirements, proven)
    for name, fact in facts.items():  # it is replaced there, and on the nodes that it is sent to
        if fact["program"] and not fact["program"]["path"].endswith(f"/{PROGRAMS}/{wanted.name}"):
            reason = f"the plan has another path for this environment than {name}: look at that node"
            raise InputError("requirements", fact["program"]["path"], reason)
    contents: dict[str, dict[str, str]] = {}
    for name, fact in facts.items():
        if fact["program"] and fact["program"]["content"]:
            contents.setdefault(fact["program"]["kind"], {}).setdefault(fact["program"]["content"], name)
    for content in contents.values():
        if len(content) > 1:
            one, other = list(content.values())[:2]
            pin = "write exact versions into it, which makes all anew"
            raise InputError(
                "requirements", wanted.requirements.file, f"{one} and {other} have different versions: {pin}"
            )


def unmade(wanted: ProgramEnvironment | None, facts: Mapping[str, NodeFacts]) -> list[str]:
    """Return the nodes on which the environment is to be made."""
    if not wanted or not wanted.name:
        return []
    return [name for name, fact in facts.items() if not (fact["program"] and fact["program"]["content"])]


def ranks_python(fact: NodeFacts) -> str:
    """Return the interpreter of a node's ranks."""
    return f"{fact['program']['path']}/bin/python" if fact["program"] else fact["python"]


def activation(fact: NodeFacts) -> dict[str, str]:
    """Return the variables that activation of the user's own environment sets, without those that may be secret."""
    own = fact["activation"]
    return {name: value for name, value in own["variables"].items() if is_passed_on(name)} if own else {}


def is_passed_on(name: str) -> bool:
    """Whether a variable of an environment reaches ranks: not what may be secret, nor what a job sets itself."""
    return not (USUAL.search(name) or name in OWNED_NAMES or name.startswith("TORCHFLEET_"))


def activation_warnings(facts: Mapping[str, NodeFacts]) -> list[str]:
    """Return a warning for what activation of an environment sets by itself, and does not for ranks."""
    where: dict[str, list[str]] = {}
    for name, fact in facts.items():
        own = fact["activation"]
        if not own:
            continue
        if own["failed"]:
            what = f"none of the {own['failed']} scripts in {own['prefix']}/etc/conda/activate.d counts"
            where.setdefault(f"{what}: one ends the shell, or they take too long", []).append(name)
        hidden = sorted(set(own["variables"]) - set(activation(fact)))
        if hidden:
            what = f"{own['prefix']} sets {', '.join(hidden)}, which is not passed on"
            why = "it may be secret (give it as job_env), or a job sets it itself"
            where.setdefault(f"{what}: {why}", []).append(name)
    return [f"{what} (on {fold_names(names)})" for what, names in where.items()]


def other_versions(wanted: ProgramEnvironment | None, facts: Mapping[str, NodeFacts]) -> list[str]:
    """Return a warning where nodes of different kinds have chosen the program's packages differently.

    Another Python may need other ones, so that is no error; of one kind check_environment() refuses it. A lock has
    chosen for all of them.
    """
    if not wanted or wanted.requirements.locked:
        return []
    contents: dict[str, list[str]] = {}
    kinds: dict[str, str] = {}
    for name, fact in facts.items():
        if fact["program"] and fact["program"]["content"]:
            contents.setdefault(fact["program"]["content"], []).append(name)
            kinds[fact["program"]["content"]] = fact["program"]["kind"]
    if len(contents) < 2:
        return []
    where = ", ".join(f"{fold_names(names)} ({kinds[content]})" for content, names in contents.items())
    mend = f"write exact versions into {wanted.requirements.file}, or give all nodes one Python"
    return [f"the program's packages, or their versions, differ between {where}: {mend}"]


def search_path(fact: NodeFacts) -> str:
    """Return where the ranks of a node look for programs first: in their environment, then beside the proven torch."""
    places = [ranks_python(fact).rpartition("/")[0], fact["python"].rpartition("/")[0]]
    return os.pathsep.join(dict.fromkeys(filter(None, places)))


def explained(wanted: ProgramEnvironment | None, facts: Mapping[str, NodeFacts]) -> list[str]:
    """Return what people are told of it before anything is made."""
    if not wanted:
        return []
    if not wanted.name:
        return [*wanted.lines, "  the proven environment is used as it is"]
    missing = unmade(wanted, facts)
    there = [name for name in facts if name not in missing]
    path = next(iter(facts.values()))["program"]
    lines = [
        *wanted.lines,
        f"  {path['path'] if path else ''}, on top of the proven torch; -e requirements={NONE}: without",
    ]
    lines += [f"  is there and is used: {', '.join(there)}"] if there else []
    return lines + ([f"  would be made: {', '.join(missing)}"] if missing else [])
