"""Sizes and bandwidths of an all-reduce: the arithmetic of `all_reduce_bench.py`, without PyTorch."""

import argparse
import re

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text: str) -> int:
    """Read a number of bytes such as `512`, `1K`, `256M` or `2G` (powers of 1024) from the command line."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper(), re.ASCII)
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512, 1K or 256M")
    return int(match[1]) * UNITS[match[2]]


def size_list(text: str) -> list[int]:
    """Read sizes with commas between them from the command line."""
    return [size(part) for part in text.split(",")]


def sizes(smallest: int, largest: int, factor: int) -> list[int]:
    """List the sizes to measure, in bytes: from `smallest`, each `factor` times the last, none above `largest`."""
    found = []
    while smallest <= largest:
        found.append(smallest)
        smallest *= factor
    return found


def iterations(size_: int) -> int:
    """Choose how often to repeat a size of so many bytes: about 1 GiB in all, within 4 and 200 times.

    A rule of the size alone: all ranks must repeat equally often, so none may look at its own clock.
    """
    return max(4, min(200, (1 << 30) // size_))


def algorithm_bandwidth(size_: int, seconds: float) -> float:
    """Give the rate at which a caller sees `size_` bytes reduced, in GB/s (10^9 bytes a second)."""
    return size_ / seconds / 1e9


def bus_bandwidth(size_: int, seconds: float, ranks: int) -> float:
    """Give the rate that the links must have carried, in GB/s, whatever the number of ranks; 0 for a rank alone.

    Of n ranks, all links together carry each byte `2 (n - 1)` times, and there are n links.
    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md, "Bandwidth", "AllReduce".
    """
    return algorithm_bandwidth(size_, seconds) * 2 * (ranks - 1) / ranks
