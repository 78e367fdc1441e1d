# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Samples over time, in a bounded number of buckets, and counters as rates. No I/O."""

from __future__ import annotations

from typing import Dict, Mapping, Tuple

from ..types.usage import BUCKETS_MOST, SERIES_MOST, NodeUsage, Series

WRAP = 1 << 32  # where counters of 32 bits begin anew: RDMA ports have such (IBTA PortCounters), and old kernels
# By name: a counter as it was read, and how much one step of it is.
Counters = Dict[str, Tuple[int, float]]


class Rates:
    """Turns counters into amounts per second."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[int, float]] = {}  # by name: the counter, and when it was read

    def add(self, counters: Counters, now: float) -> dict[str, float]:
        """Return what was counted per second since the last reading, of those counters that were read then too."""
        found = {}
        for name, (count, step) in counters.items():
            before, at = self.last.get(name, (count, now))
            self.last[name] = count, now
            grown = growth(before, count)
            if now > at and grown is not None:
                found[name] = grown * step / (now - at)
        for name in set(self.last) - set(counters):  # its device is gone: what comes later is another one
            del self.last[name]
        return found


def growth(before: int, after: int) -> int | None:
    """Return by how much a counter grew. None if it was set back: its device started anew.

    A smaller one has wrapped if it was in the upper half of 32 bits, and is in the lower half.
    """
    if after >= before:
        return after - before
    return after + WRAP - before if WRAP // 2 <= before < WRAP and after < WRAP // 2 else None


class Bucket:
    """What was read of one series in one bucket."""

    __slots__ = ("count", "least", "most", "total")

    def __init__(self, value: float) -> None:
        self.count, self.total, self.least, self.most = 1, value, value, value

    def add(self, other: Bucket) -> None:
        self.count, self.total = self.count + other.count, self.total + other.total
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)


class Folded:
    """Series of samples. When there are too many buckets, each two of them become one."""

    def __init__(self, seconds: float = 1.0, most: int = BUCKETS_MOST) -> None:
        """`seconds`: the width of a bucket at first; `most`: how many there may be."""
        self.seconds, self.most = seconds, most
        self.samples = 0
        self.buckets: dict[int, dict[str, Bucket]] = {}
        self.names: set[str] = set()

    def add(self, at: float, values: Mapping[str, float]) -> None:
        """Take one sample. `at`: seconds since the first bucket began."""
        while at >= self.seconds * self.most:
            self.fold()
        self.samples += 1
        row = self.buckets.setdefault(int(at / self.seconds), {})
        for name, value in values.items():
            if name in self.names or len(self.names) < SERIES_MOST:
                self.names.add(name)
                put(row, name, Bucket(value))

    def fold(self) -> None:
        """Make one bucket of each two."""
        self.seconds *= 2
        folded: dict[int, dict[str, Bucket]] = {}
        for place, row in self.buckets.items():
            wider = folded.setdefault(place // 2, {})
            for name, bucket in row.items():
                put(wider, name, bucket)
        self.buckets = folded

    def series(self) -> dict[str, Series]:
        """Return all series, of the same length."""
        places = range(max(self.buckets, default=-1) + 1)
        found: dict[str, Series] = {}
        for name in sorted(self.names):
            rows = [self.buckets.get(place, {}).get(name) for place in places]
            found[name] = {
                "least": [None if row is None else rounded(row.least) for row in rows],
                "mean": [None if row is None else rounded(row.total / row.count) for row in rows],
                "most": [None if row is None else rounded(row.most) for row in rows],
            }
        return found


def put(row: dict[str, Bucket], name: str, bucket: Bucket) -> None:
    """Add a bucket to what a row has of that name."""
    if name in row:
        row[name].add(bucket)
    else:
        row[name] = bucket


def rounded(value: float) -> float:
    """Return a value with four digits: what one can see of it, in a third of the bytes."""
    return float(f"{value:.4g}")


def narrowed(usage: NodeUsage, most: int) -> NodeUsage:
    """Return the usage of a node with at most so many buckets: each has several of before."""
    longest = max((len(found["mean"]) for found in usage["series"].values()), default=0)
    size = max(1, -(-longest // most))
    series = {name: joined(found, size) for name, found in usage["series"].items()}
    return {**usage, "bucket": usage["bucket"] * size, "series": series}


def joined(found: Series, size: int) -> Series:
    """Return a series in which each bucket has so many of before."""

    def parts(values: list[float | None]) -> list[list[float]]:
        places = range(0, len(values), size)
        return [[value for value in values[at : at + size] if value is not None] for at in places]

    return {
        "least": [min(part, default=None) for part in parts(found["least"])],
        "mean": [rounded(sum(part) / len(part)) if part else None for part in parts(found["mean"])],
        "most": [max(part, default=None) for part in parts(found["most"])],
    }
