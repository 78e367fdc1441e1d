# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan: which rank runs where, with what. One pure function over frozen values; everything else derives from it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._folder import FOLDERS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError, Request

Facts = Mapping[str, Any]

HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?\Z")
LEAST_FREE_BYTES = 64 << 20  # for a job's own files; what a rank writes is the user's to know
SETUP = "install it with: ansible-playbook setup.yml"
MESH = "ansible-playbook setup.yml --tags ssh_mesh"


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

    @property
    def local(self) -> bool:
        """Whether this machine is the whole cluster."""
        return self.head.local and all(node.name == self.head.name for node in self.workers)


@dataclass(frozen=True)
class Place:
    """Where one rank runs."""

    rank: int
    local_rank: int
    host: str


@dataclass(frozen=True)
class Program:
    """What every rank runs: a script (its path on each node is the node's) with arguments and the user's variables.

    `folder`: the name under which the script's folder is shipped; empty if the script is used where it lies.
    """

    script: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    folder: str = ""

    @property
    def runs_python(self) -> bool:
        """Whether the script needs an interpreter."""
        return self.script.endswith(".py")

    def on(self, fact: Facts) -> tuple[tuple[str, ...], str]:
        """Return the command line and the working directory on a node."""
        where = f"{fact['home']}/{FOLDERS}/{self.folder}" if self.folder else ""
        script = f"{where}/{self.script.rpartition('/')[2]}" if where else self.script
        interpreter = (fact["python"],) if self.runs_python else ()
        return (*interpreter, script, *self.args), where or fact["cwd"]


@dataclass(frozen=True)
class NodePlan:
    """What is decided about one node of a job."""

    name: str
    address: str
    ranks: int
    slots: int
    threads: int
    home: str
    job_dir: str
    argv: tuple[str, ...]
    cwd: str
    tmpdir: str
    path_first: str
    wrapper: tuple[str, ...]
    runtime: tuple[str, ...]
    launcher_path: str
    fabric: Facts | None


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
    head: NodePlan  # also one of `nodes` if it runs ranks
    nodes: tuple[NodePlan, ...]  # in rank order
    placement: tuple[Place, ...]
    program: Program
    master_addr: str
    master_port: int
    job_timeout: float | None
    grace: float
    show_ranks: tuple[int, ...]
    uid: int
    warnings: tuple[str, ...] = ()

    @property
    def others(self) -> tuple[NodePlan, ...]:
        """Return the nodes that the head reaches over SSH."""
        return tuple(node for node in self.nodes if node.name != self.head.name)


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


def slots_of(nodes: Sequence[Node], facts: Mapping[str, Facts], most: int | None = None) -> dict[str, int]:
    """Return the slots of each worker: as the inventory says, else its accelerators, else its cores; `most` at most."""
    slots = {
        node.name: node.slots or sum(facts[node.name]["accelerators"].values()) or facts[node.name]["cores"]
        for node in nodes
    }
    return {name: min(count, most or count) for name, count in slots.items()}


def check_reached(cluster: Cluster, facts: Mapping[str, Facts]) -> None:
    """InputError naming every node that the head cannot reach."""
    unreached = {name: fact["unreachable"] for name, fact in facts.items() if "unreachable" in fact}
    if unreached:
        told = "; ".join(f"{name}: {reason}" for name, reason in unreached.items())
        raise InputError("inventory", ", ".join(unreached), f"not reached from {cluster.head.name} ({told}): {MESH}")


def check_launcher(request: Request, name: str, launcher: Mapping[str, str], head: Mapping[str, str]) -> None:
    """InputError if a node has no such launcher, or another version than the head."""
    if not launcher["path"] or not launcher["version"]:
        silent = f"{launcher['path']} tells no version {launcher['said']}".rstrip()
        what = silent if launcher["path"] else f"{launcher['wanted']} is not there"
        raise InputError("launcher", request.launcher, f"{what} on {name}; {SETUP}")
    if launcher["version"] != head["version"]:
        raise InputError(
            "launcher",
            f"{request.launcher} {launcher['version']}",
            f"on {name}, but {head['version']} on the head; {SETUP}",
        )


def check_nodes(request: Request, cluster: Cluster, facts: Mapping[str, Facts], needs_torch: bool) -> None:
    """InputError if a node lacks what the job needs: launcher, Python, torch, space, a job id of its own."""
    first = facts[cluster.workers[0].name if request.launcher == "torchrun" else cluster.head.name]
    if request.launcher != "torchrun":
        check_launcher(request, cluster.head.name, first["launcher"], first["launcher"])
    for node in cluster.workers:
        fact = facts[node.name]
        check_launcher(request, node.name, fact["launcher"], first["launcher"])
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


def plan_node(node: Node, facts: Mapping[str, Facts], placed: Sequence[Place], room: int, job: Job) -> NodePlan:
    """Return what is decided about one node."""
    fact = facts[node.name]
    ranks = sum(place.host == node.name for place in placed)
    job_dir = f"{fact['home']}/jobs/{job.job_id}"
    argv, cwd = job.program.on(fact)
    runtime = (fact["interpreter"], "-I", "-S", f"{fact['home']}/{job.runtime}")
    return NodePlan(
        name=node.name,
        address=(fact["fabric"] or {}).get("address") or node.address,
        ranks=ranks,
        slots=room,
        threads=max(1, fact["cores"] // max(1, ranks)),
        home=fact["home"],
        job_dir=job_dir,
        argv=argv,
        cwd=cwd if ranks else fact["cwd"],
        tmpdir=fact["tmpdir"],
        path_first=fact["python"].rpartition("/")[0],
        wrapper=(*runtime, "rank", job_dir),
        runtime=runtime,
        launcher_path=fact["launcher"]["path"],
        fabric=fact["fabric"],
    )


@dataclass(frozen=True)
class Job:
    """What a job is before it is planned. `runtime`: our code on a node, below its home."""

    job_id: str
    run_dir: str
    program: Program
    runtime: str


def plan_job(request: Request, cluster: Cluster, facts: Mapping[str, Facts], job: Job) -> LaunchPlan:
    """Return the plan of a job. InputError for what cannot work.

    `facts` by node name, as survey() returns them.
    """
    check_reached(cluster, facts)
    check_nodes(request, cluster, facts, needs_torch=job.program.runs_python)
    workers = {node.name: facts[node.name] for node in cluster.workers}
    backend, backend_reason = choose_backend(request, workers)
    slots = slots_of(cluster.workers, facts, request.ranks_per_node)
    world_size, np_reason = count_ranks(request, slots)
    placement = place_ranks(slots, world_size)
    used = {place.host for place in placement}
    nodes = tuple(
        plan_node(node, facts, placement, slots[node.name], job) for node in cluster.workers if node.name in used
    )
    head = next((node for node in nodes if node.name == cluster.head.name), None)
    head = head or plan_node(cluster.head, facts, placement, 0, job)
    check_fabric(nodes)
    first = facts[nodes[0].name]
    launcher = first["launcher"] if request.launcher == "torchrun" else facts[head.name]["launcher"]
    return LaunchPlan(
        job_id=job.job_id,
        run_dir=job.run_dir,
        launcher=request.launcher,
        launcher_path=launcher["path"],
        launcher_version=launcher["version"],
        backend=backend,
        backend_reason=backend_reason,
        world_size=world_size,
        np_reason=np_reason,
        head=head,
        nodes=nodes,
        placement=placement,
        program=job.program,
        master_addr="127.0.0.1" if len(nodes) == 1 else nodes[0].address,
        master_port=first["port"],
        job_timeout=request.job_timeout,
        grace=request.grace,
        show_ranks=shown_ranks(request, world_size),
        uid=facts[head.name]["uid"],
        warnings=tuple(warnings_for(request, nodes, facts, first["port"])),
    )


def check_fabric(nodes: Sequence[NodePlan]) -> None:
    """InputError if the chosen NICs of the nodes are in different networks: a node was added or changed since."""
    networks = {node.name: node.fabric["network"] for node in nodes if node.fabric}
    if len(nodes) > 1 and len(set(networks.values())) > 1:
        told = ", ".join(f"{name} {network}" for name, network in networks.items())
        raise InputError("fabric", told, "the chosen NICs are in different networks: ansible-playbook setup.yml")


def warnings_for(request: Request, nodes: Sequence[NodePlan], facts: Mapping[str, Facts], port: int) -> list[str]:
    """Return what is odd but no reason to refuse."""
    found = []
    unmeasured = [node.name for node in nodes if not node.fabric]
    if len(nodes) > 1 and unmeasured:
        who = ", ".join(unmeasured)
        found.append(f"no NIC was chosen for {who}, libraries guess: ansible-playbook setup.yml --tags fabric")
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
