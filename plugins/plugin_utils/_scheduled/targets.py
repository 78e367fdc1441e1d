# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where a job runs: on nodes of the inventory, or on nodes that a scheduler brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import parse_choice

from .pod_kinds import OPERATORS
from .pod_request import PARSERS as OF_PODS
from .slurm_request import OPTIONS as OF_SLURM

OF_PODS_WITH_KUBECTL = ("kubernetes", *OPERATORS)
ONLY_RUNAI = "it is for Run:ai: add -e target=runai"
TARGETS = ("nodes", *OF_PODS_WITH_KUBECTL, "runai", "slurm")


def parse_target(given: Mapping[str, object]) -> str:
    """Return where the job runs. InputError for an option of other targets."""
    target = parse_choice("target", given.get("target"), TARGETS) or "nodes"
    for names, targets, advice in (
        (("pods", *OF_PODS), (*OF_PODS_WITH_KUBECTL, "runai"), "it is for jobs in pods: add -e target=kubernetes"),
        (OF_SLURM, ("slurm",), "it is for nodes that Slurm brings: add -e target=slurm"),
    ):
        lone = next((name for name in names if given.get(name) is not None), "")
        if lone and target not in targets:
            raise InputError(lone, given[lone], advice)
    if target in OF_PODS_WITH_KUBECTL and given.get("pod_project") is not None:
        raise InputError("pod_project", given["pod_project"], ONLY_RUNAI)
    return target


def with_going(line: str, going: Sequence[str]) -> str:
    """Return what clean.yml says, and the jobs that it left alone, for nobody named them."""
    return f"{line}; these run or wait, and -e job_id=NAME ends one: {', '.join(going)}" if going else line
