# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a job took of each node in a few figures, and what is noticed of them: types of JSON, and their check."""

from __future__ import annotations

import re
from typing import TypedDict

from .codes import Code
from .forms import Form, coded, like, listed, mapped, optional, short, whole
from .usage import CPUS_MOST, amount


class FindingCode(Code):
    """What is noticed of nodes: usage_findings.py has the rules."""

    NETWORK_BUSY = "network_busy"
    SWAPPING = "swapping"
    MEMORY_LOW = "memory_low"
    SHM_LOW = "shm_low"
    CPU_CONTENDED = "cpu_contended"
    CPU_STOLEN = "cpu_stolen"
    GPU_THROTTLED = "gpu_throttled"
    GPUS_IDLE = "gpus_idle"


class NodeFigures(TypedDict):
    """The figures of one node. None: not known."""

    cores: int  # that its ranks may use; 0: not known
    cpu_seconds: float | None  # of its ranks
    cpu_efficiency: float | None  # of all that these cores could have done in the time of the job
    memory_peak: float | None  # bytes
    memory_total: float | None
    nic: str  # or RDMA port: that which carried the most; empty: none is known
    nic_mean: float | None  # bytes/s, of the busier direction
    nic_peak: float | None
    nic_rate: float | None  # of the line
    gpus: int
    gpu_share: float | None  # of the time in which they did something, mean of all
    samples: int
    sampler_seconds: float  # of CPU


class Finding(TypedDict):
    """What is worth to know of what a job took."""

    code: FindingCode
    host: str
    text: str  # for people


class Usage(TypedDict):
    """What a job took of its nodes. usage.json has all of it over time."""

    nodes: dict[str, NodeFigures]  # by host: those of which something is known
    findings: list[Finding]


GPUS_MOST = 64
CARRIER = re.compile(r"[A-Za-z0-9_.:@-]{0,32}\Z")
HOST = like(re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z"), "the name of a host")
AMOUNT = optional(amount)
FIGURES: Form[NodeFigures] = Form(
    {
        "cores": whole(0, CPUS_MOST),
        **dict.fromkeys(("cpu_seconds", "cpu_efficiency", "memory_peak", "memory_total"), AMOUNT),
        "nic": like(CARRIER, "the name of a NIC"),
        **dict.fromkeys(("nic_mean", "nic_peak", "nic_rate", "gpu_share"), AMOUNT),
        "gpus": whole(0, GPUS_MOST),
        "samples": whole(0, 1 << 31),
        "sampler_seconds": amount,
    }
)
FINDINGS_MOST = 1000
FINDING: Form[Finding] = Form({"code": coded(FindingCode), "host": HOST, "text": short})
RUN_USAGE: Form[Usage] = Form(
    {
        "nodes": mapped(HOST, FIGURES),
        "findings": listed(FINDING, FINDINGS_MOST),
    }
)
