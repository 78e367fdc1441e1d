# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The facts of a node (module node_facts), checked: answers.py has the form of each field. Sizes are bytes."""

from __future__ import annotations

from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.gpus import Accelerators
from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.nvlink import NvlinkFabric
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Seat
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.fabric_types import FirewallFacts, NetworkFacts

# "from" is no name of Python
SshdFacts = TypedDict("SshdFacts", {"max_startups": str, "from": str})


class SystemFacts(TypedDict):
    kernel: str
    arch: str
    os: str
    os_version: str
    os_name: str
    libc: str


class UserFacts(TypedDict):
    name: str
    uid: int
    sudo: str  # root, yes, no, missing or not tried


class PythonFacts(TypedDict):
    """The Python that makes environments."""

    path: str
    version: str
    venv: bool
    headers: bool
    standalone: str


class HostFacts(TypedDict):
    name: str
    addresses: list[str] | None
    machine_id: str  # a digest, as that of its network
    network: str
    host_keys: list[str]


class LooseDirectory(TypedDict):
    """A directory that others may write to."""

    path: str
    why: str  # owner or everybody


class PlaceFacts(TypedDict):
    """A directory, and the file system that it is on."""

    near: str
    free: int
    size: int
    free_inodes: int | None
    writable: bool
    read_only: bool
    noexec: bool
    source: str
    kind: str


class HomeFacts(PlaceFacts):
    path: str
    loose: list[LooseDirectory]


class LimitFacts(TypedDict):
    """Of a login. None: unlimited."""

    memlock: int | None
    nofile: int | None
    nproc: int | None


class MemoryFacts(TypedDict):
    total: int
    available: int
    swap: int
    limit: int | None  # of its control group


class PortFacts(TypedDict):
    local_range: list[int]  # first and last port of outgoing connections; empty: not known
    listening: list[int]


class TimeService(TypedDict):
    """Units of systemd that set the clock. Empty: none."""

    runs: str
    installed: str


class PrerequisiteFacts(TypedDict):
    manager: str
    missing: dict[str, list[str]]  # packages, by part
    time_service: TimeService
    limits: dict[str, str]
    logins: str


class NvidiaHealth(TypedDict):
    address: str
    vbios: str
    ecc_errors: int | None
    fabric: str


class Xid(TypedDict):
    """An error that NVIDIA's driver reported."""

    address: str
    number: int


class NextKernel(TypedDict):
    """The kernel that boots next, and which drivers it has."""

    release: str
    modules: list[str]


class GpuHealthLate(TypedDict, total=False):
    nvlink: list[NvlinkFabric]


class GpuHealth(GpuHealthLate):
    nvidia: list[NvidiaHealth]
    xids: list[Xid]
    next_kernel: NextKernel


class GpuFacts(TypedDict):
    """What rules about GPUs need."""

    accelerators: Accelerators
    gpu_health: GpuHealth
    versions: dict[str, str]


class Facts(GpuFacts):
    """All of them. Paths are empty where there is nothing."""

    system: SystemFacts
    user: UserFacts
    python: PythonFacts
    host: HostFacts
    home: HomeFacts
    tmp: PlaceFacts
    shm: PlaceFacts
    limits: LimitFacts
    memory: MemoryFacts
    ports: PortFacts
    sshd: SshdFacts
    ssh: str
    compiler: str
    backends: bool
    firewall: list[FirewallFacts]
    rdma: list[str]
    prerequisites: PrerequisiteFacts
    wrappers: list[str]
    torch: dict[str, str] | None
    networks: NetworkFacts | None
    seat: Seat | None
