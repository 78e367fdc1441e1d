# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From a plan to a command: one small class per launcher. No I/O, no shell strings; every token says why."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._environment import Setting
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError


@dataclass(frozen=True)
class Option:
    """Words of a command line that belong together, why they are there and where that comes from."""

    words: tuple[str, ...]
    reason: str
    source: str  # default, inventory, measured, user


@dataclass(frozen=True)
class LaunchCommand:
    """What the head runs: the options in order, the launcher's own environment, and the host file (empty if none)."""

    options: tuple[Option, ...]
    environment: tuple[Setting, ...]
    hostfile: str

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the command as a list of words."""
        return tuple(word for option in self.options for word in option.words)


class OpenMPI:
    """Open MPI's mpirun, 4.1 and 5.0: both take double-dash options; `-bind-to none` fails on 5.0 with status 66."""

    versions = ("4.", "5.")

    def command(self, plan: LaunchPlan) -> LaunchCommand:
        """Return the mpirun command of a plan. A host file is always given: `-H` with addresses fails (prrte#2258)."""
        source = "user" if plan.np_reason == "asked for" else "inventory"
        options = [
            Option((plan.launcher_path,), f"Open MPI {plan.launcher_version}", "measured"),
            Option(("--np", str(plan.world_size)), f"ranks: {plan.np_reason}", source),
            Option(("--hostfile", f"{plan.job_dir}/hostfile"), "the planned nodes and their slots", "inventory"),
            Option(("--map-by", "slot"), "fill each node before the next, as planned", "default"),
            Option(("--bind-to", "none"), "a rank bound to one core trains many times slower", "default"),
        ]
        if plan.uid == 0:
            options.append(
                Option(("--allow-run-as-root",), "you connect as root; mpirun refuses root unasked", "measured")
            )
        if all(node.local for node in plan.nodes):
            options.append(Option(self.no_agent(plan), "no other machine: mpirun must not look for ssh", "measured"))
        options.append(Option(plan.wrapper, "the rank wrapper: environment, placement, output, record", "default"))
        return LaunchCommand(tuple(options), (), self.hostfile(plan))

    @staticmethod
    def no_agent(plan: LaunchPlan) -> tuple[str, str, str]:
        """Return the option that takes the ssh starter out: without ssh installed mpirun fails even on one node."""
        if plan.launcher_version.startswith("4."):
            return ("--mca", "plm", "isolated")
        return ("--prtemca", "plm_ssh_agent", "false")

    @staticmethod
    def hostfile(plan: LaunchPlan) -> str:
        """Return the host file: the planned nodes in rank order."""
        names = {node.name: "localhost" if node.local else node.address for node in plan.nodes}
        return "".join(f"{name} slots={plan.slots[host]}\n" for host, name in names.items())


class Torchrun:
    """torchrun, one agent per node, static rendezvous: the placement is ours, so nothing needs to be negotiated."""

    versions = ("2.",)

    def command(self, plan: LaunchPlan) -> LaunchCommand:
        """Return the torchrun command of a plan."""
        source = "user" if plan.np_reason == "asked for" else "inventory"
        options = (
            Option(
                (plan.launcher_path, "-m", "torch.distributed.run"),
                f"torchrun of torch {plan.launcher_version}",
                "measured",
            ),
            Option(("--nnodes", "1"), "one agent: one node", "inventory"),
            Option(("--nproc-per-node", str(plan.world_size)), f"ranks: {plan.np_reason}", source),
            Option(("--node-rank", "0"), "this node is the first", "inventory"),
            Option(("--master-addr", plan.master_addr), "where rank 0 runs", "inventory"),
            Option(("--master-port", str(plan.master_port)), "a free port of that node", "measured"),
            Option(
                ("--max-restarts", "0"), "a failed rank ends the job; it is not run again behind your back", "default"
            ),
            Option(
                ("--no-python", *plan.wrapper), "the rank wrapper: environment, placement, output, record", "default"
            ),
        )
        threads = Setting(
            "OMP_NUM_THREADS", str(min(plan.threads.values())), "else torchrun sets 1 and warns", "default"
        )
        return LaunchCommand(options, (threads,), "")


LAUNCHERS: dict[str, OpenMPI | Torchrun] = {"openmpi": OpenMPI(), "torchrun": Torchrun()}


def render(plan: LaunchPlan) -> LaunchCommand:
    """Return the command of a plan. InputError for a version that nobody has proven."""
    launcher = LAUNCHERS[plan.launcher]
    if not plan.launcher_version.startswith(launcher.versions):
        known = " or ".join(version + "x" for version in launcher.versions)
        raise InputError("launcher", f"{plan.launcher} {plan.launcher_version}", f"{plan.launcher_path} is not {known}")
    return launcher.command(plan)
