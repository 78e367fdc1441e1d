# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From a plan to a command: one small class per launcher. No I/O, no shell strings; every token says why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._part import AGENT_PROGRAM, RANK_PROGRAM
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._environment import Setting
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric import fabric_environment
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._hostfile import hostfile_lines
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError

SAFE_PATH = re.compile(r"[A-Za-z0-9._/-]+\Z")


@dataclass(frozen=True)
class Option:
    """Words of a command line that belong together, why they are there and where that comes from."""

    words: tuple[str, ...]
    reason: str
    source: str  # default, inventory, measured, user


@dataclass(frozen=True)
class LaunchCommand:
    """What is started: `options` in order on the head (for a launcher that has no daemons, on the first node), further
    nodes' own commands, the launcher's own environment, and the host file (empty if none)."""

    options: tuple[Option, ...]
    environment: tuple[Setting, ...]
    hostfile: str
    on_node: Mapping[str, tuple[str, ...]]

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the command as a list of words."""
        return words_of(self.options)


def words_of(options: Iterable[Option]) -> tuple[str, ...]:
    """Return the words of options in order."""
    return tuple(word for option in options for word in option.words)


class OpenMPI:
    """Open MPI's mpirun, 4.1 and 5.0: both take double-dash options; `-bind-to none` fails on 5.0 with status 66."""

    versions = ("4.", "5.")

    def command(self, plan: LaunchPlan) -> LaunchCommand:
        """Return the mpirun command of a plan. A host file is always given: `-H` with addresses fails (prrte#2258)."""
        source = "user" if plan.np_reason == "asked for" else "inventory"
        old = plan.launcher_version.startswith("4.")
        options = [
            Option((plan.launcher_path,), f"Open MPI {plan.launcher_version}", "measured"),
            Option(("--np", str(plan.world_size)), f"ranks: {plan.np_reason}", source),
            Option(("--hostfile", f"{plan.head.job_dir}/hostfile"), "the planned nodes and their slots", "inventory"),
            Option(("--map-by", "slot"), "fill each node before the next, as planned", "default"),
            Option(("--bind-to", "none"), "a rank bound to one core trains many times slower", "default"),
        ]
        if plan.uid == 0:
            options.append(
                Option(("--allow-run-as-root",), "you connect as root; mpirun refuses root unasked", "measured")
            )
        options += self.ways_to_nodes(plan, old) if plan.others else [self.no_agent(old)]
        rank = (RANK_PROGRAM,) if plan.others else plan.head.wrapper
        options.append(Option(rank, "the rank wrapper: environment, placement, output, record", "default"))
        command = tuple(options)
        return LaunchCommand(command, (), self.hostfile(plan), {plan.head.name: words_of(command)})

    @staticmethod
    def no_agent(old: bool) -> Option:
        """Return the option that takes the ssh starter out: without ssh installed mpirun fails even on one node."""
        words = ("--mca", "plm", "isolated") if old else ("--prtemca", "plm_ssh_agent", "false")
        return Option(words, "no other machine: mpirun must not look for ssh", "measured")

    @staticmethod
    def ways_to_nodes(plan: LaunchPlan, old: bool) -> list[Option]:
        """Return how mpirun starts its daemons on the other nodes and which network it uses."""
        agent = f"{plan.head.job_dir}/bin/{AGENT_PROGRAM}"
        if not SAFE_PATH.match(agent):  # Open MPI splits the value at spaces, 4.1 runs what is in `$()`
            raise InputError(
                "torchfleet_home", plan.head.home, "Open MPI needs a path of letters, digits and ._-/ here"
            )
        kind, name = ("--mca", "plm_rsh") if old else ("--prtemca", "plm_ssh")
        options = [
            Option((kind, f"{name}_agent", agent), "starts daemons below a guard, instead of ssh", "default"),
            Option((kind, f"{name}_no_tree_spawn", "1"), "all daemons are started from the head", "default"),
            Option(("--leave-session-attached",), "a daemon that went its own way could not be guarded", "default"),
            Option(("--noprefix",), "each node finds its own Open MPI", "default"),
        ]
        if plan.head.fabric:
            proven = fabric_environment(plan.head.fabric)
            control = ("--mca", "oob_tcp_if_include") if old else ("--prtemca", "prte_if_include")
            daemons = proven["OMPI_MCA_oob_tcp_if_include" if old else "PRTE_MCA_prte_if_include"]
            ranks = ("--mca", "btl_tcp_if_include", proven["OMPI_MCA_btl_tcp_if_include"])
            options.append(Option((*control, daemons), "daemons talk over the proven network", "measured"))
            options.append(Option(ranks, "and so does MPI: a dead NIC hangs it", "measured"))
        return options

    @staticmethod
    def hostfile(plan: LaunchPlan) -> str:
        """Return the host file: the planned nodes in rank order."""
        entries = [(node.address if plan.others else "localhost", node.slots) for node in plan.nodes]
        return "".join(line + "\n" for line in hostfile_lines("openmpi", entries))


class Torchrun:
    """torchrun, one agent per node, static rendezvous: the placement is ours, so nothing needs to be negotiated."""

    versions = ("2.",)

    def command(self, plan: LaunchPlan) -> LaunchCommand:
        """Return the torchrun command of a plan. InputError if nodes have different numbers of ranks."""
        counts = {node.name: node.ranks for node in plan.nodes}
        if len(set(counts.values())) > 1:
            each = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise InputError(
                "launcher",
                "torchrun",
                f"it needs as many ranks on every node ({each}): -e launcher=openmpi, or other slots",
            )
        options = {node.name: self.agent(plan, number) for number, node in enumerate(plan.nodes)}
        threads = Setting(
            "OMP_NUM_THREADS",
            str(min(node.threads for node in plan.nodes)),
            "else torchrun sets 1 and warns",
            "default",
        )
        first = options[plan.nodes[0].name]
        return LaunchCommand(first, (threads,), "", {name: words_of(each) for name, each in options.items()})

    @staticmethod
    def agent(plan: LaunchPlan, number: int) -> tuple[Option, ...]:
        """Return the command of the agent on one node."""
        node = plan.nodes[number]
        source = "user" if plan.np_reason == "asked for" else "inventory"
        several = len(plan.nodes) > 1
        local = (Option(("--local-addr", node.address), "its address in the proven network", "measured"),)
        return (
            Option(
                (node.launcher_path, "-m", "torch.distributed.run"),
                f"torchrun of torch {plan.launcher_version}",
                "measured",
            ),
            Option(("--nnodes", str(len(plan.nodes))), "one agent per node", "inventory"),
            Option(("--nproc-per-node", str(node.ranks)), f"ranks: {plan.np_reason}", source),
            Option(("--node-rank", str(number)), "the node's place in rank order", "inventory"),
            Option(("--master-addr", plan.master_addr), "where rank 0 runs", "inventory"),
            Option(("--master-port", str(plan.master_port)), "a free port of that node", "measured"),
            *(local if several else ()),
            Option(
                ("--max-restarts", "0"), "a failed rank ends the job; it is not run again behind your back", "default"
            ),
            Option(
                ("--no-python", *node.wrapper), "the rank wrapper: environment, placement, output, record", "default"
            ),
        )


LAUNCHERS: dict[str, OpenMPI | Torchrun] = {"openmpi": OpenMPI(), "torchrun": Torchrun()}


def render(plan: LaunchPlan) -> LaunchCommand:
    """Return the command of a plan. InputError for a version that nobody has proven."""
    launcher = LAUNCHERS[plan.launcher]
    if not plan.launcher_version.startswith(launcher.versions):
        known = " or ".join(version + "x" for version in launcher.versions)
        raise InputError("launcher", f"{plan.launcher} {plan.launcher_version}", f"{plan.launcher_path} is not {known}")
    return launcher.command(plan)
