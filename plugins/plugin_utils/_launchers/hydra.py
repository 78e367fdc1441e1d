# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hydra, the launcher of MPICH and of Intel MPI, whose options differ in part."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import (
    LaunchCommand,
    Option,
    agent_path,
    count_option,
    hostfile,
    program_option,
    rank_option,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.environment import Setting
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan

# Options that place ranks, and what to type instead.
PLACED_BY = {
    **dict.fromkeys(("n", "np"), "-e np="),
    **dict.fromkeys(("ppn", "perhost"), "-e ranks_per_node="),
    **dict.fromkeys(("hosts", "host", "machinefile", "hostfile"), "-e nodes="),
}


class Hydra:
    """mpiexec of MPICH. It waits for the others when a rank fails, and its environment is that of the head: the guard
    and `-genvnone` mend both."""

    versions: tuple[str, ...] = ("3.", "4.", "5.")
    placed_by: Mapping[str, str] = PLACED_BY

    def command(self, plan: LaunchPlan) -> LaunchCommand:
        """Return the mpiexec command of a plan."""
        options = [
            program_option(plan),
            count_option(plan, "-n"),
            *self.mapping(plan),
            Option(("-genvnone",), "the head's environment is not that of the other nodes", "default"),
            Option(
                ("-wdir", "/"), "directories differ between nodes: the rank wrapper changes to the right one", "default"
            ),
        ]
        options += [*self.binding(plan), *self.connection_options(plan)]
        command = (*options, rank_option(plan, "-wdir", "/", "-n"))
        files = {"hostfile": self.hostfile(plan)}
        return LaunchCommand({plan.head.name: command}, self.environment(plan), files)

    def mapping(self, plan: LaunchPlan) -> list[Option]:
        """Return which ranks go where. InputError for nodes in turn that differ in slots: `-ppn 1` ignores those."""
        hosts = Option(("-f", f"{plan.head.job_dir}/hostfile"), "the planned nodes and their slots", "inventory")
        if plan.options.map_by == "slot":
            return [hosts]
        in_turn = [plan.nodes[place.rank % len(plan.nodes)].name for place in plan.placement]
        if in_turn != [place.host for place in plan.placement]:
            reason = "MPICH in turn ignores slots: -e launcher=openmpi, or as many slots on all nodes"
            raise InputError("map_by", "node", reason)
        return [hosts, Option(("-ppn", "1"), plan.options.mapping_reason, "user")]

    def hostfile(self, plan: LaunchPlan) -> str:
        """Return the host file: the planned nodes and their slots."""
        return hostfile(plan)

    def connection_options(self, plan: LaunchPlan) -> list[Option]:
        """Return how Hydra starts its proxies and which network they use."""
        if not plan.other_nodes:
            return [Option(("-launcher", "fork"), "no other machine", "measured")]
        options = [
            Option(("-launcher", "ssh"), "proxies are started one by one from the head", "default"),
            Option(("-launcher-exec", agent_path(plan)), "starts proxies below a guard, instead of ssh", "default"),
        ]
        if plan.head.fabric:
            nic = ("-iface", str(plan.head.fabric["nic"]))
            options.append(
                Option(
                    nic,
                    "proxies connect over the proven NIC, by the name that it has on each node",
                    "measured",
                    free=True,
                )
            )
        return options

    def binding(self, plan: LaunchPlan) -> list[Option]:
        """Return the options that bind each rank."""
        wanted = plan.options.bind_to
        return [Option(("-bind-to", wanted), plan.options.binding_reason, plan.options.source("bind_to"), free=True)]

    def environment(self, plan: LaunchPlan) -> tuple[Setting, ...]:
        """Return the environment of mpiexec itself."""
        return self.ports(plan, "MPIEXEC_PORT_RANGE")

    @staticmethod
    def ports(plan: LaunchPlan, name: str) -> tuple[Setting, ...]:
        """Return the ports of Hydra, if the firewall allows only some."""
        if not plan.launcher_ports:
            return ()
        return (
            Setting(name, "{}:{}".format(*plan.launcher_ports), "ports: the range that the firewall allows", "user"),
        )


class IntelMPI(Hydra):
    """mpiexec.hydra of Intel MPI. Its mpirun is a shell script: whoever ends that leaves all ranks running."""

    versions: tuple[str, ...] = ("2021.", "2022.")

    def mapping(self, plan: LaunchPlan) -> list[Option]:
        """Return which ranks go where: Intel MPI does not look at the slots of what `-f` names."""
        words = ("-machinefile", f"{plan.head.job_dir}/hostfile")
        return [Option(words, f"the node of each rank: {plan.options.mapping_reason}", "inventory")]

    def hostfile(self, plan: LaunchPlan) -> str:
        """Return the nodes in rank order, a line for each run of ranks; a node may come again."""
        addresses = {node.name: node.address if plan.other_nodes else "localhost" for node in plan.nodes}
        runs = groupby(plan.placement, key=lambda place: place.host)
        return "".join(f"{addresses[host]}:{len(list(places))}\n" for host, places in runs)

    def binding(self, plan: LaunchPlan) -> list[Option]:
        """Return the options that bind each rank: Intel MPI binds unless it is told not to."""
        wanted = plan.options.bind_to
        words = ("I_MPI_PIN", "0") if wanted == "none" else ("I_MPI_PIN_DOMAIN", wanted)
        source = plan.options.source("bind_to")
        return [Option(("-genv", *words), plan.options.binding_reason, source, free=True)]

    def connection_options(self, plan: LaunchPlan) -> list[Option]:
        """Return the same as MPICH's, and no tree of proxies: a proxy's own ssh could not be guarded."""
        flat = Option(("-branch-count", str(len(plan.nodes))), "all proxies are started from the head", "default")
        return [*super().connection_options(plan), *([flat] if plan.other_nodes else [])]

    def environment(self, plan: LaunchPlan) -> tuple[Setting, ...]:
        """Return the environment of mpiexec.hydra itself."""
        return self.ports(plan, "I_MPI_PORT_RANGE")
