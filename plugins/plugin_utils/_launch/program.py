# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The program of a job: what every rank runs, and where."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.job_files import TREE
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import NodeFacts

from .program_environment import ranks_python
from .request import Request
from .workdir import root_of


@dataclass(frozen=True)
class Program:
    """What every rank runs: a script (its path on each node is the node's) with arguments.

    `shipped`: whether its folder is copied into the job's own tree on each node; else the script is used where it is.
    `folder`: is the same on every node, and ranks work there; empty if it is copied, or ranks work elsewhere.
    """

    script: str
    args: tuple[str, ...]
    shipped: bool = False
    module: str = ""  # that `python -m` runs; the script is its file, or empty if it is installed
    folder: str = ""

    @property
    def runs_python(self) -> bool:
        """Whether the script needs an interpreter."""
        return bool(self.module) or self.script.endswith(".py")

    def on(self, fact: NodeFacts, job_dir: str) -> tuple[tuple[str, ...], str]:
        """Return the command line and the working directory on a node."""
        where = f"{job_dir}/{TREE}" if self.shipped else self.folder
        script = f"{where}/{self.script.rpartition('/')[2]}" if where else self.script
        interpreter = (ranks_python(fact),) if self.runs_python else ()
        named = ("-m", self.module) if self.module else (script,)
        return (*interpreter, *named, *self.args), where or fact["cwd"]


def program_of(request: Request, script: str, shipped: bool, local: bool) -> Program:
    """Return what every rank runs. `local`: this machine is the whole cluster, and a script runs where the user is."""
    stays = bool(script) and not shipped and (not local or bool(request.module))
    folder = str(root_of(script, request.module)) if stays else ""
    return Program(script, request.workload_args, shipped, request.module, folder)
