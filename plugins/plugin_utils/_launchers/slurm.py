# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Slurm's srun and sbatch, for sites with a Slurm cluster."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import RANK_PROGRAM
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import (
    WRAPPER,
    LaunchCommand,
    Option,
    program_option,
    words_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan

BINDINGS = {"none": "none", "core": "cores", "numa": "ldoms", "socket": "sockets"}

# Options that place ranks, and what to type instead.
PLACED_BY = {
    **dict.fromkeys(("n", "ntasks"), "-e np="),
    **dict.fromkeys(("ntasks-per-node",), "-e ranks_per_node="),
    **dict.fromkeys(("N", "nodes", "w", "nodelist"), "-e nodes="),
    **dict.fromkeys(("m", "distribution"), "-e map_by="),
}


class Srun:
    """srun: makes its own allocation of the planned nodes and starts the ranks in it."""

    versions: tuple[str, ...] = ("2", "3")  # Slurm counts years: 22.05, 23.11, 24.05
    placed_by: Mapping[str, str] = PLACED_BY

    def command(self, plan: LaunchPlan) -> LaunchCommand:
        """Return the srun command of a plan. InputError for nodes that keep their jobs in different places."""
        command = (*self.program(plan), *self.resource_options(plan), *self.ranks(plan))
        return LaunchCommand({plan.head.name: command}, files={"hostfile": hostlist(plan)}, cancel=cancel(plan))

    def program(self, plan: LaunchPlan) -> tuple[Option, ...]:
        """Return the program and the name of the allocation."""
        return (
            program_option(plan),
            Option(
                (f"--job-name={unique_name(plan)}",),
                "unique: the job is cancelled by this name, whichever process dies",
                "default",
            ),
        )

    @staticmethod
    def resource_options(plan: LaunchPlan) -> tuple[Option, ...]:
        """Return the options of the allocation. The list of nodes has a line per rank: any placement is possible."""
        cores = str(min(node.cores for node in plan.nodes))
        why = "the cores that the plan counts on: ranks are confined to what is allocated, also with --cpu-bind=none"
        return (
            Option((f"--nodes={len(plan.nodes)}",), "the planned nodes", "inventory"),
            Option((f"--ntasks={plan.world_size}",), f"ranks: {plan.np_reason}", plan.np_source),
            Option((f"--nodelist={plan.head.job_dir}/hostfile",), "the node of each rank", "inventory"),
            Option(("--distribution=arbitrary",), "as that list says", "default"),
            Option((f"--mincpus={cores}",), why, "measured", free=True),
        )

    @staticmethod
    def ranks(plan: LaunchPlan) -> tuple[Option, ...]:
        """Return how each rank is started."""
        check_homes(plan)
        check_cores(plan)
        binding = f"--cpu-bind={BINDINGS[plan.options.bind_to]}"
        return (
            Option((binding,), plan.options.binding_reason, plan.options.source("bind_to"), free=True),
            Option(("--mpi=none",), "ranks find each other by torch's rendezvous", "default", free=True),
            Option(
                ("--chdir=/",), "directories differ between nodes: the rank wrapper changes to the right one", "default"
            ),
            Option(("--input=none",), "nobody types", "default"),
            Option((f"{plan.head.job_dir}/bin/{RANK_PROGRAM}",), WRAPPER, "default"),
        )


class Sbatch(Srun):
    """sbatch: the same job as a batch file, for sites where jobs wait in a queue."""

    def command(self, plan: LaunchPlan) -> LaunchCommand:
        """Return the sbatch command of a plan, and the batch file it submits."""
        batch = f"{plan.head.job_dir}/batch.sh"
        options = (
            *self.program(plan),
            Option(("--wait",), "sbatch waits until the batch job has ended", "default"),
            Option((batch,), "the batch file, rendered from the same plan", "default"),
        )
        files = {"hostfile": hostlist(plan), "batch.sh": self.batch(plan)}
        return LaunchCommand({plan.head.name: options}, files=files, cancel=cancel(plan))

    def batch(self, plan: LaunchPlan) -> str:
        """Return the batch file.

        It starts on the first node of the allocation, and that is another one where the head runs no ranks: so it
        writes the list of nodes there, at the place where the head has it. What it and srun say is the launcher's
        output of that node.
        """
        names, directory = shlex.join(hostlist(plan).split()), plan.head.job_dir
        written = f"(umask 077; printf '%s\\n' {names} > {shlex.quote(f'{directory}/hostfile')}) || exit\n"
        srun = plan.launcher_path.rpartition("/")[0] + "/srun"
        asked = "".join(f"#SBATCH {shlex.join(option.words)}\n" for option in self.resource_options(plan))
        place = shlex.quote(f"{directory}/launcher.out".replace("%", "%%"))  # % begins what Slurm replaces
        # Slurm starts the job of a lost node again by itself, which is over for us (sbatch(1), --requeue).
        output = f"#SBATCH --output={place}\n#SBATCH --open-mode=append\n#SBATCH --chdir=/\n#SBATCH --no-requeue\n"
        again = words_of((*self.resource_options(plan), *self.ranks(plan)))
        return f"#!/bin/sh\n{asked}{output}{written}exec {shlex.join((srun, *again))}\n"


def hostlist(plan: LaunchPlan) -> str:
    """Return the node of every rank in rank order, by the name that Slurm has for it. InputError without a name."""
    names = {node.name: node.hostname for node in plan.nodes}
    if nameless := [name for name, hostname in names.items() if not hostname]:
        raise InputError("launcher", plan.launcher, f"{nameless[0]} has no host name, by which Slurm would know it")
    return "".join(names[place.host] + "\n" for place in plan.placement)


def check_homes(plan: LaunchPlan) -> None:
    """InputError if nodes keep their jobs in different places: one command line starts all ranks."""
    homes = {node.name: node.home for node in (plan.head, *plan.nodes)}
    if len(set(homes.values())) > 1:
        paths = ", ".join(f"{name} {home}" for name, home in homes.items())
        raise InputError("torchfleet_home", paths, f"{plan.launcher} needs the same on all nodes: set it to one path")


def check_cores(plan: LaunchPlan) -> None:
    """InputError for more ranks than cores: `--overcommit` makes Slurm 22.05 confine them all to one."""
    for node in plan.nodes:
        if node.ranks > node.cores:
            why = f"Slurm needs a core for each rank, and {node.name} has {node.ranks} ranks and {node.cores} of them"
            raise InputError("launcher", plan.launcher, f"{why}: -e launcher=openmpi, or fewer slots")


def unique_name(plan: LaunchPlan) -> str:
    """Return the job's name in Slurm: people give job ids such as `train`, which other jobs may have as a name."""
    return f"torchfleet-{plan.job_id}-{plan.token}"


def cancel(plan: LaunchPlan) -> tuple[tuple[str, ...], ...]:
    """Return how a job is cancelled in any state: a command that prints its numbers, and one that cancels these.

    The first prints states too, also for some minutes after a job's end (MinJobAge of slurm.conf).
    """
    programs = plan.launcher_path.rpartition("/")[0]
    which = (f"--name={unique_name(plan)}", f"--user={plan.uid}", "--states=all")
    return (f"{programs}/squeue", "--noheader", "--format=%i %T", *which), (f"{programs}/scancel", "--quiet")
