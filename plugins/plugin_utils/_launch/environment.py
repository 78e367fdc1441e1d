# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The environment of the ranks of a node: every variable with its reason and where it comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import DEFAULT, LAUNCHERS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import NodeFacts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.publication import (
    fabric_environment,
    rails_in_use,
    reason_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node

from .attempts import ONLY, Attempt
from .backends import BACKENDS, Choice
from .data_set import REASON, VARIABLE, DataSet
from .program_environment import activation
from .secrets import HIDDEN

# The names of _runtime/ranks/rank_variables.py, but for those of the rendezvous, in the least words.
PLACE = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE OMPI_COMM_WORLD_{RANK,LOCAL_RANK,SIZE,LOCAL_SIZE} "
    "{GROUP,NODE,ROLE}_RANK {GROUP,ROLE}_WORLD_SIZE ROLE_NAME TORCHELASTIC_{RUN_ID,RESTART_COUNT,MAX_RESTARTS}"
)


@dataclass(frozen=True)
class Setting:
    """One environment variable."""

    name: str
    value: str = dataclasses.field(repr=False)
    reason: str
    source: str  # default, inventory, measured, user
    secret: bool = False

    @property
    def shown(self) -> str:
        """Return the value as reports may show it."""
        return HIDDEN if self.secret else self.value

    @property
    def report(self) -> dict[str, str]:
        """Return it as plain values for a report."""
        return {**dataclasses.asdict(self), "value": self.shown}


@dataclass(frozen=True)
class JobEnvironment:
    """What the environments of all nodes of a job are made from.

    `master`: address and port of the rendezvous. `ports`: first and last that MPI may listen on; None: any.
    """

    job_id: str
    backend: Choice
    several_nodes: bool
    job_env: Mapping[str, str]
    secrets: Collection[str]
    master: tuple[str, int]
    ports: tuple[int, int] | None = None
    attempt: Attempt = ONLY
    job_timeout: float | None = None
    data: DataSet | None = None
    profile: Mapping[str, tuple[str, str, str]] = dataclasses.field(default_factory=dict)  # value, reason, source
    launcher: str = DEFAULT

    def on(self, node: Node, fact: NodeFacts, threads: int) -> tuple[Setting, ...]:
        """Return what the ranks of a node get beside their rank, sorted by name. What the user gives wins.

        `threads`: the cores of each of its ranks.
        """
        settings = [
            Setting("OMP_NUM_THREADS", str(threads), "cores of the node / its ranks", "measured"),
            Setting("PYTHONUNBUFFERED", "1", "output appears when it is written, not at the end", "default"),
            Setting("TORCHFLEET_BACKEND", *self.backend),
            Setting("TORCHFLEET_JOB_ID", self.job_id, "marks the processes of this job", "default"),
            *self.for_restarts(fact),
            *([Setting(VARIABLE, self.data.path_on(fact["home"]), *REASON)] if self.data else []),
            *self.for_cpus(fact),
            *self.for_mpi4py(fact),
            *(Setting(name, *row) for name, row in self.profile.items()),
            *(Setting(name, value, "activates this environment", "user") for name, value in activation(fact).items()),
            *(self.for_network(fact) if self.several_nodes else self.within_a_machine()),
        ]
        chosen = {setting.name: setting for setting in settings}
        for values, reason, source in ((node.env, "torchfleet_env", "inventory"), (self.job_env, "job_env", "user")):
            for name, value in values.items():
                chosen[name] = Setting(name, value, reason, source, secret=name in self.secrets)
        return tuple(chosen[name] for name in sorted(chosen))

    def for_restarts(self, fact: NodeFacts) -> list[Setting]:
        """Return what a program needs to go on where an earlier attempt had stopped."""
        directory, count = self.attempt.directory_on(fact), str(self.attempt.restarts)
        why, after = self.attempt.reason, self.attempt.after
        return [
            *([Setting("TORCHFLEET_CHECKPOINT_DIR", directory, *why)] if directory else []),
            Setting("TORCHFLEET_RESTART_COUNT", count, "how often this job was started before", "default"),
            *([Setting("TORCHFLEET_RESTART_REASON", after, "how the last attempt ended", "default")] if after else []),
        ]

    def for_cpus(self, fact: NodeFacts) -> list[Setting]:
        """Return what tells frameworks that a node has no GPUs. Those of Intel are known by the backend alone."""
        if any(fact["accelerators"].values()) or BACKENDS[self.backend.name].device != "cpu":
            return []
        reason = "no GPU here: Accelerate and the Trainer would run each rank alone (accelerate 1.15)"
        return [Setting("ACCELERATE_USE_CPU", "true", reason, "measured")]

    def for_mpi4py(self, fact: NodeFacts) -> list[Setting]:
        """Return where mpi4py finds the MPI of the launcher, if that does not tell. Then as ever: an empty entry.

        mpi4py 4.1 reads a list of directories there (its _mpiabi.py), and loads the first MPI that it finds.
        """
        program = PurePosixPath(fact["launcher"]["path"])
        if not LAUNCHERS[self.launcher].hides_library or not program.is_absolute():
            return []
        reason = "the library of the launcher's MPI, for mpi4py"
        return [Setting("MPI4PY_LIBMPI", f"{program.parents[1] / 'lib'}:", reason, "measured")]

    def within_a_machine(self) -> list[Setting]:
        """Return loopback as the NIC, which no cable or host name can break."""
        reason = "all ranks are on this machine: loopback, which no host name breaks (Debian's 127.0.1.1)"
        loopback = BACKENDS[self.backend.name].loopback
        return [Setting(name, value, reason, "measured") for name, value in loopback.items()]

    def for_network(self, fact: NodeFacts) -> list[Setting]:
        """Return the proven NIC for every library, and what the backend wants beside it."""
        fabric = fact["fabric"]
        proven = fabric_environment(fabric) if fabric else {}
        rdma = bool(fabric and rails_in_use(fabric))
        wanted = BACKENDS[self.backend.name].environment(fact["accelerators"], rdma)
        if fabric and fabric.get("other_rdma") == "EFA":  # libfabric finds its provider efa itself, which beats tcp
            wanted.pop("FI_PROVIDER", None)
        return [
            *(Setting(name, value, reason_of(fabric, name), "measured") for name, value in proven.items() if fabric),
            *(Setting(name, value, why, "measured") for name, (value, why) in wanted.items()),
            *self.for_firewall(),
        ]

    def for_firewall(self) -> list[Setting]:
        """Return the ports for what MPI, oneCCL and UCC are carried by (fi_tcp(7); UCX: `ucx_info -c`)."""
        if not self.ports:
            return []
        first, last = self.ports
        names = {
            "FI_TCP_PORT_LOW_RANGE": first,
            "FI_TCP_PORT_HIGH_RANGE": last,
            "UCX_TCP_PORT_RANGE": f"{first}-{last}",
        }
        reason = "ports: the range that the firewall allows"
        return [Setting(name, str(value), reason, "user") for name, value in names.items()]

    def set_by_wrapper(self, path_first: str, given: Collection[Setting]) -> tuple[Setting, ...]:
        """Return what the rank wrapper sets unless it is `given`, for people: a rank's own values are not known yet.

        `path_first`: directory of the ranks' Python; may be empty.
        """
        address, port = self.master
        search = Setting("PATH", f"{path_first}:...", "python and torchrun of the ranks come first", "default")
        left = Setting("TORCHFLEET_SECONDS_LEFT", "...", "until job_timeout, when the program starts", "user")
        resume = Setting("TORCHFLEET_RESUME", "...", "the newest complete checkpoint there, or empty", "measured")
        has_checkpoints = any(setting.name == "TORCHFLEET_CHECKPOINT_DIR" for setting in given)
        settings = (
            Setting("MASTER_ADDR", address, "where rank 0 runs", "inventory"),
            Setting("MASTER_PORT", str(port), "a free port there", "measured"),
            *([search] if path_first else []),
            *([left] if self.job_timeout else []),
            *([resume] if has_checkpoints else []),
            *(
                Setting(name, "...", "the rank's place, for scripts of either kind", "default")
                for name in PLACE.split()
            ),
        )
        names = {setting.name for setting in given}
        return tuple(setting for setting in settings if setting.name not in names)
