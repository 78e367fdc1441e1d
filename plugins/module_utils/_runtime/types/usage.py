# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the ranks of a job took of their node over time: types of JSON, and the check of what a node sends.

The names of series, and what they count:

    cpu, cpu_node       cores that the ranks' processes, and all of the node, kept busy
    steal               cores that the hypervisor gave to others while this node wanted them
    memory              bytes of memory that the ranks' processes hold (RSS: what they share counts for each)
    available           bytes that programs could still have, by the kernel or by the limit of our cgroup
    swap                bytes/s to and from swap space
    disk_read/_write    bytes/s from and to block devices
    shm                 bytes in /dev/shm
    rx.<nic>, tx.<nic>  bytes/s that a NIC received and sent; rdma_rx, rdma_tx.<device>:<port>: an RDMA port
    gpu.<n>             share of the time in which a GPU did something
    gpu_memory.<n>      bytes of its memory in use
    gpu_power.<n>       watts
    gpu_clock.<n>       Hz of its cores
    gpu_throttled.<n>   share of the time in which heat, or the power supply, slowed it down
"""

from __future__ import annotations

import math
import re
from typing import TypedDict

from .forms import BadFrame, Form, like, listed, mapped, moment, whole

BUCKETS_MOST = 300  # of a series, whatever the length of the job
SERIES_MOST = 128  # of a node: 16 GPUs have 80
RANKS_MOST = 4096  # of a node
LARGEST = 1e18
SECONDS_MOST = 1e9  # of a duration: thirty years
NAME = re.compile(r"[a-z_]{1,20}(\.[A-Za-z0-9_.:@-]{1,32})?\Z")
NIC = re.compile(r"[A-Za-z0-9_.:@-]{0,15}\Z")
DIGITS = re.compile(r"[0-9]{1,7}\Z")
CPUS_MOST = 1 << 13


class Series(TypedDict):
    """A value over time: the least, the mean and the most in each bucket; None where nothing was read."""

    least: list[float | None]
    mean: list[float | None]
    most: list[float | None]


class NodeUsage(TypedDict):
    """What the sampler of a node read."""

    began: float  # seconds since the epoch: when the first bucket begins
    bucket: float  # seconds
    samples: int
    cost: float  # CPU seconds of the sampler itself
    cores: int  # of the node
    nic: str  # that carries the job; empty: none was chosen
    limits: dict[str, float]  # the most that a series can come to, where that is known
    waited: dict[str, float]  # by rank: share of the time in which its main thread waited for a CPU
    series: dict[str, Series]


def amount(value: object) -> float:
    """Return a finite number of at least 0. BadFrame."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadFrame("an amount was expected")
    if not 0 <= value <= LARGEST:
        raise BadFrame("an amount was expected")
    return float(value)


def duration(value: object) -> float:
    """Return seconds. BadFrame for more than any job takes."""
    if amount(value) > SECONDS_MOST:
        raise BadFrame("a duration was expected")
    return amount(value)


def known_amount(value: object) -> float | None:
    """Return an amount, or None where nothing was read. BadFrame."""
    return None if value is None else amount(value)


VALUES = listed(known_amount, BUCKETS_MOST)
SERIES: Form[Series] = Form({"least": VALUES, "mean": VALUES, "most": VALUES})


def series(value: object) -> Series:
    """Return a series whose three lists are of one length, and agree. BadFrame."""
    found = SERIES(value)
    rows = list(zip(found["least"], found["mean"], found["most"]))
    if not len(rows) == len(found["least"]) == len(found["mean"]) == len(found["most"]):
        raise BadFrame("three lists of one length were expected")
    for row in rows:
        if None in row and any(value is not None for value in row):
            raise BadFrame("a bucket was expected to have all its values, or none")
    return found


USAGE: Form[NodeUsage] = Form(
    {
        "began": moment,
        "bucket": duration,
        "samples": whole(0, 1 << 31),
        "cost": amount,
        "cores": whole(1, CPUS_MOST),
        "nic": like(NIC, "the name of a NIC"),
        "limits": mapped(like(NAME, "the name of a series"), amount, SERIES_MOST),
        "waited": mapped(like(DIGITS, "a rank"), amount, RANKS_MOST),
        "series": mapped(like(NAME, "the name of a series"), series, SERIES_MOST),
    }
)
