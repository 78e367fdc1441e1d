# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What carries the collectives: which backend, whether the nodes have it, and the environment that it wants."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.launchers import MPIS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Facts

from .request import Request

Workers = Mapping[str, Facts]
# Whoever gets these has a torch that is not the stock wheel.
PROVIDERS = {
    "xccl": "PyTorch's wheels for Intel GPUs have it",
    "ucc": "a PyTorch that was built with UCC has it",
    "mpi": """ansible-playbook setup.yml -e '{"backends": ["mpi"]}' installs it""",
    "ccl": """ansible-playbook setup.yml -e '{"backends": ["ccl"]}' installs it""",
}
# Small copies of GPU buffers take a detour through the host otherwise (seed 000; names from UCX, UCC and Open MPI).
ROCM_LIMITS = (
    *("UCX_ROCM_COPY_D2H_THRESH", "UCX_ROCM_COPY_H2D_THRESH"),
    *("UCC_EC_ROCM_REDUCE_HOST_LIMIT", "UCC_EC_ROCM_COPY_HOST_LIMIT"),
    *("OMPI_MCA_mpi_accelerator_rocm_memcpyD2H_limit", "OMPI_MCA_mpi_accelerator_rocm_memcpyH2D_limit"),
)


def choose_backend(request: Request, facts: Workers, our_torch: bool = True) -> tuple[str, str, str]:
    """Return the backend, why, and where that comes from. InputError for one that the workers cannot run.

    `our_torch`: the program uses the torch that the facts tell of. One that is no script may bring its own.
    """
    if request.backend is None:
        usable = all(map(has_gpus, facts.values())) and len(vendors(facts)) == 1 and all(map(can, facts.values()))
        if usable:
            return "nccl", "default: every worker has GPUs and a torch that can use them", "default"
        return "gloo", "default: not every worker has GPUs and a torch that can use them", "default"
    if request.backend == "nccl":
        check_nccl(facts, our_torch)
    if request.backend in PROVIDERS and our_torch:
        check_provided(request.backend, facts)
    if request.backend == "mpi" and request.launcher not in MPIS:
        raise InputError("backend", "mpi", f"{request.launcher} starts no MPI; use -e launcher=openmpi")
    if request.backend == "mpi" and our_torch:
        check_made_for(request.launcher, facts)
    return request.backend, "asked for", "user"


def vendors(facts: Workers) -> set[str]:
    """Return whose GPUs there are."""
    return {vendor for fact in facts.values() for vendor, count in fact["accelerators"].items() if count}


def has_gpus(fact: Facts) -> bool:
    """Whether a node has GPUs."""
    return any(fact["accelerators"].values())


def can(fact: Facts) -> bool:
    """Whether a node's torch can use NVIDIA's or AMD's GPUs."""
    return bool(fact["torch"] and (fact["torch"]["cuda"] or fact["torch"]["hip"]))


def check_nccl(facts: Workers, our_torch: bool) -> None:
    """InputError where GPUs or a torch for them lack, or vendors differ."""
    without, cpu_only = lacking(facts, has_gpus), lacking(facts, can)
    if without:
        raise InputError("backend", "nccl", f"no GPU on {without}; use -e backend=gloo")
    if len(vendors(facts)) > 1:
        reason = "NVIDIA and AMD GPUs cannot be mixed under nccl; use -e backend=mpi or -e backend=gloo"
        raise InputError("backend", "nccl", reason)
    if cpu_only and our_torch:
        raise InputError("backend", "nccl", f"torch on {cpu_only} has no GPU support; use -e backend=gloo")


def check_provided(backend: str, facts: Workers) -> None:
    """InputError where torch has no such backend."""
    without = lacking(facts, lambda fact: backend in fact["backends"])
    if without:
        reason = f"torch on {without} has no such backend ({PROVIDERS[backend]}); use -e backend=gloo"
        raise InputError("backend", backend, reason)


def check_made_for(launcher: str, facts: Workers) -> None:
    """InputError where our own mpi is not made for the launcher's MPI. A torch with one of its own does not say."""
    made = {host: [name for name in MPIS if f"mpi:{name}" in fact["backends"]] for host, fact in facts.items()}
    without = [host for host, names in made.items() if names and launcher not in names]
    if not without:
        return
    names = made[without[0]]
    kept = [name for name in names if name != "intelmpi"] + ["mpich"] * (launcher == "intelmpi")  # they share a build
    backends = [name for name in ("mpi", "ccl") if name in facts[without[0]]["backends"]]
    given = json.dumps({"backends": backends, "mpis": [name for name in MPIS if name in (*kept, launcher)]})
    why = f"on {', '.join(without)} it is made for {' and '.join(names)}, not for {launcher}"
    raise InputError("backend", "mpi", f"{why}: ansible-playbook setup.yml -e '{given}', or -e launcher={names[0]}")


def lacking(facts: Workers, has: Callable[[Facts], bool]) -> str:
    """Return the nodes that lack something."""
    return ", ".join(host for host, fact in facts.items() if not has(fact))


def backend_environment(backend: str, accelerators: Mapping[str, int], rdma: bool) -> dict[str, tuple[str, str]]:
    """Return what a backend wants of the environment beside the NIC: value and reason by name."""
    values: dict[str, tuple[str, str]] = {}
    if backend == "nccl" and not rdma:
        reason = "one TCP stream does not fill a fast link; the product is at most 64 (NCCL docs)"
        values.update(NCCL_SOCKET_NTHREADS=("4", reason), NCCL_NSOCKS_PERTHREAD=("8", reason))
    if backend in ("mpi", "ucc"):
        values["UCX_TLS"] = (transports(accelerators, rdma), "what this node's memory and network have")
        values.update({name: ("0", "GPU buffers never detour") for name in ROCM_LIMITS if accelerators.get("amd")})
    if backend == "ucc":
        own = {"amd": ",rccl", "nvidia": ",nccl"}
        gpus = "".join(own[vendor] for vendor, count in accelerators.items() if count)
        values["UCC_TLS"] = ("ucp,self" + gpus, "UCX carries it, and the GPUs' own library")
    if backend in ("mpi", "ccl") and not rdma:
        values["FI_PROVIDER"] = ("tcp", "no RDMA: libfabric need not guess")
    if backend == "ccl":
        values["CCL_ATL_TRANSPORT"] = ("ofi", "oneCCL needs no MPI, and a process has but one")
        values["CCL_PROCESS_LAUNCHER"] = ("torchrun", "LOCAL_RANK and LOCAL_WORLD_SIZE are set under every launcher")
        values["CCL_WORKER_COUNT"] = ("1", "one progress thread per rank")
    return values


def transports(accelerators: Mapping[str, int], rdma: bool) -> str:
    """Return UCX's transports for a node."""
    names = ["rc"] * rdma + ["tcp", "sm", "self"]
    return ",".join(names + ["cuda"] * bool(accelerators.get("nvidia")) + ["rocm"] * bool(accelerators.get("amd")))
