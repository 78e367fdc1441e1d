# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which node of the plan a pod is: each system that starts pods has a variable of its own for that."""

from __future__ import annotations

import re
from typing import Mapping, NamedTuple, Sequence

NUMBER = "TORCHFLEET_POD"
# Variables that hold the number of a pod among those of its job, and who sets them. Those of Run:ai and PyTorchJob
# count pods, not processes, though they have the names of torchrun's: no rank may see them.
COUNTERS: Mapping[str, str] = {
    NUMBER: "the manifest set it",
    "SLURM_NODEID": "Slurm sets it in what srun starts",
    "JOB_COMPLETION_INDEX": "Kubernetes sets it in pods of an Indexed Job",
    "PET_NODE_RANK": "Kubeflow's trainer sets it",
    "RANK": "Run:ai and PyTorchJob set it, and count pods",
}
OF_PODS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("PET_NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
    *("PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_CONF", "PET_MAX_RESTARTS"),
)
AT_THE_END = re.compile(r"-([0-9]{1,5})\Z")


class NoPlace(Exception):
    """Nothing says which pod this is, or what says so is wrong. One line."""


class PodNumber(NamedTuple):
    """The number of a pod, and who says so, for people."""

    number: int
    reason: str


def number_of(environment: Mapping[str, str], host_name: str, hosts: Sequence[str]) -> PodNumber:
    """Return the number of this pod among those of the plan. `hosts`: their names there, in order. NoPlace."""
    count = len(hosts)
    for name, who in COUNTERS.items():
        if name in environment:
            return checked(environment[name], f"{name}={environment[name][:20]}", who, count)
    if host_name in hosts:
        return PodNumber(hosts.index(host_name), f"host name {host_name}: the plan has it")
    found = AT_THE_END.search(host_name)
    if found:
        return checked(found.group(1), f"host name {host_name}", "it ends in the number", count)
    names = ", ".join(COUNTERS)
    raise NoPlace(f"nothing says which of {count} pods this is: none of {names}, and no number in the host name")


def checked(text: str, what: str, who: str, count: int) -> PodNumber:
    """Return a number below `count`. NoPlace."""
    if not (text.isascii() and text.isdigit() and int(text[:9]) < count):
        raise NoPlace(f"{what} ({who}): the plan has pods 0 to {count - 1}")
    return PodNumber(int(text), f"{what}: {who}")


def without_those_of_pods(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that count pods: RANK and WORLD_SIZE must count ranks."""
    return {name: value for name, value in environment.items() if name not in OF_PODS}
