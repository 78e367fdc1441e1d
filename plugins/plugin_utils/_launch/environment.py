# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The environment of the ranks of a node: every variable with its reason and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.publication import fabric_environment

from .backends import BACKENDS
from .plan import LaunchPlan, NodePlan
from .secrets import HIDDEN


@dataclass(frozen=True)
class Setting:
    """One environment variable."""

    name: str
    value: str
    reason: str
    source: str  # default, inventory, measured, user
    secret: bool = False

    @property
    def shown(self) -> str:
        """Return the value as reports may show it."""
        return HIDDEN if self.secret else self.value


def rank_environment(plan: LaunchPlan, node: NodePlan) -> tuple[Setting, ...]:
    """Return what the ranks of a node get beside their rank, sorted by name. What the user gives wins."""
    settings = [
        Setting("OMP_NUM_THREADS", str(node.threads), "cores of the node / its ranks", "measured"),
        Setting("PYTHONUNBUFFERED", "1", "output appears when it is written, not at the end", "default"),
        Setting("TORCHFLEET_BACKEND", plan.backend, plan.backend_reason, plan.backend_source),
        Setting("TORCHFLEET_JOB_ID", plan.job_id, "marks the processes of this job", "default"),
        *cpu_settings(plan, node),
        *fabric_settings(plan, node),
        *backend_settings(plan, node),
    ]
    chosen = {setting.name: setting for setting in settings}
    for values, reason, source in ((node.env, "torchfleet_env", "inventory"), (plan.program.env, "job_env", "user")):
        for name, value in values.items():
            chosen[name] = Setting(name, value, reason, source, secret=name in plan.secrets)
    return tuple(chosen[name] for name in sorted(chosen))


def cpu_settings(plan: LaunchPlan, node: NodePlan) -> list[Setting]:
    """Return what frameworks must be told on a node without GPUs. Those of Intel are known by the backend alone."""
    if any(node.accelerators.values()) or BACKENDS[plan.backend].device != "cpu":
        return []
    reason = "no GPU here: Accelerate and the Trainer would run each rank alone (accelerate 1.15)"
    return [Setting("ACCELERATE_USE_CPU", "true", reason, "measured")]


def fabric_settings(plan: LaunchPlan, node: NodePlan) -> list[Setting]:
    """Return the NIC choice for every library. On one machine it is loopback, which no cable or host name can break."""
    if len(plan.nodes) == 1:
        reason = "all ranks are on this machine: loopback, which no host name breaks (Debian's 127.0.1.1)"
        return [Setting(name, value, reason, "measured") for name, value in BACKENDS[plan.backend].loopback.items()]
    if node.fabric is None:
        return []
    reason = f"{node.fabric['nic']} in {node.fabric['network']} was proven by role fabric"
    return [Setting(name, value, reason, "measured") for name, value in fabric_environment(node.fabric).items()]


def backend_settings(plan: LaunchPlan, node: NodePlan) -> list[Setting]:
    """Return what the backend wants beside the NIC, on several nodes."""
    if len(plan.nodes) == 1:
        return []
    rdma = bool(node.fabric and node.fabric.get("rdma"))
    wanted = BACKENDS[plan.backend].environment(node.accelerators, rdma)
    return [Setting(name, value, reason, "measured") for name, (value, reason) in wanted.items()]
