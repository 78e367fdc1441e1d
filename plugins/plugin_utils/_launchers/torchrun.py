# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""torchrun: one agent per node, all started from the head by one command."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import (
    WRAPPER,
    LaunchCommand,
    Option,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.environment import Setting
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan

# Options that place ranks or start them again, and what to type instead. torchrun's own restarts know no exit status
# 75, no progress and no other nodes, and its agents hang when a node is gone (pytorch#147064): with restart_by=torchrun
# they are asked to start the ranks again, by our rule, and the guards end them.
PLACED_BY = {
    **dict.fromkeys(("nproc-per-node", "nproc_per_node"), "-e ranks_per_node="),
    **dict.fromkeys(("nnodes",), "-e nodes="),
    **dict.fromkeys(("max-restarts", "max_restarts"), "-e max_restarts="),
    **dict.fromkeys(("rdzv-backend", "rdzv_backend"), "-e rendezvous="),
}
# Each rendezvous then has a store of its own, at a free port of rank 0's node (torch's dynamic_rendezvous.py). That of
# the agents outlives ranks, with the addresses at which those of the round before were.
OWN_STORES = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


class Torchrun:
    """torchrun's agents. The placement is ours, so with the static rendezvous nothing needs to be negotiated."""

    versions: tuple[str, ...] = ("2.",)
    placed_by: Mapping[str, str] = PLACED_BY

    def command(self, plan: LaunchPlan) -> LaunchCommand:
        """Return the torchrun command of a plan. InputError for what torchrun cannot do."""
        self.check(plan)
        options = {node.name: self.agent(plan, number) for number, node in enumerate(plan.nodes)}
        count = str(min(node.threads for node in plan.nodes))
        threads = Setting("OMP_NUM_THREADS", count, "otherwise torchrun sets it to 1 and warns", "default")
        stores = [Setting(OWN_STORES, "1", "ranks that start again must not meet in a store with old keys", "default")]
        return LaunchCommand(options, (threads, *(stores if plan.options.rounds else [])))

    @staticmethod
    def check(plan: LaunchPlan) -> None:
        """InputError for other numbers of ranks on other nodes, and for mapping and binding."""
        counts = {node.name: node.ranks for node in plan.nodes}
        if len(set(counts.values())) > 1:
            each = ", ".join(f"{name} {count}" for name, count in counts.items())
            reason = f"it needs as many ranks on every node ({each}): -e launcher=openmpi, or other slots"
            raise InputError("launcher", "torchrun", reason)
        for name, usual in (("map_by", "slot"), ("bind_to", "none")):
            given = getattr(plan.options, name)
            if given != usual:
                raise InputError(name, given, f"torchrun knows only {usual}: -e launcher=openmpi")
        if plan.options.rounds and any(node.container for node in plan.nodes):
            reason = "not in containers yet: leave it out, and torchfleet starts the job again"
            raise InputError("restart_by", "torchrun", reason)

    @staticmethod
    def agent(plan: LaunchPlan, number: int) -> tuple[Option, ...]:
        """Return the command of the agent on one node."""
        node = plan.nodes[number]
        program = (node.launcher_path, "-m", "torch.distributed.run")
        local = Option(("--local-addr", node.address), "its address in the proven network", "measured", free=True)
        most, source = (str(plan.options.rounds["most"]), "user") if plan.options.rounds else ("0", "default")
        restarts = "a failed rank ends the job; -e max_restarts= starts it again, under every launcher by one rule"
        restarts = "restart_by=torchrun: its agents start the ranks again" if plan.options.rounds else restarts
        return (
            Option(program, f"torchrun of torch {plan.launcher_version}", "measured"),
            Option(("--nnodes", str(len(plan.nodes))), "one agent per node", "inventory"),
            Option(("--nproc-per-node", str(node.ranks)), f"ranks: {plan.np_reason}", plan.np_source),
            *rendezvous(plan, number),
            *([local] if len(plan.nodes) > 1 else []),
            Option(("--max-restarts", most), restarts, source),
            Option(("--no-python", *node.wrapper), WRAPPER, "default"),
        )


def rendezvous(plan: LaunchPlan, number: int) -> tuple[Option, ...]:
    """Return how the agents find each other. c10d numbers them by their addresses, and so does the plan then."""
    if plan.options.rendezvous == "c10d":
        host = (
            f"[{plan.master_addr}]" if ":" in plan.master_addr else plan.master_addr
        )  # or IPv6 ends in its last group
        endpoint = f"{host}:{plan.master_port}"
        return (
            Option(("--rdzv-backend", "c10d"), "rendezvous: the agents negotiate", "user"),
            Option(("--rdzv-endpoint", endpoint), "where rank 0 runs, a free port there", "measured"),
            Option(("--rdzv-id", plan.job_id), "no other job's agents", "default"),
            Option(
                ("--rdzv-conf", f"is_host={int(number == 0)}"),
                "otherwise torchrun may not recognise its own address",
                "default",
            ),
        )
    return (
        Option(("--node-rank", str(number)), "the node's place in rank order", "inventory"),
        Option(("--master-addr", plan.master_addr), "where rank 0 runs", "inventory"),
        Option(("--master-port", str(plan.master_port)), "a free port of that node", "measured"),
    )
