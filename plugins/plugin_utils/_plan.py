# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan: which rank runs where, with what. One pure function over frozen values; everything else derives from it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError, Request

Facts = Mapping[str, Any]

HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?\Z")
LEAST_FREE_BYTES = 64 << 20  # for a job's own files; what a rank writes is the user's to know
SETUP = "install it with: ansible-playbook setup.yml"


@dataclass(frozen=True)
class Node:
    """A machine of the inventory. Empty texts and None mean: as measured on the node."""

    name: str
    address: str
    local: bool = False
    slots: int | None = None
    home: str = ""
    python: str = ""
    launcher_path: str = ""
    interpreter: str = ""


@dataclass(frozen=True)
class Cluster:
    """The nodes of a job: the head runs the launcher, the workers run ranks."""

    head: Node
    workers: tuple[Node, ...]


@dataclass(frozen=True)
class Place:
    """Where one rank runs."""

    rank: int
    local_rank: int
    host: str


@dataclass(frozen=True)
class AppContext:
    """Ranks that share a program (launchers separate several with `:`)."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]


@dataclass(frozen=True)
class LaunchPlan:
    """All that is decided about a job before anything of it runs."""

    job_id: str
    run_dir: str
    launcher: str
    launcher_path: str
    launcher_version: str
    backend: str
    backend_reason: str
    world_size: int
    np_reason: str
    nodes: tuple[Node, ...]
    slots: Mapping[str, int]
    placement: tuple[Place, ...]
    app: AppContext
    master_addr: str
    master_port: int
    threads: Mapping[str, int]
    job_timeout: float | None
    grace: float
    show_ranks: tuple[int, ...]
    uid: int
    job_dir: str
    path_first: str
    wrapper: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def check_cluster(cluster: Cluster) -> None:
    """InputError if the inventory cannot be a cluster: bad or doubled hosts and addresses."""
    seen: dict[str, str] = {}
    for node in (cluster.head, *cluster.workers):
        if not HOST_NAME.match(node.name):
            raise InputError("inventory", node.name, "a host name is made of letters, digits, '.', '-' and '_'")
        if not ADDRESS.match(node.address):
            raise InputError(
                f"ansible_host of {node.name}", node.address, "give a host name or an address, without user or options"
            )
        if seen.setdefault(node.address, node.name) != node.name:
            both = f"{seen[node.address]} and {node.name} are both {node.address}"
            raise InputError("inventory", both, "list each machine once; several ranks on it are its slots")
    for node in cluster.workers:
        if node is not cluster.head and node.name != cluster.head.name:
            raise InputError(
                "inventory", node.name, "only the head can be a worker so far: training across machines is to come"
            )


def place_ranks(slots: Mapping[str, int], count: int) -> tuple[Place, ...]:
    """Return the placement by slot: fill each node before the next, as `--map-by slot` does."""
    places: list[Place] = []
    for host, room in slots.items():
        for local_rank in range(min(room, count - len(places))):
            places.append(Place(len(places), local_rank, host))
    return tuple(places)


def choose_backend(request: Request, facts: Mapping[str, Facts]) -> tuple[str, str]:
    """Return the backend and why. InputError for nccl where GPUs or a torch for them lack, or vendors differ."""
    gpus = {host: sum(fact["accelerators"].values()) for host, fact in facts.items()}
    vendors = {vendor for fact in facts.values() for vendor, count in fact["accelerators"].items() if count}
    capable = {
        host: bool(fact["torch"] and (fact["torch"]["cuda"] or fact["torch"]["hip"])) for host, fact in facts.items()
    }
    if request.backend is None:
        if all(gpus.values()) and len(vendors) == 1 and all(capable.values()):
            return "nccl", "default: every worker has GPUs and a torch that can use them"
        return "gloo", "default: not every worker has GPUs and a torch that can use them"
    if request.backend == "nccl":
        without = [host for host, count in gpus.items() if not count]
        if without:
            raise InputError("backend", "nccl", f"no GPU on {', '.join(without)}; use -e backend=gloo")
        if len(vendors) > 1:
            raise InputError("backend", "nccl", "NVIDIA and AMD GPUs cannot be mixed under nccl; use -e backend=gloo")
        cpu_only = [host for host, can in capable.items() if not can]
        if cpu_only:
            raise InputError(
                "backend", "nccl", f"torch on {', '.join(cpu_only)} has no GPU support; use -e backend=gloo"
            )
    return request.backend, "asked for"


def count_ranks(request: Request, slots: Mapping[str, int]) -> tuple[int, str]:
    """Return the world size and why. InputError if more ranks are asked for than there are slots."""
    total = sum(slots.values())
    if request.np is None:
        return total, "all slots of the workers"
    if request.np > total:
        each = ", ".join(f"{host} has {count}" for host, count in slots.items())
        raise InputError("np", request.np, f"there are {total} slots ({each}): use -e np={total} or raise slots")
    return request.np, "asked for"


def slots_of(nodes: Sequence[Node], facts: Mapping[str, Facts]) -> dict[str, int]:
    """Return the slots of each worker: as the inventory says, else its accelerators, else its cores."""
    return {
        node.name: node.slots or sum(facts[node.name]["accelerators"].values()) or facts[node.name]["cores"]
        for node in nodes
    }


def check_nodes(request: Request, cluster: Cluster, facts: Mapping[str, Facts], needs_torch: bool) -> None:
    """InputError if a node lacks what the job needs: launcher, Python, torch, space, a job id of its own."""
    head = facts[cluster.head.name]
    launcher = head["launcher"]
    if not launcher["path"] or not launcher["version"]:
        silent = f"{launcher['path']} tells no version {launcher['said']}".rstrip()
        what = silent if launcher["path"] else f"{launcher['wanted']} is not there"
        raise InputError("launcher", request.launcher, f"{what} on {cluster.head.name}; {SETUP}")
    for node in cluster.workers:
        fact = facts[node.name]
        if not fact["python"]:
            raise InputError("python", fact["python_wanted"], f"not on {node.name}; {SETUP}")
        if needs_torch and not fact["torch"]:
            raise InputError("torch", fact["python"], f"this Python on {node.name} has no torch; {SETUP}")
        if fact["free_bytes"] < LEAST_FREE_BYTES:
            free = f"{fact['free_bytes'] >> 20} MiB free in {fact['home']} on {node.name}"
            raise InputError("disk", free, f"at least {LEAST_FREE_BYTES >> 20} MiB are needed: make room")
        if request.job_id in fact["jobs"]:
            raise InputError(
                "job_id",
                request.job_id,
                f"this id was used on {node.name}: choose another, or ansible-playbook clean.yml",
            )


def shown_ranks(request: Request, world_size: int) -> tuple[int, ...]:
    """Return the ranks the live view shows. InputError for one that will not exist."""
    wanted = range(world_size) if request.show_ranks is None else request.show_ranks
    for rank in wanted:
        if rank >= world_size:
            raise InputError("show_ranks", rank, f"the ranks are 0 to {world_size - 1}: -e show_ranks=all")
    return tuple(wanted)


def plan_job(
    request: Request, cluster: Cluster, facts: Mapping[str, Facts], job_id: str, run_dir: str, script: str, runtime: str
) -> LaunchPlan:
    """Return the plan of a job. InputError for what cannot work.

    `facts` by node name, as survey() returns them; `script` is the resolved workload; `runtime` the script that
    starts our code on the head.
    """
    runs_python = script.endswith(".py")
    check_nodes(request, cluster, facts, needs_torch=runs_python)
    workers = {node.name: facts[node.name] for node in cluster.workers}
    backend, backend_reason = choose_backend(request, workers)
    slots = slots_of(cluster.workers, facts)
    world_size, np_reason = count_ranks(request, slots)
    placement = place_ranks(slots, world_size)
    used = {place.host for place in placement}
    nodes = tuple(node for node in cluster.workers if node.name in used)
    head, first = facts[cluster.head.name], facts[nodes[0].name]
    job_dir = f"{head['home']}/jobs/{job_id}"
    local_sizes = {node.name: sum(place.host == node.name for place in placement) for node in nodes}
    program = (first["python"], script) if runs_python else (script,)
    return LaunchPlan(
        job_id=job_id,
        run_dir=run_dir,
        launcher=request.launcher,
        launcher_path=head["launcher"]["path"],
        launcher_version=head["launcher"]["version"],
        backend=backend,
        backend_reason=backend_reason,
        world_size=world_size,
        np_reason=np_reason,
        nodes=nodes,
        slots=slots,
        placement=placement,
        app=AppContext((*program, *request.workload_args), head["cwd"], request.job_env),
        master_addr="127.0.0.1" if nodes[0].local else nodes[0].address,
        master_port=first["port"],
        threads={node.name: max(1, facts[node.name]["cores"] // local_sizes[node.name]) for node in nodes},
        job_timeout=request.job_timeout,
        grace=request.grace,
        show_ranks=shown_ranks(request, world_size),
        uid=head["uid"],
        job_dir=job_dir,
        path_first=first["python"].rpartition("/")[0],
        wrapper=(first["interpreter"], "-I", "-S", runtime, "rank", job_dir),
        warnings=tuple(warnings_for(request, nodes, facts, first["port"])),
    )


def warnings_for(request: Request, nodes: Sequence[Node], facts: Mapping[str, Facts], port: int) -> list[str]:
    """Return what is odd but no reason to refuse."""
    found = []
    if request.master_port and request.master_port != port:
        found.append(f"master_port {request.master_port} is taken on {nodes[0].name}: using {port}")
    for node in nodes:
        left = facts[node.name]["leftovers"]
        if left:
            jobs = ", ".join(sorted({row["job_id"] for row in left}))
            found.append(
                f"{node.name} has {len(left)} leftover processes of {jobs}: ansible-playbook clean.yml ends them"
            )
        if facts[node.name]["uid"] == 0:
            found.append(f"ranks run as root on {node.name}, because you connect as root")
    return found
