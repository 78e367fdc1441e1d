# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What carries the collectives: one row per backend, whether the nodes have it, and the environment that it wants."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import VENDORS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import LAUNCHERS, MPIS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import NodeFacts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

Workers = Mapping[str, NodeFacts]
Accelerators = Mapping[str, int]  # GPUs of a node by vendor
Values = dict[str, tuple[str, str]]  # value and reason by the name of a variable


class Engine(TypedDict):
    """What a node computes with: GPUs by vendor, and what its torch is built for (torch_build() in survey.py)."""

    accelerators: dict[str, int]
    torch: dict[str, str] | None


Engines = Mapping[str, Engine]  # by node


class Choice(NamedTuple):
    """The backend of a job, why, and where that comes from: user or default."""

    name: str
    reason: str
    source: str


def no_environment(_accelerators: Accelerators, _rdma: bool) -> Values:
    """Return nothing: the NIC is enough."""
    return {}


def nccl_environment(_accelerators: Accelerators, rdma: bool) -> Values:
    """Return more sockets for a link without RDMA."""
    reason = "one TCP stream does not fill a fast link; the product is at most 64 (NCCL docs)"
    return {} if rdma else {"NCCL_SOCKET_NTHREADS": ("4", reason), "NCCL_NSOCKS_PERTHREAD": ("8", reason)}


def ucx_environment(accelerators: Accelerators, rdma: bool) -> Values:
    """Return UCX's transports, and no detours for small GPU buffers (seed 000)."""
    here = [row for vendor, row in VENDORS.items() if accelerators.get(vendor)]
    transports = [*["rc"] * rdma, "tcp", "sm", "self", *(row.ucx for row in here if row.ucx)]
    detours = {name: ("0", "GPU buffers never detour") for row in here for name in row.detours}
    return {"UCX_TLS": (",".join(transports), "what this node's memory and network have"), **detours}


def ucc_environment(accelerators: Accelerators, rdma: bool) -> Values:
    """Return what UCX wants, and UCC's layers."""
    layers = ["ucp", "self", *(row.ucc for vendor, row in VENDORS.items() if accelerators.get(vendor) and row.ucc)]
    own = (",".join(layers), "UCX carries it, and the GPUs' own library")
    return {**ucx_environment(accelerators, rdma), "UCC_TLS": own}


def libfabric_environment(rdma: bool) -> Values:
    """Return libfabric's provider where there is no choice."""
    return {} if rdma else {"FI_PROVIDER": ("tcp", "no RDMA: libfabric need not guess")}


def mpi_environment(accelerators: Accelerators, rdma: bool) -> Values:
    """Return what UCX and libfabric want: MPIs take the one or the other."""
    return {**ucx_environment(accelerators, rdma), **libfabric_environment(rdma)}


def ccl_environment(_accelerators: Accelerators, rdma: bool) -> Values:
    """Return what oneCCL wants."""
    return {
        **libfabric_environment(rdma),
        "CCL_ATL_TRANSPORT": ("ofi", "oneCCL needs no MPI, and a process has but one"),
        "CCL_PROCESS_LAUNCHER": ("torchrun", "LOCAL_RANK and LOCAL_WORLD_SIZE are set under every launcher"),
        "CCL_WORKER_COUNT": ("1", "one progress thread per rank"),
    }


def always(_own: Sequence[str], _launcher: str) -> bool:
    """Every torch has it."""
    return True


def with_mpi(own: Sequence[str], launcher: str) -> bool:
    """Whether a node with these backends of ours has mpi, made for a launcher's MPI."""
    return f"mpi:{launcher}" in own


def with_ccl(own: Sequence[str], _launcher: str) -> bool:
    """Whether a node with these backends of ours has ccl."""
    return "ccl" in own


def with_shm(own: Sequence[str], _launcher: str) -> bool:
    """Whether a node with these backends of ours has shm."""
    return "shm" in own


@dataclass(frozen=True)
class Backend:
    """One backend.

    `provider`: who has a torch with it, for one that the stock wheels lack; the node's torch is asked for it. `ours`:
    it is of role torch_backends, which setup.yml installs. `needs_mpi`: the launcher has to be an MPI. `vendors`: it
    needs their GPUs, alike on all workers. `takes`: whose GPUs' tensors it takes beside those of CPUs, itself or staged
    in host memory. `one_vendor`: it uses GPUs by their vendor's library, which those of another do not have. `device`:
    torch's name of the device whose tensors it carries. `loopback`: the
    variables that keep it within a machine; one without finds its way there by itself. `environment`: what it wants
    beside the NIC on several nodes. `tried`: whether verify.yml can try it on a node that has these backends of ours
    (own_backends() in installed.py), under a launcher; None: it is not tried, unless it has `vendors` (joins_gpus()).
    """

    provider: str = ""
    ours: bool = False
    needs_mpi: bool = False
    vendors: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    one_vendor: bool = False
    device: str = "cpu"
    loopback: Mapping[str, str] = field(default_factory=dict)
    environment: Callable[[Accelerators, bool], Values] = no_environment
    tried: Callable[[Sequence[str], str], bool] | None = None

    @property
    def moves(self) -> tuple[str, ...]:
        """Return the vendors whose GPUs a job with it can use."""
        return self.vendors or self.takes

    @property
    def uses_rdma(self) -> bool:
        """Whether it sends by RDMA where nodes have it: what it wants beside the NIC depends on that."""
        return self.environment is not no_environment

    @property
    def asked(self) -> bool:
        """Whether a node's torch is asked for it."""
        return self.ours or bool(self.provider)


BACKENDS: Mapping[str, Backend] = {
    "gloo": Backend(
        takes=("nvidia", "amd"),
        loopback={"GLOO_SOCKET_IFNAME": "lo"},
        tried=always,
    ),
    "nccl": Backend(
        vendors=("nvidia", "amd"),
        device="cuda",
        loopback={"NCCL_SOCKET_IFNAME": "=lo"},  # = means exactly (NCCL docs)
        environment=nccl_environment,
    ),
    "xccl": Backend(provider="PyTorch's wheels for Intel GPUs have it", vendors=("intel",), device="xpu"),
    "ucc": Backend(
        provider="a PyTorch that was built with UCC has it",
        takes=("nvidia", "amd"),
        one_vendor=True,
        environment=ucc_environment,
    ),
    "mpi": Backend(
        ours=True,
        needs_mpi=True,
        takes=("nvidia", "amd", "intel"),
        environment=mpi_environment,
        tried=with_mpi,
    ),
    "shm": Backend(
        ours=True,
        loopback={"GLOO_SOCKET_IFNAME": "lo"},  # gloo carries what the ranks of a node do not share
        tried=with_shm,
    ),
    "ccl": Backend(
        ours=True,
        loopback={"CCL_KVS_IFACE": "lo", "FI_TCP_IFACE": "lo"},
        environment=ccl_environment,
        tried=with_ccl,
    ),
}


def choose_backend(asked: str | None, launcher: str, facts: Workers, our_torch: bool = True) -> Choice:
    """Return the backend of a job. InputError for one that the workers cannot run.

    `our_torch`: the program uses the torch that the facts tell of. One that is no script may bring its own.
    """
    if asked is None:
        return default_backend(facts)
    backend = BACKENDS[asked]
    if backend.vendors:
        check_gpus(asked, facts, our_torch)
    if backend.one_vendor:
        check_mixed(asked, facts)
    if backend.asked and our_torch:
        check_provided(asked, facts)
    if backend.needs_mpi and launcher not in MPIS:
        raise InputError("backend", asked, f"{launcher} starts no MPI; use -e launcher=openmpi")
    if backend.needs_mpi and our_torch:
        check_made_for(asked, launcher, facts)
    return Choice(asked, "asked for", "user")


def default_backend(facts: Workers) -> Choice:
    """Return the backend of the workers' GPUs if all have those of one vendor and a torch for them, else gloo."""
    for name in BACKENDS:
        if joins_gpus(name, facts):
            return Choice(name, "default: every worker has GPUs and a torch that can use them", "default")
    return Choice("gloo", "default: not every worker has GPUs and a torch that can use them", "default")


def joins_gpus(backend: str, facts: Engines) -> bool:
    """Whether all nodes have GPUs of one vendor that a backend needs, and a torch that is built for these."""
    of = BACKENDS[backend].vendors
    return len(vendors(facts)) == 1 and all(has_gpus(fact, of) and can(fact, of) for fact in facts.values())


def vendors(facts: Engines) -> set[str]:
    """Return whose GPUs there are."""
    return {vendor for fact in facts.values() for vendor, count in fact["accelerators"].items() if count}


def has_gpus(fact: Engine, of: tuple[str, ...]) -> bool:
    """Whether a node has GPUs of some of these vendors."""
    return any(fact["accelerators"].get(vendor) for vendor in of)


def can(fact: Engine, of: tuple[str, ...]) -> bool:
    """Whether a node's torch is built for the GPUs of these vendors that it has; without GPUs: for those of one."""
    here = [vendor for vendor in of if fact["accelerators"].get(vendor)]
    return bool(fact["torch"] and any(fact["torch"].get(VENDORS[vendor].build) for vendor in here or of))


def check_gpus(backend: str, facts: Workers, our_torch: bool) -> None:
    """InputError if a worker has no GPU that the backend works with, or no torch for it, or vendors are mixed."""
    of = BACKENDS[backend].vendors
    without, cpu_only = lacking(facts, lambda fact: has_gpus(fact, of)), lacking(facts, lambda fact: can(fact, of))
    if without:
        raise InputError("backend", backend, f"no GPU on {without}; use -e backend=gloo")
    check_mixed(backend, facts)
    if cpu_only and our_torch:
        raise InputError("backend", backend, f"torch on {cpu_only} has no GPU support; use -e backend=gloo")


def check_mixed(backend: str, facts: Workers) -> None:
    """InputError if the workers have GPUs of several vendors: it names the nodes of each."""
    if len(vendors(facts)) < 2:
        return
    sides = [
        f"{VENDORS[vendor].title} ({', '.join(host for host, fact in facts.items() if has_gpus(fact, (vendor,)))})"
        for vendor in VENDORS
        if vendor in vendors(facts)
    ]
    remedy = "use -e backend=mpi or -e backend=gloo, or name nodes of one vendor (-e nodes=...)"
    reason = f"{' and '.join(sides)}: GPUs of different vendors cannot be mixed under {backend}; {remedy}"
    raise InputError("backend", backend, reason)


def check_provided(backend: str, facts: Workers) -> None:
    """InputError where torch has no such backend."""
    without = lacking(facts, lambda fact: backend in fact["backends"])
    if without:
        install = f"""ansible-playbook setup.yml -e '{{"backends": ["{backend}"]}}' installs it"""
        if any(fact.get("container") for fact in facts.values()):
            install += ", for ranks in an image with -e python= of torchfleet's home there: pytorch/bin/python"
        provider = install if BACKENDS[backend].ours else BACKENDS[backend].provider
        reason = f"torch on {without} has no such backend ({provider}); use -e backend=gloo"
        raise InputError("backend", backend, reason)


def check_made_for(backend: str, launcher: str, facts: Workers) -> None:
    """InputError where our own mpi is not made for the launcher's MPI. A torch with one of its own does not say."""
    made = {host: [name for name in MPIS if f"{backend}:{name}" in fact["backends"]] for host, fact in facts.items()}
    without = [host for host, names in made.items() if names and launcher not in names]
    if not without:
        return
    names = made[without[0]]
    # Some share a build, which is asked for by the first of them.
    kept = [next(each for each in MPIS if LAUNCHERS[each].part == LAUNCHERS[name].part) for name in (*names, launcher)]
    ours = [name for name, row in BACKENDS.items() if row.ours and name in facts[without[0]]["backends"]]
    given = json.dumps({"backends": ours, "mpis": [name for name in MPIS if name in (*kept, launcher)]})
    why = f"on {', '.join(without)} it is made for {' and '.join(names)}, not for {launcher}"
    raise InputError("backend", backend, f"{why}: ansible-playbook setup.yml -e '{given}', or -e launcher={names[0]}")


def lacking(facts: Workers, has: Callable[[NodeFacts], bool]) -> str:
    """Return the nodes that lack something."""
    return ", ".join(host for host, fact in facts.items() if not has(fact))
