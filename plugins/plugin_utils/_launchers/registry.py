# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Renders the command of a plan, with one class per launcher. Each option has a reason. No I/O, no shell strings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import LaunchCommand
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan

from .hydra import Hydra, IntelMPI
from .openmpi import OpenMPI
from .slurm import Sbatch, Srun
from .torchrun import Torchrun
from .user_options import with_arguments


class Launcher(Protocol):
    """What each launcher's class offers.

    The supported versions, the options that place ranks (with what to type instead), and the command of a plan.
    """

    versions: tuple[str, ...]
    placed_by: Mapping[str, str]

    def command(self, plan: LaunchPlan) -> LaunchCommand:
        """Return the command of a plan. InputError for what this launcher cannot do."""


COMMANDS: Mapping[str, Launcher] = {
    "openmpi": OpenMPI(),
    "mpich": Hydra(),
    "intelmpi": IntelMPI(),
    "torchrun": Torchrun(),
    "srun": Srun(),
    "sbatch": Sbatch(),
}


def supported(launcher: Launcher) -> str:
    """Return the supported versions, for people."""
    return " or ".join(version + "x" for version in launcher.versions)


def render(plan: LaunchPlan) -> LaunchCommand:
    """Return the command of a plan, launcher_args in it. InputError for an unsupported version."""
    launcher = COMMANDS[plan.launcher]
    if not plan.launcher_version.startswith(launcher.versions):
        why = f"{plan.launcher_path} is not {supported(launcher)}"
        raise InputError("launcher", f"{plan.launcher} {plan.launcher_version}", why)
    return with_arguments(launcher.command(plan), plan, launcher.placed_by)
