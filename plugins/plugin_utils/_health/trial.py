# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""verify.yml: which tests run on which nodes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.probe_types import (
    Agent,
    FullLinkStep,
    LinkStep,
    Step,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import LAUNCHERS, TRIED
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric import link_matrix, rail_matrix
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.fabric_types import Published
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.networks import NodeNet
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.backends import BACKENDS, Engine, joins_gpus

from .facts_types import Facts
from .preflight_types import Answer

SECONDS = 0.15  # per pair and direction: long enough for a rate; 200 nodes take a minute
# What an all-reduce is run with, by the device of its tensors. GPUs: one rank for each, and messages that fill RDMA.
# CPUs: one rank on each node, for the network is what is proven, and more ranks would only share the processor.
ALL_REDUCE, BURN_IN = "all_reduce_bench", "burn_in"  # names in workloads/
SIZES = {"cpu": ("1M", "16M")}
GPU_SIZES = ("1M", "256M")
NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}  # tells which network it really uses


class Listened(TypedDict, total=False):
    """What a node says of its fabric. `agent`: None where none runs; `rates`: Gbit/s by RDMA device."""

    fabric: Published
    agent: Agent | None
    net: NodeNet | None
    rates: dict[str, float]


class TriedRun(TypedDict):
    """A job of the trial, as options of module launch. `ranks_per_node` 0: all slots."""

    workload: str
    launcher: str
    backend: str
    workload_args: list[str]
    job_env: dict[str, str]
    ranks_per_node: int
    in_image: bool  # whether ranks run in the image that the user or the inventory names


@dataclass(frozen=True)
class Trial:
    """The tests to run: nodes that answer, logins, each node's steps of the matrix, runs (options of module launch)."""

    nodes: tuple[str, ...]
    logins: tuple[Mapping[str, str], ...]
    network: str
    steps: Mapping[str, Sequence[Step]]
    runs: tuple[TriedRun, ...]
    untested: tuple[rail_matrix.Untested, ...] = ()  # rails that nothing tests
    left_out: int = 0  # pairs of nodes whose rails there is no time for
    kept: tuple[tuple[str, str], ...] = ()  # pairs of nodes that an earlier proof measured, and this one does not
    kept_at: str = ""  # when all links were last tested, if some are kept


def answering(answers: Mapping[str, Answer]) -> tuple[str, ...]:
    """Return the nodes whose facts were read."""
    return tuple(name for name, answer in answers.items() if answer.facts)


def published(listened: Mapping[str, Listened]) -> dict[str, Published]:
    """Return the fabric.json of each node that has one."""
    return {name: answer["fabric"] for name, answer in listened.items() if answer.get("fabric")}


def plan_trial(
    answers: Mapping[str, Answer],
    listened: Mapping[str, Listened],
    head: str,
    workers: Sequence[str],
    launchers: Collection[str] = TRIED,
    has_image: bool = False,
) -> Trial:
    """Return the tests to run, with these launchers. Nodes that do not answer or have no fabric are left out.

    `has_image`: whether the user or the inventory names an image for the ranks.
    """
    nodes = answering(answers)
    fabrics = {name: fabric for name, fabric in published(listened).items() if listened[name].get("agent")}
    first = [name for name in (head, *fabrics) if name in fabrics and (name in workers or len(workers) < 2)]
    network = next((fabrics[name]["network"] for name in first), "")
    seats = {name: fabric["address"] for name, fabric in fabrics.items() if fabric["network"] == network}
    agents = {name: agent for name in seats if (agent := listened[name]["agent"])}
    steps = link_matrix.steps({network: seats}, agents, SECONDS) if len(seats) > 1 else {}
    rails = plan_rails(listened, {name: seats[name] for name in seats if name in workers}, agents, len(seats))
    at_work = [name for name in workers if name in nodes]
    runs = [
        run_with(launcher, backend, len(at_work))
        for launcher in TRIED
        if launcher in launchers and has_launcher(answers, launcher, head, at_work)
        for backend in BACKENDS
        if can_try(backend, [facts for name in at_work if (facts := answers[name].facts)], launcher)
    ]
    logins = (
        tuple(login_to(name, facts) for name in nodes if (facts := answers[name].facts)) if len(answers) > 1 else ()
    )
    plan = {name: [*full_size(own, name, listened), *rails.steps.get(name, ())] for name, own in steps.items()}
    in_image = in_image_of(runs) if has_image else []
    jobs = (*runs, *burn_in_of(runs), *in_image) if head in nodes else ()
    return Trial(nodes, logins, network, plan, jobs, rails.untested, rails.left_out)


def plan_rails(
    listened: Mapping[str, Listened], addresses: Mapping[str, str], agents: Mapping[str, Agent], begin: int
) -> rail_matrix.Plan:
    """Return the test of the rails of workers, after the rounds of the network."""
    nets = {name: net for name in addresses if (net := listened[name].get("net"))}
    seats = {name: rail_matrix.seats_of(listened[name]["fabric"], net) for name, net in nets.items()}
    return rail_matrix.plan_rails(seats, addresses, agents, begin)


def full_size(steps: Sequence[LinkStep], name: str, listened: Mapping[str, Listened]) -> list[LinkStep | FullLinkStep]:
    """Return the steps of a node's links with its NIC, and the packets that must pass: the smaller MTU of both ends."""
    mtus = {node: nic_mtu(listened[node]) for node in (name, *(str(step["node"]) for step in steps))}
    nic = listened[name]["fabric"]["nic"]
    return [
        with_size(step, nic, min(mtus[name], mtus[step["node"]])) if mtus[name] and mtus[step["node"]] else {**step}
        for step in steps
    ]


def with_size(step: LinkStep, nic: str, mtu: int) -> FullLinkStep:
    """Return a step with the size of its packets. `mtu`: bytes."""
    return {**step, "nic": nic, "mtu": mtu}


def nic_mtu(told: Listened) -> int:
    """Return the MTU of the NIC that a node uses, in bytes; 0 if it is not known."""
    net = told.get("net")
    nics = net.nics if net else ()
    return next((nic.mtu for nic in nics if nic.name == told["fabric"]["nic"]), 0)


def run_with(launcher: str, backend: str, workers: int) -> TriedRun:
    """Return an all-reduce as options of module launch; `ranks_per_node` 0: all slots."""
    device = BACKENDS[backend].device
    smallest, largest = SIZES.get(device, GPU_SIZES)
    return {
        "workload": ALL_REDUCE,
        "launcher": launcher,
        "backend": backend,
        "workload_args": [
            *("--min-bytes", smallest, "--max-bytes", largest, "--factor", "16", "--iterations", "5"),
            *(["--device", "cpu"] if device == "cpu" else []),  # the proof of GPUs is that of their own backend
        ],
        "job_env": NCCL_LOG if backend == "nccl" else {},
        "ranks_per_node": 0 if device != "cpu" else 2 if workers == 1 else 1,
        "in_image": False,
    }


def in_image_of(runs: Sequence[TriedRun]) -> list[TriedRun]:
    """Return the all-reduce that is run in an image too: that of GPUs if there is one, for it may not see them."""
    of_gpus = [run for run in runs if BACKENDS[run["backend"]].device != "cpu"]
    return [{**run, "in_image": True} for run in [*of_gpus, *runs][:1]]


def burn_in_of(runs: Sequence[TriedRun]) -> list[TriedRun]:
    """Return a run that loads every GPU, with the first launcher that joins GPUs; none where there are no GPUs."""
    first = next((run for run in runs if BACKENDS[run["backend"]].device != "cpu"), None)
    return [{**first, "workload": BURN_IN, "workload_args": [], "job_env": {}}] if first else []


def login_to(name: str, facts: Facts) -> dict[str, str]:
    """Return a node in the form that torchfleet.cluster.ssh_mesh_prove takes."""
    return {"name": name, "config": f"{facts['home']['path']}/ssh/config", "address": name}


def engine_of(facts: Facts) -> Engine:
    """Return what a node computes with, from its facts."""
    return {"accelerators": facts["accelerators"]["usable"], "torch": facts["torch"]}


def can_try(backend: str, facts: Sequence[Facts], launcher: str) -> bool:
    """Whether a backend can be tried under a launcher on nodes with these facts: all need what it is made of.

    The torch and the GPUs decide, not versions of drivers and libraries: the amdgpu of the kernel has none, and ROCm's
    torch has RCCL in itself.
    """
    row = BACKENDS[backend]
    if row.vendors:
        return joins_gpus(backend, {str(at): engine_of(each) for at, each in enumerate(facts)})
    return row.tried is not None and all(
        row.tried(each["versions"]["torch_backends"].split(), launcher) for each in facts
    )


def versions_on(answers: Mapping[str, Answer], name: str) -> Mapping[str, str]:
    """Return the versions on a node; none where it did not answer."""
    facts = answers[name].facts
    return facts["versions"] if facts else {}


def has_launcher(answers: Mapping[str, Answer], launcher: str, head: str, workers: Sequence[str]) -> bool:
    """Whether a launcher is installed on every node that starts it. One without a program is a part of torch."""
    what = launcher if LAUNCHERS[launcher].programs else "torch"
    nodes = {*workers, head} if LAUNCHERS[launcher].on_head else set(workers)
    return bool(workers) and all(versions_on(answers, name).get(what) for name in nodes)
