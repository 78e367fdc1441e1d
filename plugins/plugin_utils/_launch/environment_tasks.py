# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What tasks are told to make, if a job needs an environment that its nodes do not have."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import NodeFacts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .plan import LaunchPlan
from .program_environment import ProgramEnvironment


def environment_to_make(
    needs: ProgramEnvironment, plan: LaunchPlan, facts: Mapping[str, NodeFacts], into: Path
) -> dict[str, object]:
    """Return what tasks are told to make before the first attempt. InputError for a later one, which cannot wait."""
    if plan.restarts:
        where = ", ".join(plan.unmade)
        reason = f"the environment of the program is not on {where}: start the job again, which makes it"
        raise InputError("requirements", needs.requirements.file, reason)
    names = list(dict.fromkeys([*(node.name for node in plan.nodes), *plan.unmade]))
    return to_make(needs, facts, names, into)


def to_make(
    wanted: ProgramEnvironment, facts: Mapping[str, NodeFacts], names: Sequence[str], into: Path
) -> dict[str, object]:
    """Return what the tasks that make it are told: see RETURN of module launch. `into`: a private directory."""
    asked = wanted.requirements.packages
    lock = into / f"torchfleet-{wanted.name}.txt" if wanted.requirements.locked else None
    if lock:
        rows = [" ".join([each.text, *(f"--hash={digest}" for digest in each.hashes)]) for each in asked]
        lock.write_text("\n".join([*rows, ""]), encoding="utf-8")
    # A package for some machines alone comes by the lock; named here, each machine would have to have it.
    plain = [each.text for each in asked if not (lock and ";" in each.text)]
    return {
        "file": wanted.requirements.file,
        "packages": plain or [each.text for each in asked],
        "lock": str(lock or ""),
        "index_url": wanted.requirements.index_url,
        "torch_packages": list(wanted.compiled_for_torch),
        "wheelhouse": wanted.wheelhouse,
        "wheelhouse_fill": wanted.fill,
        "keep": wanted.keep,
        "nodes": {name: node_part(facts[name]) for name in names},
    }


def node_part(fact: NodeFacts) -> dict[str, str]:
    """Return a node's part of that."""
    torch = fact["torch"]["version"] if fact["torch"] else ""
    return {
        "path": fact["program"]["path"] if fact["program"] else "",
        "home": fact["home"],
        "python": fact["python"],
        "linked": os.path.dirname(os.path.dirname(fact["python"])),
        "torch": torch,
        "build": torch.partition("+")[2],
    }
