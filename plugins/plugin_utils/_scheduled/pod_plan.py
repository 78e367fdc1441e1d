# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan of a job in pods."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import RESOURCES
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.entry import PYTHON
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import LaunchCommand, Option
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import Job, LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request

from .nodes_plan import Asked, plan_nodes, with_reasons
from .pod_request import PodRequest

PORT = 29500  # of the rendezvous: torchrun's own default, and each pod has an address of its own
NAME_CHARACTERS = 40  # of a Job: its pods have a number and five letters more, and 63 is the most (RFC 1123)
OWN_ADDRESS = "each pod has an address of its own: no other job has the port"
REASONS = {
    "--master-port": OWN_ADDRESS,
    "MASTER_PORT": OWN_ADDRESS,
    "--local-addr": "its name in the cluster's DNS",
    "OMP_NUM_THREADS": "pod_cpus / ranks; one for each without",
    PYTHON: "torchrun of the image's torch",
}
WAIT = "pod_start_timeout: agents of pods that are there wait for the others; torchrun's own is 600 s"


def name_of(job_id: str) -> str:
    """Return the name of a job's objects in the cluster: a name of DNS that begins with a letter (RFC 1035)."""
    plain = re.sub(r"[^a-z0-9]+", "-", job_id.lower()).strip("-")
    if plain == job_id and len(plain) <= NAME_CHARACTERS:
        return f"tf-{plain}"
    digest = hashlib.sha256(job_id.encode()).hexdigest()[:6]
    return f"tf-{plain[: NAME_CHARACTERS - 7].strip('-')}-{digest}"


def cores_of(pods: PodRequest) -> int:
    """Return the cores of a pod: those that it asks for, else one for each rank."""
    if not pods.cpus:
        return pods.ranks
    cores = float(pods.cpus[:-1]) / 1000 if pods.cpus.endswith("m") else float(re.sub(r"[A-Za-z]+$", "", pods.cpus))
    return max(1, int(cores))


def asked_of(pods: PodRequest, job_id: str) -> Asked:
    """Return the pods as nodes, with the names that their kind gives them in the cluster and in its DNS."""
    name, row = name_of(job_id), pods.row
    hosts = [row.host(name, number) for number in range(pods.pods)]
    return Asked(
        hosts=tuple((host, row.address_of(name, host)) for host in hosts),
        ranks=pods.ranks,
        cores=cores_of(pods),
        home=row.home,
        port=PORT,
        reasons=REASONS,
        gpus=pods.gpus,
        vendor=RESOURCES[pods.gpu_resource],
    )


def plan_pods(request: Request, pods: PodRequest, job: Job) -> LaunchPlan:
    """Return the plan of a job in pods. InputError for what cannot work."""
    return plan_nodes(request, asked_of(pods, job.job_id), job)


def command_in_pods(command: LaunchCommand, pods: PodRequest, job_id: str) -> LaunchCommand:
    """Return torchrun's command with the reasons that it has in pods, and the time that they wait for each other."""
    made = with_reasons(command, asked_of(pods, job_id))
    wait = Option(("--rdzv-conf", f"timeout={math.ceil(pods.start_timeout)}"), WAIT, "default")
    if len(made.on) == 1:
        return made
    on = {host: (*options[:-1], wait, options[-1]) for host, options in made.on.items()}  # the last is the program
    return dataclasses.replace(made, on=on)
