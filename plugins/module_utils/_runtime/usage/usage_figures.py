# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a job took of a node in a few figures, as in seff(1). Pure functions."""

from __future__ import annotations

from typing import Collection, Iterable, NamedTuple

from ..types.run_usage import GPUS_MOST, NodeFigures
from ..types.usage import CPUS_MOST, LARGEST, NodeUsage, Series

LOOPBACK = "lo"  # what goes through it is no network's
CARRIERS = (("rx", "tx"), ("rdma_rx", "rdma_tx"))  # series of what carries traffic: received, sent


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
