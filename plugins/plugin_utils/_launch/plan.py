# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan: which rank runs where, with what. One pure function over frozen values; everything else derives from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import VENDORS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import LAUNCHERS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import (
    AnyFacts,
    Fabric,
    NodeFacts,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.publication import all_have_rails
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node

from .allocation import Allocation, Place, address_of, allocate
from .attempts import ONLY, Attempt
from .backends import BACKENDS, Choice, choose_backend
from .containers import ContainerPlan, check_containers, plan_container
from .data_set import DataSet, lacking, line_of
from .environment import JobEnvironment, Setting
from .gpus import check_targets, idle_gpus
from .launcher_options import (
    LauncherOptions,
)
from .program import Program
from .program_environment import (
    ProgramEnvironment,
    activation_warnings,
    check_environment,
    explained,
    other_versions,
    search_path,
    unmade,
)
from .request import Request
from .requirements import (
    check_addresses,
    check_alone,
    check_fabric,
    check_launcher,
    check_nics,
    check_nodes,
    check_processors,
    check_slurm,
    facts_of_all,
    rendezvous_port,
    warnings_for,
)
from .secrets import secret_names
from .stand_ins import spare_warnings


@dataclass(frozen=True)
class NodePlan:
    """All that is decided about one node of a job."""

    name: str
    address: str
    interpreter: str  # with which the head starts our code there
    ranks: int
    slots: int
    cores: int
    threads: int  # cores of each of its ranks
    home: str
    job_dir: str
    argv: tuple[str, ...]
    cwd: str
    tmpdir: str
    path_first: str
    wrapper: tuple[str, ...]
    runtime: tuple[str, ...]
    launcher_path: str
    fabric: Fabric | None
    hostname: str
    accelerators: Mapping[str, int]
    environment: tuple[Setting, ...] = ()  # of its ranks
    wrapper_environment: tuple[Setting, ...] = ()  # what the rank wrapper adds to it, for people
    known_jobs: tuple[str, ...] = ()  # that ran there when the job was planned
    checkpoint_dir: str = ""  # is made if it is not there; empty: none
    data: str = ""  # the name of the data set of ours that its ranks read; empty: none
    torch: str = ""  # version of the PyTorch that its ranks have; empty: none was found
    clock_offset: float = 0.0  # seconds by which its clock was ahead of the head's when the job was planned
    container: ContainerPlan | None = None  # that its part of the job runs in

    @property
    def vendors(self) -> str:
        """Return whose GPUs it has, in words."""
        names = sorted(VENDORS[vendor].title for vendor, count in self.accelerators.items() if count)
        return " and ".join([*names[:-1], f"{names[-1]} GPUs"]) if names else "no GPU"

    @property
    def nic(self) -> str:
        """Return the NIC that carries its traffic, or an empty text."""
        return self.fabric["nic"] if self.fabric else ""

    @property
    def launcher_search(self) -> tuple[str, str]:
        """Return the directories where a launcher's daemon finds the rank wrapper and its programs."""
        return f"{self.job_dir}/bin", self.launcher_path.rpartition("/")[0]

    @property
    def launcher_prefix(self) -> str:
        """Return the directory in which the launcher is installed: what its bin/ lies in."""
        return self.launcher_path.rpartition("/")[0].rpartition("/")[0]


@dataclass(frozen=True)
class LaunchPlan:
    """All that is decided about a job before anything of it runs."""

    job_id: str
    token: str  # random letters: what has it in its name is this job's
    run_dir: str
    launcher: str
    launcher_path: str
    launcher_version: str
    backend: str
    backend_reason: str
    backend_source: str  # user or default
    world_size: int
    np_reason: str
    np_source: str  # user or inventory
    head: NodePlan  # also one of `nodes` if it runs ranks
    nodes: tuple[NodePlan, ...]  # in rank order
    placement: tuple[Place, ...]
    program: Program
    master_addr: str
    master_port: int
    options: LauncherOptions
    job_timeout: float | None
    grace: float | None  # by what a rank does with SIGTERM
    lease: float
    show_ranks: tuple[int, ...]
    uid: int
    hang_look: float = 0.0  # seconds without a sign of life, until the job is looked at; 0: never
    hang_end: bool = False  # it is ended if two looks found the same hang
    notice: float | None = None  # SIGUSR1 comes this many seconds before the end of job_timeout
    restarts: int = 0  # how often the job was started before
    exclusive: bool = False  # no other job may be on its nodes when it starts
    sample: bool = True  # what its ranks take of their nodes is read
    shipped: str = ""  # one line on what is copied to the nodes and what is left out
    code: str = ""  # a digest of the script, or of the files that are copied with it; empty: not known here
    data: str = ""  # one line on the data set
    lacking: tuple[str, ...] = ()  # nodes on which it is not, or not whole
    collect: tuple[str, ...] = ()  # globs of what ranks write that comes home
    collect_every: float | None = None  # seconds between two collections by who follows the job; None: at its end
    collect_files: int = 0  # that a node may send of them, whoever fetches them on this controller
    collect_limit: int = 0  # bytes
    secrets: tuple[str, ...] = ()  # names of variables whose values are shown nowhere
    packages: tuple[str, ...] = ()  # what the program needs beside torch, for people
    unmade: tuple[str, ...] = ()  # nodes that do not have these
    owner: str = ""  # who starts it, for people: user@controller
    warnings: tuple[str, ...] = ()

    @property
    def contexts(self) -> tuple[tuple[str, int], ...]:
        """Return kind and number of ranks of each app context: runs of ranks on nodes with the same vendor's GPUs.

        Where ranks take the nodes in turn, there is one for all of them.
        """
        vendors = {node.name: node.vendors for node in self.nodes}
        runs = [(kind, len(list(run))) for kind, run in groupby(vendors[place.host] for place in self.placement)]
        if self.options.map_by == "node" and len(runs) > 1:
            return ((" and ".join(sorted(set(vendors.values()))), self.world_size),)
        return tuple(runs)

    @property
    def launcher_ports(self) -> tuple[int, int] | None:
        """Return which of the ports the launcher and MPI may take: those on the longer side of the rendezvous' own."""
        return beside(self.options.ports, self.master_port)

    @property
    def other_nodes(self) -> tuple[NodePlan, ...]:
        """Return the nodes that the head reaches over SSH."""
        return tuple(node for node in self.nodes if node.name != self.head.name)


def beside(ports: tuple[int, int] | None, taken: int) -> tuple[int, int] | None:
    """Return the ports on the longer side of one that is taken."""
    first, last = ports or (0, 0)
    if not first <= taken <= last:
        return ports
    return max((first, taken - 1), (taken + 1, last), key=lambda side: side[1] - side[0])


def shown_ranks(request: Request, world_size: int) -> tuple[int, ...]:
    """Return the ranks the live view shows. InputError for one that will not exist."""
    wanted = range(world_size) if request.show_ranks is None else request.show_ranks
    for rank in wanted:
        if rank >= world_size:
            raise InputError("show_ranks", rank, f"the ranks are 0 to {world_size - 1}: -e show_ranks=all")
    return tuple(wanted)


def plan_node(node: Node, fact: NodeFacts, allocation: Allocation, job: Job, environment: JobEnvironment) -> NodePlan:
    """Return what is decided about one node."""
    ranks = allocation.ranks[node.name]
    job_dir = f"{fact['home']}/jobs/{job.job_id}"
    argv, cwd = job.program.on(fact, job_dir)
    runtime = (fact["interpreter"], "-I", "-S", f"{fact['home']}/{job.runtime}")
    threads = max(1, fact["cores"] // max(1, ranks))
    path_first = search_path(fact)
    settings = environment.on(node, fact, threads) if ranks else ()
    checkpoints = job.attempt.directory_on(fact) if ranks else ""
    at_work = cwd if ranks else fact["home"] if node.container.image else fact["cwd"]
    places = [place for place in (at_work, script_folder(job.program), checkpoints) if place]
    return NodePlan(
        name=node.name,
        address=address_of(node, fact),
        interpreter=node.interpreter,
        ranks=ranks,
        slots=allocation.slots[node.name] if ranks else 0,
        cores=fact["cores"],
        threads=threads,
        home=fact["home"],
        job_dir=job_dir,
        argv=argv,
        cwd=at_work,
        tmpdir=fact["tmpdir"],
        path_first=path_first,
        wrapper=(*runtime, "rank", job_dir),
        runtime=runtime,
        launcher_path=fact["launcher"]["path"],
        fabric=fact["fabric"],
        hostname=fact["hostname"],
        accelerators=fact["accelerators"],
        environment=settings,
        wrapper_environment=environment.set_by_wrapper(path_first, settings) if ranks else (),
        known_jobs=tuple(job["job_id"] for job in fact["running"]),
        checkpoint_dir=checkpoints,
        data=job.data.name if ranks and job.data else "",
        torch=(fact["torch"] or {}).get("version", ""),
        clock_offset=fact["clock_offset"],
        container=plan_container(node, fact, job.job_id, job.token, runtime, places),
    )


def script_folder(program: Program) -> str:
    """Return the folder of a script that is used where it lies; empty if it is shipped, or there is none."""
    return "" if program.shipped else program.folder or program.script.rpartition("/")[0]


@dataclass(frozen=True)
class Job:
    """What a job is before it is planned. `runtime`: our code on a node, below its home. `token`: random letters."""

    job_id: str
    run_dir: str
    program: Program
    runtime: str
    token: str
    warnings: tuple[str, ...] = ()
    shipped: str = ""
    attempt: Attempt = ONLY
    needs: ProgramEnvironment | None = None  # beside torch
    data: DataSet | None = None
    code: str = ""  # a digest of the script and what is copied with it
    owner: str = ""


def plan_job(request: Request, cluster: Cluster, answers: Mapping[str, AnyFacts], job: Job) -> LaunchPlan:
    """Return the plan of a job. InputError for what cannot work. `answers`: by node name, as survey() returns them."""
    secrets, python = secret_names(request, cluster.workers), job.program.runs_python
    facts = facts_of_all(cluster, answers)
    check_software(request, cluster, facts, needs_torch=python)
    candidates = {node.name: facts[node.name] for node in cluster.workers}
    backend = choose_backend(request.backend, request.launcher, candidates, our_torch=python)
    given = {node.name: {**node.env, **request.job_env} for node in cluster.workers}
    if python:
        check_targets(backend, candidates, given)
    allocation = allocate(request, cluster, facts, backend.name if BACKENDS[backend.name].vendors else "")
    check_processors(cluster, allocation.workers, facts, request.launcher)
    facts = facts_of_network(request, cluster.head, allocation.workers, facts, secrets)
    check_alone(request, allocation.workers, cluster, facts)
    head, workers, used = cluster.head, allocation.workers, {name: facts[name] for name in allocation.names}
    check_environment(job.needs, used)
    may_stand_in = request.attempts_rule and not job.attempt.restarts  # then a free worker has what the program needs
    prepared, without_data = candidates if may_stand_in else used, lacking(job.data, used)
    environment = environment_of(request, job, allocation, facts, backend, secrets)
    nodes = tuple(plan_node(node, facts[node.name], allocation, job, environment) for node in workers)
    of_head = next((node for node in nodes if node.name == head.name), None)
    of_head = of_head or plan_node(head, facts[head.name], allocation, job, environment)
    launcher = facts[head.name if LAUNCHERS[request.launcher].on_head else nodes[0].name]["launcher"]
    warnings = [*job.warnings, *(job.data.warnings if job.data else ()), *activation_warnings(used)]
    warnings += other_versions(job.needs, used)
    if python:
        warnings += idle_gpus(backend, candidates, given, allocation.ranks, allocation.np_source == "user")
    warnings += warnings_for(request, workers, facts, request.options.ports, secrets)
    warnings += spare_warnings(request, cluster, allocation.names)
    return LaunchPlan(
        job_id=job.job_id, token=job.token, run_dir=job.run_dir, program=job.program, shipped=job.shipped,
        code=job.code, restarts=job.attempt.restarts, launcher=request.launcher, launcher_path=launcher["path"],
        launcher_version=launcher["version"], backend=backend.name, backend_reason=backend.reason,
        backend_source=backend.source, world_size=len(allocation.placement), np_reason=allocation.np_reason,
        np_source=allocation.np_source, placement=allocation.placement, head=of_head, nodes=nodes,
        uid=facts[head.name]["uid"], master_addr=environment.master[0], master_port=environment.master[1],
        options=request.options, job_timeout=request.job_timeout, notice=request.notice, grace=request.grace,
        hang_look=request.hang_look, hang_end=request.hang_end, lease=request.lease, exclusive=request.exclusive,
        sample=request.sample, secrets=secrets, show_ranks=shown_ranks(request, len(allocation.placement)),
        data=line_of(job.data, {name: fact["home"] for name, fact in used.items()}, without_data), lacking=without_data,
        packages=tuple(explained(job.needs, prepared)), unmade=tuple(unmade(job.needs, prepared)),
        owner=job.owner, warnings=tuple(warnings), collect_every=request.collect_every,
        collect=request.collect, collect_files=request.collect_files, collect_limit=request.collect_limit,
    )  # fmt: skip


def check_software(request: Request, cluster: Cluster, facts: Mapping[str, NodeFacts], needs_torch: bool) -> None:
    """InputError if a node lacks what the job needs: its image, the launcher, Python and torch."""
    check_containers(cluster, facts)
    check_launcher(request.launcher, cluster, facts)
    check_slurm(request.launcher, cluster, facts)
    check_nodes(request, cluster, facts, needs_torch=needs_torch)


def facts_of_network(
    request: Request, head: Node, workers: Sequence[Node], facts: Mapping[str, NodeFacts], secrets: Sequence[str]
) -> dict[str, NodeFacts]:
    """Return the facts with the network as this job uses it. InputError for one that cannot work."""
    check_fabric([node.name for node in workers], facts)
    found = with_rails_of(workers, facts) if request.rdma else without_rails(facts)
    check_addresses({head.name, *(node.name for node in workers)}, found)
    check_nics(workers, found, request.job_env, secrets)
    return found


def environment_of(
    request: Request,
    job: Job,
    allocation: Allocation,
    facts: Mapping[str, NodeFacts],
    backend: Choice,
    secrets: tuple[str, ...],
) -> JobEnvironment:
    """Return what the environment of all ranks comes from."""
    first, several = allocation.workers[0], len(allocation.workers) > 1
    port = rendezvous_port(request, first, facts)
    master = (address_of(first, facts[first.name]) if several else "127.0.0.1", port)
    return JobEnvironment(
        job.job_id, backend, several, request.job_env, secrets, master, beside(request.options.ports, port),
        job.attempt, request.job_timeout, job.data, request.profile.variables(len(allocation.placement)),
        request.launcher,
    )  # fmt: skip


def with_rails_of(workers: Sequence[Node], facts: Mapping[str, NodeFacts]) -> dict[str, NodeFacts]:
    """Return the facts with RDMA as these workers have it: another one may be why it is off for all together."""
    if not all_have_rails(facts[node.name]["fabric"] for node in workers):
        return dict(facts)
    return {name: {**fact, "fabric": in_use(fact["fabric"])} for name, fact in facts.items()}


def without_rails(facts: Mapping[str, NodeFacts]) -> dict[str, NodeFacts]:
    """Return the facts as of nodes whose RDMA is off, because the user wants that."""
    return {name: {**fact, "fabric": switched_off(fact["fabric"])} for name, fact in facts.items()}


def switched_off(fabric: Fabric | None) -> Fabric | None:
    """Return a fabric.json with RDMA off, of every kind."""
    return {**fabric, "rdma_off": "rdma=false was given", "other_rdma": ""} if fabric else None


def in_use(fabric: Fabric | None) -> Fabric | None:
    """Return a fabric.json with RDMA on."""
    return {**fabric, "rdma_off": ""} if fabric else None
