# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Open MPI's mpirun, 4.1 and 5.0, whose options differ in part."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.publication import fabric_environment
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import (
    LaunchCommand,
    Option,
    agent_path,
    count_option,
    hostfile,
    program_option,
    rank_option,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan

MOST = 64  # ports of the daemons: with 1000, Open MPI 5.0.11 runs out of the usual 1024 descriptors
# Options that place ranks, and what to type instead.
PLACED_BY = {
    **dict.fromkeys(("np", "n", "c"), "-e np="),
    **dict.fromkeys(("H", "host"), "-e nodes="),
}


class OpenMPI:
    """mpirun. Both versions take double-dash options; `-bind-to none` fails on 5.0 with status 66."""

    versions: tuple[str, ...] = ("4.", "5.")
    placed_by: Mapping[str, str] = PLACED_BY

    def command(self, plan: LaunchPlan) -> LaunchCommand:
        """Return the mpirun command of a plan. A host file is always given: `-H` with addresses fails (prrte#2258)."""
        old = plan.launcher_version.startswith("4.")
        options = [
            program_option(plan),
            count_option(plan, "--np"),
            Option(("--hostfile", f"{plan.head.job_dir}/hostfile"), "the planned nodes and their slots", "inventory"),
            Option(("--map-by", plan.options.map_by), plan.options.mapping_reason, plan.options.source("map_by")),
            self.binding(plan, old),
        ]
        if plan.uid == 0:
            options.append(
                Option(("--allow-run-as-root",), "you connect as root, which mpirun refuses by default", "measured")
            )
        options += self.ports(plan, old)
        options += self.connection_options(plan, old) if plan.other_nodes else [self.no_agent(old)]
        command = (*options, rank_option(plan, "--np"))
        files = {"hostfile": hostfile(plan)}
        return LaunchCommand({plan.head.name: command}, files=files)

    @staticmethod
    def binding(plan: LaunchPlan, old: bool) -> Option:
        """Return the options that bind each rank; 4.1 calls a socket what 5.0 calls a package."""
        wanted = plan.options.bind_to
        word = "package" if wanted == "socket" and not old else wanted
        return Option(("--bind-to", word), plan.options.binding_reason, plan.options.source("bind_to"), free=True)

    @staticmethod
    def ports(plan: LaunchPlan, old: bool) -> list[Option]:
        """Return the ports of ranks and daemons, if the firewall allows only some."""
        if not plan.launcher_ports:
            return []
        first, last = plan.launcher_ports
        kind, few = "--mca" if old else "--prtemca", f"{first}-{min(last, first + MOST - 1)}"
        versions = (4, 6) if ":" in plan.master_addr else (4,)
        ranks = [
            ("--mca", f"btl_tcp_port_{what}_v{version}", str(value))
            for version in versions
            for what, value in (("min", first), ("range", last - first + 1))
        ]
        daemons = [(kind, f"oob_tcp_dynamic_ipv{version}_ports", few) for version in versions]
        return [Option(words, "ports: the range that the firewall allows", "user") for words in (*ranks, *daemons)]

    @staticmethod
    def no_agent(old: bool) -> Option:
        """Return the option without mpirun's ssh launcher: if ssh is missing, mpirun fails even on one node."""
        words = ("--mca", "plm", "isolated") if old else ("--prtemca", "plm_ssh_agent", "false")
        return Option(words, "there is no other machine, so mpirun needs no ssh", "measured")

    @staticmethod
    def connection_options(plan: LaunchPlan, old: bool) -> list[Option]:
        """Return how mpirun starts its daemons on the other nodes and which network it uses."""
        kind, name = ("--mca", "plm_rsh") if old else ("--prtemca", "plm_ssh")
        agent = (kind, f"{name}_agent", agent_path(plan))
        options = [
            Option(agent, "starts daemons below a guard, instead of ssh", "default"),
            Option((kind, f"{name}_no_tree_spawn", "1"), "all daemons are started from the head", "default"),
            Option(("--leave-session-attached",), "a daemon in another process group could not be guarded", "default"),
            Option(("--noprefix",), "each node finds its own Open MPI", "default"),
        ]
        if plan.head.fabric:
            proven = fabric_environment(plan.head.fabric)
            control = ("--mca", "oob_tcp_if_include") if old else ("--prtemca", "prte_if_include")
            daemons = proven["OMPI_MCA_oob_tcp_if_include" if old else "PRTE_MCA_prte_if_include"]
            of_ranks = fabric_environment(plan.nodes[0].fabric or plan.head.fabric)  # the head may not be among them
            ranks = ("--mca", "btl_tcp_if_include", of_ranks["OMPI_MCA_btl_tcp_if_include"])
            options.append(Option((*control, daemons), "daemons talk over the proven network", "measured", free=True))
            options.append(Option(ranks, "and so does MPI: a dead NIC hangs it", "measured", free=True))
        return options
