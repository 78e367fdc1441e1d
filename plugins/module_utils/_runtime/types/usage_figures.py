# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a job took of each node in a few figures, as in seff(1): types of JSON, and pure functions that make them."""

from __future__ import annotations

import re
from typing import Collection, Iterable, NamedTuple, TypedDict

from .codes import Code
from .forms import Form, coded, like, listed, mapped, optional, short, whole
from .usage import CPUS_MOST, LARGEST, NodeUsage, Series, amount

LOOPBACK = "lo"  # what goes through it is no network's
CARRIERS = (("rx", "tx"), ("rdma_rx", "rdma_tx"))  # series of what carries traffic: received, sent


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


class OfRank(NamedTuple):
    """What the record of a rank says."""

    cpus: Collection[int]
    cpu_seconds: float | None
    peak_bytes: int | None


class Carrier(NamedTuple):
    """A NIC or an RDMA port, and what the busier of its directions did."""

    name: str
    series: Series
    sends: bool
    rate: float | None  # of the line


def figures_of(ranks: Collection[OfRank], usage: NodeUsage | None, seconds: float) -> NodeFigures | None:
    """Return the figures of a node. `seconds`: that the job took. None: nothing is known."""
    cores = len({cpu for rank in ranks for cpu in rank.cpus})
    known = [rank.cpu_seconds for rank in ranks if rank.cpu_seconds is not None]
    series = usage["series"] if usage else {}
    limits = usage["limits"] if usage else {}
    if not known and not series:
        return None
    mean_cores = mean(series.get("cpu"))
    used = sum(known) if len(known) == len(ranks) else None if mean_cores is None else mean_cores * seconds
    peaks = [rank.peak_bytes for rank in ranks if rank.peak_bytes is not None]
    carrier = busiest(usage) if usage else None
    gpus = [found for name, found in series.items() if name.startswith("gpu.")]
    shares = [share for share in map(mean, gpus) if share is not None]
    return {
        "cores": min(cores, CPUS_MOST),
        "cpu_seconds": possible(used, 3),
        "cpu_efficiency": possible(used / (cores * seconds), 4) if used is not None and cores and seconds > 0 else None,
        "memory_peak": possible(max(most(series.get("memory")) or 0.0, float(max(peaks, default=0))) or None),
        "memory_total": limits.get("memory"),
        "nic": carrier.name if carrier else "",
        "nic_mean": possible(mean(carrier.series)) if carrier else None,
        "nic_peak": most(carrier.series) if carrier else None,
        "nic_rate": carrier.rate if carrier else None,
        "gpus": min(len(gpus), GPUS_MOST),
        "gpu_share": possible(sum(shares) / len(shares)) if shares else None,
        "samples": usage["samples"] if usage else 0,
        "sampler_seconds": usage["cost"] if usage else 0.0,
    }


def possible(value: float | None, digits: int = 6) -> float | None:
    """Return a figure, rounded; None for one that no machine has: the controller would refuse the whole result."""
    return round(value, digits) if value is not None and 0 <= value <= LARGEST else None


def busiest(usage: NodeUsage) -> Carrier | None:
    """Return what carried the most: the chosen NIC, or an RDMA port, which the counters of NICs pass by."""
    found = []
    for directions in CARRIERS:
        for direction in directions:
            for name, series in usage["series"].items():
                kind, _dot, device = name.partition(".")
                if kind == direction and device != LOOPBACK and (kind.startswith("rdma") or device == usage["nic"]):
                    found.append(Carrier(device, series, direction == directions[1], usage["limits"].get(name)))
    return max(found, key=lambda carrier: mean(carrier.series) or 0.0, default=None)


def known_of(values: Iterable[float | None]) -> list[float]:
    """Return the values of the buckets in which something was read."""
    return [value for value in values if value is not None]


def mean(series: Series | None) -> float | None:
    """Return the mean over the whole time; None if nothing was read."""
    values = known_of(series["mean"]) if series else []
    return sum(values) / len(values) if values else None


def most(series: Series | None) -> float | None:
    """Return the most of any sample."""
    return max(known_of(series["most"]), default=None) if series else None


def least(series: Series | None) -> float | None:
    """Return the least of any sample."""
    return min(known_of(series["least"]), default=None) if series else None
