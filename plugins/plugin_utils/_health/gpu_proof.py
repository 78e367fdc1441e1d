# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a proof used the GPUs that there are: a cluster of GPUs is not proven by all-reduces of CPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import USABLE, VENDORS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.backends import BACKENDS, can, vendors

from .facts_types import Facts
from .findings import Finding, Rule, found
from .run_results import Run
from .trial import ALL_REDUCE, engine_of

RULES: Mapping[str, Rule] = {
    "TF-VERIFY-GPUS": Rule(
        "warning",
        "the GPUs were not proven",
        "what was tried ran on CPUs: a training on the GPUs may be slow, compute wrongly, or not start",
        "the backend that joins GPUs needs GPUs of one vendor on every worker, and a torch that is built for them",
        "mend what is named, and prove again: ansible-playbook verify.yml; a node whose GPUs are not to be used gets "
        "torchfleet_gpus: 0 in the inventory",
    ),
}


def gpu_proof_findings(
    facts: Mapping[str, Facts], runs: Sequence[Run], expected: Mapping[str, int | None]
) -> Iterator[Finding]:
    """Yield the finding that GPUs of these workers were not proven. `expected`: torchfleet_gpus of the inventory."""
    meant = {name: fact for name, fact in facts.items() if expected.get(name) != 0}
    there = [name for name, fact in meant.items() if gpus_of(fact)]
    tried = {run["workload"] for run in runs if BACKENDS[run["backend"]].device != "cpu"}
    if there and ALL_REDUCE not in tried:
        yield found(RULES, "TF-VERIFY-GPUS", there, why_not(facts, meant))


def gpus_of(fact: Facts) -> int:
    """Return how many GPUs a node has: those that programs can open, else those on the PCI bus that jobs could use."""
    here = fact["accelerators"]
    return sum(here["usable"].values()) or sum(gpu["vendor"] in USABLE for gpu in here["gpus"])


def why_not(facts: Mapping[str, Facts], meant: Mapping[str, Facts]) -> str:
    """Return why no all-reduce ran on GPUs. `meant`: the workers whose GPUs are to be used."""
    engines = {name: engine_of(fact) for name, fact in facts.items()}
    closed = [name for name in meant if gpus_of(meant[name]) and not any(engines[name]["accelerators"].values())]
    if closed:
        return f"no program can open the GPUs of {fold_names(closed)}: there is no driver, or it does not run"
    without = [name for name, engine in engines.items() if not any(engine["accelerators"].values())]
    if without:
        return f"{fold_names(without)} has no GPU" if len(without) == 1 else f"{fold_names(without)} have no GPU"
    if len(vendors(engines)) > 1:
        titles = " and ".join(VENDORS[vendor].title for vendor in VENDORS if vendor in vendors(engines))
        return f"no backend joins GPUs of {titles}"
    of = tuple(vendors(engines))
    cpu_only = [name for name, engine in engines.items() if not can(engine, of)]
    if cpu_only:
        return f"torch on {fold_names(cpu_only)} is not built for GPUs of {VENDORS[of[0]].title}"
    return "no launcher that was tried starts a job on them"
