# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a job needs of its nodes. What is missing is refused before anything starts; what is odd gives a warning."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import (
    DEFAULT,
    LAUNCHERS,
    MPIS,
    STARTED_BY_SLURMD,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import (
    AnyFacts,
    NodeFacts,
    RunningJob,
    SlurmPrograms,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.publication import fabric_environment
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.rejections import WITHOUT_FLAW
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node

from .request import Request
from .secrets import HIDDEN

LEAST_FREE_BYTES = 64 << 20  # for a job's own files; what a rank writes is the user's to know
SETUP = "install it with: ansible-playbook setup.yml"
OWN_PYTHON = "install it there, or leave out python: then it is that of setup.yml"
MESH = "ansible-playbook setup.yml --tags ssh_mesh"
FABRIC = "ansible-playbook setup.yml --tags fabric"
# Variables whose value is the name of a NIC. A wrong one is ignored by some libraries and hangs others for ever.
NIC_NAMES = (
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "FI_TCP_IFACE", "FI_SOCKETS_IFACE", "I_MPI_HYDRA_IFACE"),
    *("HYDRA_IFACE", "CCL_KVS_IFACE", "TP_SOCKET_IFNAME"),
)


def facts_of_all(cluster: Cluster, answers: Mapping[str, AnyFacts]) -> dict[str, NodeFacts]:
    """Return the facts of all nodes by name. InputError naming every node that the head cannot reach."""
    unreached = {name: answer["unreachable"] for name, answer in answers.items() if "unreachable" in answer}
    if unreached:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unreached.items())
        raise InputError("inventory", ", ".join(unreached), f"not reached from {cluster.head.name} ({reasons}): {MESH}")
    return {name: answer for name, answer in answers.items() if "unreachable" not in answer}


def check_launcher(name: str, cluster: Cluster, facts: Mapping[str, NodeFacts]) -> None:
    """InputError if a node has no launcher, or nodes have different versions: it names the version of each node."""
    hosts = [cluster.head.name] if LAUNCHERS[name].on_head else []
    hosts += [node.name for node in cluster.workers if LAUNCHERS[name].on_workers and node.name not in hosts]
    found = {host: facts[host]["launcher"] for host in hosts}
    versions = {launcher["version"] for launcher in found.values()}
    if len(versions) > 1:
        by_host = ", ".join(f"{host} {launcher['version'] or 'none'}" for host, launcher in found.items())
        raise InputError("launcher", name, f"not one version on all nodes ({by_host}); {SETUP}")
    host, launcher = next(iter(found.items()))
    if not launcher["version"] and not facts[host]["glibc"] and launcher["path"].startswith(facts[host]["home"] + "/"):
        why = f"{launcher['path']} needs glibc, and the image on {host} does not have it: use an image with glibc"
        raise InputError("container_image", launcher["path"], f"{why}, or name its own MPI, or -e launcher=torchrun")
    if not launcher["version"]:
        silent = f"{launcher['path']} --version printed no version {launcher['said']}".rstrip()
        what = silent if launcher["path"] else f"{launcher['wanted']} is not there"
        raise InputError("launcher", name, f"{what} on {host}; {remedy(name)}")
    if launcher["refused"]:
        raise InputError("launcher_args", launcher["refused"], f"{name} {launcher['version']} does not take them")


def check_slurm(name: str, cluster: Cluster, facts: Mapping[str, NodeFacts]) -> None:
    """InputError if a worker cannot start what the head's srun or sbatch asks for: it names what was found where.

    srun must not be newer than slurmd (Slurm's quick start for administrators, "Upgrades"), and a batch file starts the
    srun that lies beside the head's sbatch.
    """
    head = facts[cluster.head.name]["launcher"]
    srun = head["path"].rpartition("/")[0] + "/srun"
    lacks: dict[str, list[str]] = {}
    for node in cluster.workers:
        there = facts[node.name]["slurm"]
        for lack in slurm_lacks(name, there, srun, head["version"]) if there else ():
            lacks.setdefault(lack, []).append(node.name)
    if lacks:
        found = "; ".join(f"{fold_names(names)}: {lack}" for lack, names in lacks.items())
        here = f"{head['path']} {head['version']} on {cluster.head.name}"
        else_do = "install Slurm's packages there, or set torchfleet_srun of these nodes to the path of their srun"
        raise InputError("launcher", name, f"{here}, and on {found}; {else_do}")


def slurm_lacks(name: str, there: SlurmPrograms, srun: str, version: str) -> Iterator[str]:
    """Yield what a worker lacks. `srun`, `version`: of the head."""
    daemon, release = release_of(there["version"]), release_of(version)
    if not there["slurmd"]:
        yield "no slurmd"
    elif daemon and release and daemon < release:
        yield f"{there['slurmd']} {there['version']}, which is older"
    if name == "sbatch" and there["srun"] != srun:
        yield f"{there['srun'] or 'no srun'} instead of {srun}, which the batch file starts"


def release_of(version: str) -> tuple[int, ...]:
    """Return Slurm's release, year and month, of a version like 22.05.8; nothing of another one."""
    match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", version)
    return tuple(map(int, match.groups())) if match else ()


def remedy(launcher: str) -> str:
    """Return how to get a launcher."""
    if launcher in MPIS and launcher != DEFAULT:
        return f"""{SETUP} -e '{{"mpis": ["{launcher}"]}}'"""
    row = LAUNCHERS[launcher]
    return f"it is part of {row.title}; set {row.variable} to its path" if launcher in STARTED_BY_SLURMD else SETUP


def check_nodes(request: Request, cluster: Cluster, facts: Mapping[str, NodeFacts], needs_torch: bool) -> None:
    """InputError if a worker does not have what the job needs: space, an unused job id, for a script Python with torch.

    Any other program brings what it needs, as one in a container does.
    """
    mend = OWN_PYTHON if request.python else SETUP
    for node in cluster.workers:
        fact = facts[node.name]
        if needs_torch and not fact["python"]:
            raise InputError("python", fact["python_wanted"], f"not on {node.name}; {mend}")
        if needs_torch and not fact["torch"]:
            raise InputError("torch", fact["python"], f"this Python on {node.name} has no torch; {mend}")
        if fact["free_bytes"] < LEAST_FREE_BYTES:
            free = f"{fact['free_bytes'] >> 20} MiB free in {fact['home']} on {node.name}"
            raise InputError("disk", free, f"at least {LEAST_FREE_BYTES >> 20} MiB are needed: make room")
        if request.job_id in fact["jobs"]:
            again = f"this id was used on {node.name}: choose another, or ansible-playbook clean.yml"
            raise InputError("job_id", request.job_id, again)


def check_processors(cluster: Cluster, workers: Sequence[Node], facts: Mapping[str, NodeFacts], launcher: str) -> None:
    """InputError if nodes of a job have processors of different architectures: one program is sent to all of them."""
    head = [cluster.head] if LAUNCHERS[launcher].on_head else []
    kinds = {node.name: facts[node.name]["machine"] or "unknown" for node in [*head, *workers]}
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
        alike = ",".join(node.name for node in workers if kinds[node.name] == next(iter(kinds.values())))
        else_do = f"use one kind: -e nodes={alike}" if alike else "use a head with the workers' architecture"
        raise InputError("nodes", told, f"a job runs on processors of one architecture: {else_do}")


def by_job(running: Mapping[str, Sequence[RunningJob]]) -> dict[tuple[str, str], list[str]]:
    """Return the nodes of each job by its id and owner. `running`: rows of jobs by node, as survey() has them."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, rows in running.items():
        for job in rows:
            hosts = found.setdefault((job["job_id"], job["owner"]), [])
            if name not in hosts:  # it may run in two homes there
                hosts.append(name)
    return found


def kept_away(
    request: Request, nodes: Sequence[Node], facts: Mapping[str, NodeFacts]
) -> dict[tuple[str, str], list[str]]:
    """Return the nodes of each job that runs beside this one, by its id and owner: not those it waits for."""
    return by_job(
        {
            node.name: [job for job in facts[node.name]["running"] if not (request.queue and job["own_home"])]
            for node in nodes
        }
    )


def jobs_of_cluster(nodes: Sequence[Node], facts: Mapping[str, NodeFacts]) -> set[tuple[str, str]]:
    """Return id and owner of the jobs that run in the homes of these nodes: others there are of other homes."""
    return {(job["job_id"], job["owner"]) for node in nodes for job in facts[node.name]["running"] if job["own_home"]}


def check_alone(request: Request, nodes: Sequence[Node], cluster: Cluster, facts: Mapping[str, NodeFacts]) -> None:
    """InputError if the job is exclusive, and another runs on one of its nodes."""
    jobs = kept_away(request, nodes, facts)
    if not request.exclusive or not jobs:
        return
    raise not_alone(jobs, [node.name for node in cluster.workers if not facts[node.name]["running"]])


def not_alone(jobs: Mapping[tuple[str, str], Sequence[str]], free: Sequence[str], exclusive: bool = True) -> InputError:
    """Return the error for a job that cannot share its nodes with these jobs.

    It is exclusive, or (`exclusive` is false) one of them is. `free`: nodes on which no job runs.
    """
    (job_id, owner), hosts = next(iter(jobs.items()))
    names = ",".join(free)
    else_do = f"or take -e nodes={names}" if free else f"or end it: ansible-playbook clean.yml -e job_id={job_id}"
    runs = "runs" if exclusive else "has just started with exclusive=true"
    why = f"job {job_id} of {owner} {runs} on {', '.join(hosts)}: wait for its end, {else_do}"
    return InputError("exclusive", "true" if exclusive else "false", why)


def rendezvous_port(request: Request, node: Node, facts: Mapping[str, NodeFacts]) -> int:
    """Return the port of the rendezvous on rank 0's node. InputError if none is free."""
    port = facts[node.name]["port"]
    if port is None:
        ports = "{}-{}".format(*(request.options.ports or ("any", "port")))
        raise InputError("ports", ports, f"none of them is free on {node.name}: give others, -e ports=20000-20999")
    return port


def check_fabric(names: Sequence[str], facts: Mapping[str, NodeFacts]) -> None:
    """InputError if the chosen NICs of the nodes are in different networks, or two nodes report one address.

    A node was added or changed since the role ran; or it claims to be another.
    """
    fabrics = {name: facts[name]["fabric"] for name in names}
    networks = {name: fabric["network"] for name, fabric in fabrics.items() if fabric}
    if len(names) > 1 and len(set(networks.values())) > 1:
        chosen = ", ".join(f"{name} {network}" for name, network in networks.items())
        raise InputError("fabric", chosen, "the chosen NICs are in different networks: ansible-playbook setup.yml")
    owners: dict[str, str] = {}
    for name in names:
        fabric = fabrics[name]
        address = fabric["address"] if fabric else name
        if owners.setdefault(address, name) != name:
            both = f"{owners[address]} and {name}"
            raise InputError("fabric", address, f"{both} both report this address: ansible-playbook setup.yml")


def check_addresses(names: Collection[str], facts: Mapping[str, NodeFacts]) -> None:
    """InputError if a node no longer has the address that role fabric chose: a job would wait for it in vain."""
    lost = {name: facts[name]["lost_address"] for name in names if facts[name]["lost_address"]}
    if lost:
        told = ", ".join(f"{address} of {name}" for name, address in lost.items())
        again = "ansible-playbook setup.yml --tags ssh_mesh,fabric,hostfile"
        raise InputError("fabric", told, f"the node no longer has this address (reboot or DHCP): {again}")


def check_nics(
    nodes: Sequence[Node], facts: Mapping[str, NodeFacts], job_env: Mapping[str, str], secrets: Collection[str] = ()
) -> None:
    """InputError for a NIC that the user names and that is not there, or cannot reach the other nodes."""
    for node in nodes:
        for name, value in {**node.env, **job_env}.items():
            if name in secrets and name in NIC_NAMES:
                raise InputError("secret_names", name, "the name of a NIC is no secret: it is checked, and shown")
            for nic in nics_named(name, value):
                reason = why_not(nic, facts[node.name], several=len(nodes) > 1)
                if reason:
                    raise InputError("job_env", f"{name}={value}", f"{reason} on {node.name}")


def nics_named(name: str, value: str) -> list[str]:
    """Return the NICs that a variable names; none for NCCL's exclusions and prefixes, which may mean several."""
    if name not in NIC_NAMES or value.startswith("^"):
        return []
    if name.startswith("NCCL") and not value.startswith("="):
        return []
    return [word.lstrip("=").partition(":")[0] for word in value.split(",")]


def why_not(nic: str, fact: NodeFacts, several: bool) -> str:
    """Return why a NIC cannot carry a job, or an empty string."""
    if nic not in fact["nics"]:
        return f"NIC {nic} does not exist, only {', '.join(fact['nics'])}"
    if nic == "lo" and several:
        return "lo reaches no other node: a job would hang"
    fabric = fact["fabric"]
    rows = [row for row in fabric.get("rejected", []) if row["nic"] == nic] if fabric else []
    if not fabric or nic == fabric["nic"] or not rows:
        return ""
    if not all(row.get("code") for row in rows):
        return f"fabric.json is of an earlier version, without the code for why {nic} was rejected: {FABRIC}"
    flaws = [row["reason"] for row in rows if row["code"] not in WITHOUT_FLAW]
    return f"role fabric rejected {nic} ({flaws[0]})" if len(flaws) == len(rows) else ""


def contradictions(
    nodes: Sequence[Node], facts: Mapping[str, NodeFacts], job_env: Mapping[str, str], secrets: Collection[str]
) -> Iterator[str]:
    """Yield each variable that contradicts what role fabric proved, once for all nodes where it is the same."""
    where: dict[str, list[str]] = {}
    for node in nodes:
        fabric = facts[node.name]["fabric"]
        proven = fabric_environment(fabric) if fabric else {}
        for name, value in {**node.env, **job_env}.items():
            if value != proven.get(name, value):
                shown = HIDDEN if name in secrets else value
                text = f"{name}={shown} contradicts role fabric, which proved {proven[name]}"
                where.setdefault(text, []).append(node.name)
    yield from (f"{text} on {fold_names(names)}" for text, names in where.items())


def warnings_for(
    request: Request,
    nodes: Sequence[Node],
    facts: Mapping[str, NodeFacts],
    ports: tuple[int, int] | None,
    secrets: Collection[str] = (),
) -> Iterator[str]:
    """Yield a warning for each thing that is odd, but no reason to refuse."""
    unmeasured = [node.name for node in nodes if not facts[node.name]["fabric"]]
    if len(nodes) > 1 and unmeasured:
        yield f"no NIC was chosen for {fold_names(unmeasured)}, libraries guess: {FABRIC}"
    if len(nodes) > 1:
        yield from contradictions(nodes, facts, request.job_env, secrets)
    port = facts[nodes[0].name]["port"]
    if request.master_port and request.master_port != port:
        yield f"master_port {request.master_port} is taken on {nodes[0].name}: using {port}"
    if ports and len(nodes) > 1:
        yield "ports: gloo and NCCL take any port: open the firewalls for the nodes: setup.yml -e firewall_open=true"
    if ports and request.launcher in STARTED_BY_SLURMD:
        yield "ports: srun uses SrunPortRange of slurm.conf; if that is not set, any port"
    ours = jobs_of_cluster(nodes, facts)
    for (job_id, owner), hosts in kept_away(request, nodes, facts).items():
        waits = ", -e queue=true waits for its end" if (job_id, owner) in ours else ""
        shared = f"job {job_id} of {owner} also runs on {fold_names(hosts)}: both jobs share cores and GPUs"
        yield f"{shared}; -e exclusive=true refuses that{waits}"
    yield from leftover_warnings(nodes, facts)
    as_root = [node.name for node in nodes if facts[node.name]["uid"] == 0]
    if as_root:
        yield f"ranks run as root on {fold_names(as_root)}, because you connect as root"


def leftover_warnings(nodes: Sequence[Node], facts: Mapping[str, NodeFacts]) -> Iterator[str]:
    """Yield what earlier jobs left, a line for all nodes where it is of the same jobs."""
    where: dict[str, dict[str, int]] = {}
    for node in nodes:
        left = facts[node.name]["leftovers"]
        jobs = ", ".join(sorted({row["job_id"] for row in left}))
        where.setdefault(jobs, {})[node.name] = len(left)
    where.pop("", None)
    for jobs, counts in where.items():
        count = f"{sum(counts.values())} leftover processes of {jobs}"
        yield f"{fold_names(counts)}: {count}: ansible-playbook clean.yml ends them"
