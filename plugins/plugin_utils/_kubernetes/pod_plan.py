# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan of a job in pods: that of any job, of nodes that are not there yet. Each pod finds what only it can know."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re

from ansible_collections.torchfleet.cluster.plugins.module_utils._kubernetes.network import PLACE as NIC
from ansible_collections.torchfleet.cluster.plugins.module_utils._kubernetes.pod import PYTHON
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.gpu_vendors import VENDORS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.records import NodeFacts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import LaunchCommand, Option
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.environment import Setting
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import Job, LaunchPlan, NodePlan, plan_job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.requirements import nics_named

from .pod_request import PodRequest

PORT = 29500  # of the rendezvous: torchrun's own default, and each pod has an address of its own
NAME_CHARACTERS = 40  # of a Job: its pods have a number and five letters more, and 63 is the most (RFC 1123)
GPUS = {"nvidia.com/gpu": "nvidia", "amd.com/gpu": "amd", "gpu.intel.com/i915": "intel"}
KEPT = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")  # of the NIC: those that torchrun's jobs read
OWN_ADDRESS = "each pod has an address of its own: no other job has the port"
OF_PODS = {
    "a free port of that node": OWN_ADDRESS,
    "a free port there": OWN_ADDRESS,
    "its address in the proven network": "its name in the cluster's DNS",
    "cores of the node / its ranks": "pod_cpus / ranks; one for each without",
    "torchrun of torch 2.x": "torchrun of the image's torch",
}
WAIT = "pod_start_timeout: agents of pods that are there wait for the others; torchrun's own is 600 s"
WHY = "each pod finds its NIC: the one on the way to the first pod"


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


def cluster_of(pods: PodRequest, job_id: str) -> Cluster:
    """Return the pods as nodes, with the names that their kind gives them in the cluster and in its DNS."""
    name, row = name_of(job_id), pods.row
    hosts = [(host, row.address_of(name, host)) for host in (row.host(name, number) for number in range(pods.pods))]
    nodes = tuple(
        Node(name=host, address=address, slots=pods.ranks, home=row.home, interpreter=PYTHON) for host, address in hosts
    )
    return Cluster(nodes[0], nodes)


def facts_of(node: Node, pods: PodRequest, request: Request) -> NodeFacts:
    """Return what a plan needs to know of a pod: what was asked for, for nothing is there yet."""
    vendor = GPUS[pods.gpu_resource]
    given = {nic for name, value in request.job_env.items() for nic in nics_named(name, value)}
    return {
        "home": node.home, "cores": cores_of(pods), "accelerators": {vendor: pods.gpus} if pods.gpus else {},
        "fabric": {"nic": NIC, "address": node.address, "network": "0.0.0.0/0"},
        "jobs": [], "running": [], "leftovers": [], "cwd": node.home, "tmpdir": "/tmp", "glibc": True,
        "interpreter": PYTHON,
        "python": request.python or PYTHON, "python_wanted": request.python or "python3", "uid": 1000,
        "torch": {"version": "2.x", **({VENDORS[vendor].build: "the image's"} if pods.gpus else {})},
        "gpu_targets": {"torch": [], "gpus": []}, "hostname": node.name, "machine": "", "nics": [NIC, *sorted(given)],
        "launcher": {"path": PYTHON, "version": "2.x", "wanted": PYTHON, "said": "", "refused": ""},
        "backends": [request.backend] if request.backend else [], "free_bytes": 1 << 40, "script": "",
        "port": request.master_port or PORT, "clock_offset": 0.0, "lost_address": "", "data": None, "program": None,
        "activation": None, "slurm": None, "container": None,
    }  # fmt: skip


def plan_pods(request: Request, pods: PodRequest, job: Job) -> LaunchPlan:
    """Return the plan of a job in pods. InputError for what cannot work."""
    asked = dataclasses.replace(
        request, launcher="torchrun", nodes=(), np=pods.pods * pods.ranks, ranks_per_node=pods.ranks
    )
    cluster = cluster_of(pods, job.job_id)
    facts = {node.name: facts_of(node, pods, request) for node in cluster.workers}
    plan = plan_job(asked, cluster, facts, job)
    nodes = tuple(of_pod(node) for node in plan.nodes)
    return dataclasses.replace(plan, head=nodes[0], nodes=nodes)


def relabelled(text: str, source: str) -> tuple[str, str]:
    """Return a reason and its source, which are those of nodes that were surveyed, as they are of pods."""
    return OF_PODS.get(text, text), {"inventory": "user", "measured": "default"}.get(source, source)


def command_in_pods(command: LaunchCommand, start_timeout: float) -> LaunchCommand:
    """Return torchrun's command with the reasons that it has in pods, and the time that they wait for each other."""
    on = {}
    for host, options in command.on.items():
        rows = [(option, relabelled(option.reason, option.source)) for option in options]
        on[host] = tuple(dataclasses.replace(option, reason=why, source=source) for option, (why, source) in rows)
    wait = Option(("--rdzv-conf", f"timeout={math.ceil(start_timeout)}"), WAIT, "default")
    if len(on) > 1:
        on = {host: (*options[:-1], wait, options[-1]) for host, options in on.items()}  # the last one is the program
    return dataclasses.replace(command, on=on)


def of_pod(node: NodePlan) -> NodePlan:
    """Return a node's plan with the variables of its NIC that a pod fills in, and none of other launchers."""
    settings = []
    for setting in node.environment:
        of_nic = setting.source == "measured" and (NIC in setting.value or setting.name.startswith(("OMPI_", "PRTE_")))
        if of_nic and setting.name in KEPT:
            settings.append(Setting(setting.name, setting.value, WHY, "the pod"))
        elif not of_nic and setting.name != "NCCL_SOCKET_FAMILY":
            settings.append(of_a_pod(setting))
    added = tuple(map(of_a_pod, node.wrapper_environment))
    return dataclasses.replace(node, environment=tuple(settings), wrapper_environment=added)


def of_a_pod(setting: Setting) -> Setting:
    """Return a variable with the reason that it has in a pod."""
    reason, source = relabelled(setting.reason, setting.source)
    return dataclasses.replace(setting, reason=reason, source=source)
