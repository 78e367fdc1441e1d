# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The GPUs of a job's nodes: which would be idle, which its torch has no code for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_targets import without_code
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import VENDORS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .backends import BACKENDS, Choice, Workers, can, lacking, vendors

Environment = Mapping[str, Mapping[str, str]]  # what the user gives the ranks of each node
MEANT = "give -e backend=gloo if this is intended"
# Variables by which a job takes some of the GPUs only, or has AMD's pass for others: what its ranks see is not known.
CHANGED_BY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION")
SHOWN = 12  # targets of one build


def check_targets(backend: Choice, facts: Workers, environment: Environment) -> None:
    """InputError for GPUs that the torch of their node has no code for, by name.

    Who asks for a backend that carries CPU tensors can go
    on: the workloads take the CPU there.
    """
    if backend.source != "default" and BACKENDS[backend.name].device == "cpu":
        return
    for host, missing in lacking_code(facts, environment).items():
        fact = facts[host]
        version, has = (fact["torch"] or {}).get("version", ""), fact["gpu_targets"]["torch"]
        more = f" and {len(has) - SHOWN} more" if len(has) > SHOWN else ""
        what = f"has no code for the GPUs of {host}: {', '.join(missing)} (it has {', '.join(has[:SHOWN])}{more})"
        raise InputError("torch", version, f"it {what}; install a build that does, or -e backend=gloo trains on CPUs")


def lacking_code(facts: Workers, environment: Environment) -> dict[str, list[str]]:
    """Return the targets that each node's torch lacks, of the nodes where some are."""
    found = {
        host: without_code(fact["gpu_targets"])
        for host, fact in facts.items()
        if not any(name in environment.get(host, {}) for name in CHANGED_BY)
    }
    return {host: missing for host, missing in found.items() if missing}


def idle_gpus(
    backend: Choice, facts: Workers, environment: Environment, ranks: Mapping[str, int], np_asked: bool
) -> Iterator[str]:
    """Yield a warning for GPUs that a job leaves idle though nobody asked for that.

    `ranks`: how many each node has. `np_asked`: whether the user gave their number.
    """
    if not vendors(facts) or (backend.source == "user" and backend.name == "gloo"):
        return
    if backend.source == "default" and BACKENDS[backend.name].device == "cpu":
        gpus = f"GPUs are idle unless the program takes them itself ({counted(facts)})"
        yield f"this job uses gloo, which does not connect GPUs directly: {gpus}: {reason_for_gloo(facts)}"
        return
    for vendor in sorted(vendors(facts)):
        theirs = {host: fact for host, fact in facts.items() if fact["accelerators"].get(vendor)}
        why = reason_for_idle(backend.name, vendor, theirs, environment)
        if why:
            yield f"GPUs are idle ({counted(theirs)}): {why}"
            return
    few = {host: fact for host, fact in facts.items() if 0 < ranks.get(host, 0) < sum(fact["accelerators"].values())}
    if few and not np_asked:
        each = ", ".join(f"{host} {ranks[host]}" for host in few)
        yield f"GPUs are idle unless ranks take several ({counted(few)}; ranks: {each}): raise slots or ranks_per_node"


def reason_for_idle(backend: str, vendor: str, theirs: Workers, environment: Environment) -> str:
    """Return why a job with this backend cannot use a vendor's GPUs on these nodes; empty if it can."""
    title = VENDORS[vendor].title
    if vendor not in BACKENDS[backend].moves:
        able = [name for name, row in BACKENDS.items() if vendor in row.moves]
        return f"{backend} carries no tensors of {title} GPUs; {' or '.join(able)} does; {MEANT}"
    cpu_only = lacking(theirs, lambda fact: can(fact, (vendor,)))
    if cpu_only:
        return f"torch on {cpu_only} has no support for them; ansible-playbook setup.yml installs it; {MEANT}"
    without = [f"{', '.join(names)} on {host}" for host, names in lacking_code(theirs, environment).items()]
    return f"torch has no code for {' and '.join(without)}: install a build that does; {MEANT}" if without else ""


def reason_for_gloo(facts: Workers) -> str:
    """Return why no backend joins the GPUs of these workers, and what to type."""
    if len(vendors(facts)) > 1:
        return f"no backend joins GPUs of different vendors; name nodes of one (-e nodes=...), or {MEANT}"
    without = lacking(facts, lambda fact: bool(sum(fact["accelerators"].values())))
    if without:
        return f"there is no GPU on {without}; name the nodes with GPUs (-e nodes=...), or {MEANT}"
    cpu_only = lacking(facts, lambda fact: can(fact, tuple(vendors(facts))))
    if cpu_only:
        return f"torch on {cpu_only} has no support for them; ansible-playbook setup.yml installs it, or {MEANT}"
    return f"their own backend is not in every node's torch; ansible-playbook setup.yml installs it, or {MEANT}"


def counted(facts: Workers) -> str:
    """Return the GPUs of nodes, for people."""
    return ", ".join(
        f"{host} has {count} of {VENDORS[vendor].title}"
        for host, fact in facts.items()
        for vendor, count in fact["accelerators"].items()
        if count
    )
