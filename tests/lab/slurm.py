"""A real Slurm on lab nodes: munge, slurmctld on the first node, slurmd on all that run jobs. Packages: slurm-wlm."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from tests.driver import wait_until
from tests.lab.lab import Lab

CGROUPS = "CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n"


def computing(nodes: Sequence[str], head_only: bool) -> list[str]:
    """Return the nodes that run jobs: all, or all but the first one, which has the controller then and no slurmd."""
    return list(nodes[1:] if head_only else nodes)


def configuration(lab: Lab, nodes: Sequence[str], head_only: bool = False, jobs_per_core: int = 1) -> str:
    """Return slurm.conf: one partition of all nodes, accounting of nothing, processes followed without cgroups."""
    compute = [name_of(lab, node) for node in computing(nodes, head_only)]
    addresses = {name: lab.address(node) for name, node in zip(compute, computing(nodes, head_only), strict=True)}
    seen = lab.root(computing(nodes, head_only)[0], "slurmd", "-C").split()
    processors = " ".join(word for word in seen if word.startswith(("CPUs=", "Sockets", "Cores", "Threads")))
    lines = [
        *("ClusterName=lab", f"SlurmctldHost={nodes[0]}({lab.address(nodes[0])})", "AuthType=auth/munge"),
        *("ProctrackType=proctrack/linuxproc", "TaskPlugin=task/affinity", "SelectType=select/cons_tres"),
        *("SelectTypeParameters=CR_CPU", "ReturnToService=2", "MpiDefault=none", "SlurmUser=root"),
        "SchedulerParameters=batch_sched_delay=0,sched_interval=1",  # else a batch job may wait for a minute
        *("StateSaveLocation=/var/spool/slurmctld", "SlurmdSpoolDir=/var/spool/slurmd", "KillWait=5"),
        "UnkillableStepTimeout=180",  # a process in state D does not cost its node within a minute, as by default
        *[f"NodeName={name} NodeAddr={addresses[name]} {processors} State=UNKNOWN" for name in compute],
        f"PartitionName=all Nodes={','.join(compute)} Default=YES MaxTime=INFINITE State=UP{shared(jobs_per_core)}",
    ]
    return "\n".join(lines) + "\n"


def shared(jobs: int) -> str:
    """Return the words of a partition whose cores run so many jobs at once."""
    return f" OverSubscribe=FORCE:{jobs}" if jobs > 1 else ""


def name_of(lab: Lab, node: str) -> str:
    """Return what Slurm calls a node: its host name."""
    return lab.root(node, "hostname").strip()


def bring_up(lab: Lab, nodes: Sequence[str], head_only: bool = False, jobs_per_core: int = 1) -> None:
    """Configure and start Slurm on nodes that have its packages."""
    key = secrets.token_hex(64)
    text = configuration(lab, nodes, head_only, jobs_per_core)
    files = {"/etc/slurm/slurm.conf": text, "/etc/slurm/cgroup.conf": CGROUPS}
    for node in nodes:
        write(lab, node, "/etc/munge/munge.key", key, "munge", "0400")
        for path, text in files.items():
            write(lab, node, path, text, "root", "0644")
        lab.root(node, "mkdir", "-p", "/var/spool/slurmctld", "/var/spool/slurmd")
        lab.root(node, "systemctl", "stop", "slurmd", "slurmctld", "munge")
    wake(lab, nodes, head_only)


def name_each_other(lab: Lab, nodes: Sequence[str]) -> None:
    """Have the nodes know each other by the names that Slurm has for them, as nodes of a site do by DNS."""
    lines = [f"{lab.address(node)} {node}" for node in nodes]
    code = "import sys; path, *lines = sys.argv[1:]; known = open(path).read().splitlines(); file = open(path, 'a')"
    code += "; file.writelines(line + chr(10) for line in lines if line not in known)"
    for node in nodes:
        lab.root(node, "python3", "-c", code, "/etc/hosts", *lines)


def wake(lab: Lab, nodes: Sequence[str], head_only: bool = False) -> None:
    """Start what does not run, as on a node that was off, and wait until all nodes take jobs."""
    start(lab, nodes, head_only)
    lab.root(nodes[0], "srun", f"--nodes={len(computing(nodes, head_only))}", "--immediate=60", "true")


def start(lab: Lab, nodes: Sequence[str], head_only: bool = False) -> None:
    """Start what does not run, and wait until the controller answers."""
    compute = computing(nodes, head_only)
    for node in nodes:
        services = ["munge", *["slurmctld"] * (node == nodes[0]), *["slurmd"] * (node in compute)]
        lab.root(node, "systemctl", "start", *services)
    wait_until(lambda: "UP" in lab.root(nodes[0], "scontrol", "ping", check=False))


def write(lab: Lab, node: str, path: str, text: str, owner: str, mode: str) -> None:
    """Write a file on a node."""
    code = "import os, sys; path, text = sys.argv[1:]; os.makedirs(os.path.dirname(path), exist_ok=True)"
    lab.root(node, "python3", "-c", code + "; open(path, 'w').write(text)", path, text)
    lab.root(node, "chown", owner, path)
    lab.root(node, "chmod", mode, path)


def queue(lab: Lab, node: str) -> str:
    """Return the jobs that Slurm knows of: number, name and state, a job a line."""
    return lab.root(node, "squeue", "--noheader", "--format=%i %j %T")


def numbers(lab: Lab, node: str, name: str) -> list[str]:
    """Return the numbers of the jobs whose names begin so."""
    rows = [line.split() for line in queue(lab, node).splitlines()]
    return [number for number, called, _state in rows if called.startswith(name)]
