# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan of a job on nodes that a scheduler brings: that of any job, of nodes that are not there yet.

Each node finds what only it can know, and fills it in (module_utils, entry.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import VENDORS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import NodeFacts
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.entry import PYTHON
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.network import PLACE as NIC
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import LaunchCommand
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.environment import Setting
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import Job, LaunchPlan, NodePlan, plan_job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.requirements import nics_named

KEPT = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")  # of the NIC: those that torchrun's jobs read


@dataclass(frozen=True)
class Asked:
    """Nodes as a job asks for them.

    `hosts`: name and address of each in the plan; `ranks`, `cores`, `gpus`: on each; `vendor`: of the GPUs; `port` of
    the rendezvous; `reasons`: of variables and options that a plan of surveyed nodes has for another reason, by their
    names; `unit`: what people call a node.
    """

    hosts: tuple[tuple[str, str], ...]
    ranks: int
    cores: int
    home: str
    port: int
    reasons: Mapping[str, str]
    gpus: int = 0
    vendor: str = ""
    unit: str = "pod"

    @property
    def cluster(self) -> Cluster:
        """Return them as nodes."""
        nodes = tuple(
            Node(name=host, address=address, slots=self.ranks, home=self.home, interpreter=PYTHON)
            for host, address in self.hosts
        )
        return Cluster(nodes[0], nodes)

    def relabelled(self, name: str, text: str, source: str) -> tuple[str, str]:
        """Return the reason of a variable or option and its source. Given: those of nodes that were surveyed."""
        reason = text if source == "user" else self.reasons.get(name, text)
        return reason, {"inventory": "user", "measured": "default"}.get(source, source)


def facts_of(node: Node, asked: Asked, request: Request) -> NodeFacts:
    """Return what a plan needs to know of a node: what was asked for, for nothing is there yet."""
    given = {nic for name, value in request.job_env.items() for nic in nics_named(name, value)}
    return {
        "home": node.home, "cores": asked.cores, "accelerators": {asked.vendor: asked.gpus} if asked.gpus else {},
        "fabric": {"nic": NIC, "address": node.address, "network": "0.0.0.0/0"},
        "jobs": [], "running": [], "leftovers": [], "cwd": node.home, "tmpdir": "/tmp", "glibc": True,
        "interpreter": PYTHON,
        "python": request.python or PYTHON, "python_wanted": request.python or "python3", "uid": 1000,
        "torch": {"version": "2.x", **({VENDORS[asked.vendor].build: f"the {asked.unit}'s"} if asked.gpus else {})},
        "gpu_targets": {"torch": [], "gpus": []}, "hostname": node.name, "machine": "", "nics": [NIC, *sorted(given)],
        "launcher": {"path": PYTHON, "version": "2.x", "wanted": PYTHON, "said": "", "refused": ""},
        "backends": [request.backend] if request.backend else [], "free_bytes": 1 << 40, "script": "",
        "port": request.master_port or asked.port, "clock_offset": 0.0, "lost_address": "", "data": None,
        "program": None,
        "activation": None, "slurm": None, "container": None,
    }  # fmt: skip


def plan_nodes(request: Request, asked: Asked, job: Job) -> LaunchPlan:
    """Return the plan of a job on nodes that are not there yet. InputError for what cannot work."""
    ranks = len(asked.hosts) * asked.ranks
    wanted = dataclasses.replace(request, launcher="torchrun", nodes=(), np=ranks, ranks_per_node=asked.ranks)
    cluster = asked.cluster
    facts = {node.name: facts_of(node, asked, request) for node in cluster.workers}
    plan = plan_job(wanted, cluster, facts, job)
    nodes = tuple(of_node(node, asked) for node in plan.nodes)
    return dataclasses.replace(plan, head=nodes[0], nodes=nodes)


def with_reasons(command: LaunchCommand, asked: Asked) -> LaunchCommand:
    """Return torchrun's command with the reasons that it has on such nodes."""
    on = {}
    for host, options in command.on.items():
        rows = [(option, asked.relabelled(option.words[0], option.reason, option.source)) for option in options]
        on[host] = tuple(dataclasses.replace(option, reason=why, source=source) for option, (why, source) in rows)
    return dataclasses.replace(command, on=on)


def of_node(node: NodePlan, asked: Asked) -> NodePlan:
    """Return a node's plan with the variables of its NIC that it fills in itself, and none of other launchers."""
    why = f"each {asked.unit} finds its NIC: the one on the way to the first {asked.unit}"

    def settled(setting: Setting) -> Setting:
        reason, source = asked.relabelled(setting.name, setting.reason, setting.source)
        return dataclasses.replace(setting, reason=reason, source=source)

    settings = []
    for setting in node.environment:
        of_nic = setting.source == "measured" and (NIC in setting.value or setting.name.startswith(("OMPI_", "PRTE_")))
        if of_nic and setting.name in KEPT:
            settings.append(Setting(setting.name, setting.value, why, f"the {asked.unit}"))
        elif not of_nic and setting.name != "NCCL_SOCKET_FAMILY":
            settings.append(settled(setting))
    added = tuple(map(settled, node.wrapper_environment))
    return dataclasses.replace(node, environment=tuple(settings), wrapper_environment=added)
