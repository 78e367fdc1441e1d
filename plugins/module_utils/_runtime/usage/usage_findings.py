# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the usage of nodes tells: a code and a sentence each. Pure functions; the codes decide, the sentences explain.

A rule is a function here, a row in RULES, and a FindingCode.
"""

from __future__ import annotations

from typing import Callable, Iterable, Mapping

from ..looks.hang import spans
from ..types.run_usage import Finding, FindingCode
from ..types.usage import NodeUsage, Series
from .usage_figures import busiest, known_of, least, mean, most

LEAST_SAMPLES = 5  # with fewer nothing is said
# From 0.8 of its rate on a line's queues are five times as long as what it works on (M/M/1: 1 / (1 - utilisation)).
BUSY, BUSY_TIME = 0.8, 0.2  # share of the rate, and of the time
SWAP_BYTES, SWAP_TIME = 1 << 20, 0.05  # per second, and share of the time: a page now and then does no harm
LITTLE = 0.1  # of memory, of /dev/shm: earlyoom, and the kubelet for file systems, act at 10 %
WAITED = 0.2  # share of the time in which a rank waited for a CPU: its steps take a quarter longer
STOLEN = 0.1  # of the cores: hosts of clouds promise less
THROTTLED = 0.1  # share of the time
GPU_IDLE, CPU_BUSY = 0.1, 0.5  # shares: GPUs that do nothing, CPUs that work
GPU_BACKENDS = ("nccl", "xccl")  # with which ranks use GPUs
Rule = Callable[[NodeUsage, str], str]


def findings_of(usages: Mapping[str, NodeUsage], backend: str) -> list[Finding]:
    """Return what the usage of nodes tells, by rule and then by host. Rules return an empty text for nothing."""
    told = {host: usage for host, usage in usages.items() if usage["samples"] >= LEAST_SAMPLES}
    return [
        {"code": code, "host": host, "text": text}
        for code, rule in RULES.items()
        for host, usage in told.items()
        for text in [rule(usage, backend)]
        if text
    ]


def share_above(series: Series | None, limit: float) -> tuple[float, float]:
    """Return the share of the time in which a series was at a limit or above, and its mean in that time."""
    values = known_of(series["mean"]) if series else []
    above = [value for value in values if value >= limit]
    return (len(above) / len(values), sum(above) / len(above)) if above else (0.0, 0.0)


def network_busy(usage: NodeUsage, _backend: str) -> str:
    """The line that carries the job is full much of the time."""
    carrier = busiest(usage)
    if carrier is None or not carrier.rate:
        return ""
    share, rate = share_above(carrier.series, BUSY * carrier.rate)
    how = "sends" if carrier.sends else "receives"
    full = f"{carrier.name} {how} at {gbit(rate)} of {gbit(carrier.rate)} Gbit/s"
    return f"the network is full: {full}, {share:.0%} of the time" if share >= BUSY_TIME else ""


def swapping(usage: NodeUsage, _backend: str) -> str:
    """Memory is exchanged with the disk."""
    share, rate = share_above(usage["series"].get("swap"), SWAP_BYTES)
    return f"it swaps: {size(rate)}/s, {share:.0%} of the time" if share >= SWAP_TIME else ""


def memory_low(usage: NodeUsage, _backend: str) -> str:
    """Memory is nearly full."""
    left, whole = least(usage["series"].get("available")), usage["limits"].get("available")
    if left is None or not whole or left >= LITTLE * whole:
        return ""
    return f"memory is nearly full: {size(left)} of {size(whole)} were left"


def shm_low(usage: NodeUsage, _backend: str) -> str:
    """/dev/shm is nearly full: data loaders and backends share memory there."""
    used, whole = most(usage["series"].get("shm")), usage["limits"].get("shm")
    if used is None or not whole or used < (1 - LITTLE) * whole:
        return ""
    return f"/dev/shm is nearly full: {size(used)} of {size(whole)}"


def cpu_contended(usage: NodeUsage, _backend: str) -> str:
    """Ranks wait for a CPU, because others have it."""
    waits = {int(rank): share for rank, share in usage["waited"].items() if share >= WAITED}
    if not waits:
        return ""
    ranks = sorted(waits)
    who = f"rank {ranks[0]} waits" if len(ranks) == 1 else f"ranks {spans(ranks).replace(',', ', ')} wait"
    return f"{who} for a CPU, up to {max(waits.values()):.0%} of the time: more threads want to run than there are CPUs"


def cpu_stolen(usage: NodeUsage, _backend: str) -> str:
    """The hypervisor has less CPUs than it says."""
    stolen = (mean(usage["series"].get("steal")) or 0.0) / usage["cores"]
    return f"the hypervisor gives {stolen:.0%} of its CPUs to others" if stolen >= STOLEN else ""


def gpu_throttled(usage: NodeUsage, _backend: str) -> str:
    """GPUs are slowed down."""
    shares = dict(of_gpus(usage, "gpu_throttled"))
    slow = {number: share for number, share in shares.items() if share >= THROTTLED}
    if not slow:
        return ""
    which = f"GPU{'s' if len(slow) > 1 else ''} {spans(sorted(slow)).replace(',', ', ')}"
    return f"heat or the power supply slows {which} down, up to {max(slow.values()):.0%} of the time"


def gpus_idle(usage: NodeUsage, backend: str) -> str:
    """GPUs wait for CPUs."""
    shares = [share for _number, share in of_gpus(usage, "gpu")]
    busy = mean(usage["series"].get("cpu"))
    cores = usage["limits"].get("cpu") or float(usage["cores"])
    if backend not in GPU_BACKENDS or not shares or busy is None:
        return ""
    gpus, cpus = sum(shares) / len(shares), busy / cores
    held = f"its GPUs work {gpus:.0%} of the time, its CPUs {cpus:.0%}: data or preprocessing holds them up"
    return held if gpus < GPU_IDLE and cpus >= CPU_BUSY else ""


def of_gpus(usage: NodeUsage, name: str) -> Iterable[tuple[int, float]]:
    """Yield number and mean of a series of each GPU."""
    for key, series in usage["series"].items():
        kind, _dot, number = key.partition(".")
        value = mean(series)
        if kind == name and number.isdigit() and value is not None:
            yield int(number), value


def gbit(rate: float) -> str:
    """Return bytes/s in Gbit/s."""
    return f"{rate * 8 / 1e9:.3g}"


def size(amount: float) -> str:
    """Return bytes as people read them: "3.1 GiB"."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    place = 0
    while amount >= 1000 and place < len(units) - 1:
        amount, place = amount / 1024, place + 1
    return f"{amount:.3g} {units[place]}"


RULES: Mapping[FindingCode, Rule] = {
    FindingCode.NETWORK_BUSY: network_busy,
    FindingCode.SWAPPING: swapping,
    FindingCode.MEMORY_LOW: memory_low,
    FindingCode.SHM_LOW: shm_low,
    FindingCode.CPU_CONTENDED: cpu_contended,
    FindingCode.CPU_STOLEN: cpu_stolen,
    FindingCode.GPU_THROTTLED: gpu_throttled,
    FindingCode.GPUS_IDLE: gpus_idle,
}
