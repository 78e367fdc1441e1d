"""Load every GPU (or CPU) with matrix products and copies, check what they compute, and name the rank that is slow."""

import argparse
import socket
import sys
import time
from typing import NamedTuple

import torch
import torch.distributed as dist
from _basics import PROGRAM, Parser, positive_number
from _common import Rank, join, report, run, say

# Rows of the square matrices, their type, and bytes of the memory that is written and read, by device. A product of
# this size fills a GPU for milliseconds.
SIZES = {"cuda": (8192, torch.bfloat16, 4 << 30), "xpu": (8192, torch.bfloat16, 2 << 30)}
SMALL = (512, torch.float32, 64 << 20)
# Of the median of all ranks. GPUs of one model differ by some percent; processors share cores with other ranks.
LEAST_SHARE = {"cpu": 0.5}
USUAL_SHARE = 0.85
PATTERN = 0x5A
HEADER = f"{'rank':>6} {'TFLOP/s':>10} {'GB/s':>10} {'wrong':>6}"


class Load(NamedTuple):
    """What one rank did: 10^12 operations a second, GB/s of memory written and read, products and bytes gone wrong."""

    tflops: float
    gbps: float
    wrong: float


def multiply(device: torch.device, seconds: float) -> tuple[float, int]:
    """Repeat one matrix product; return 10^12 operations a second, and how many results differed from the first.

    The same product on the same device has the same bits: another result is an error of the hardware.
    """
    rows, dtype, _bytes = SIZES.get(device.type, SMALL)
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.rand(rows, rows, generator=generator).to(device, dtype) for _side in range(2))
    first = left @ right
    synchronize = torch.get_device_module(device).synchronize
    synchronize()
    wrong = products = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        wrong += not torch.equal(left @ right, first)  # which waits for the device
        products += 1
    return 2 * rows**3 * products / (time.perf_counter() - started) / 1e12, wrong


def copy(device: torch.device, seconds: float) -> tuple[float, int]:
    """Write and read memory; return GB/s, and how many bytes came back wrong."""
    _rows, _dtype, size = SIZES.get(device.type, SMALL)
    source = torch.full((size,), PATTERN, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    synchronize = torch.get_device_module(device).synchronize
    synchronize()
    copies = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        target.copy_(source)
        source, target = target, source
        synchronize()
        copies += 1
    rate = 2 * size * copies / (time.perf_counter() - started) / 1e9
    return rate, int((source != PATTERN).sum())


def loads_of_all(mine: Load, rank: Rank) -> list[Load]:
    """Return the loads of all ranks, by rank."""
    table = torch.zeros(rank.world_size, len(mine), dtype=torch.float64, device=rank.wire)
    table[rank.rank] = torch.tensor(mine, dtype=torch.float64)
    dist.all_reduce(table)
    return [Load(*row) for row in table.tolist()]


def fault(mine: Load, everyone: list[Load], least: float) -> str:
    """Return what is wrong with one rank; empty if nothing is. `least`: share of the median that a rank must reach."""
    if mine.wrong:
        return f"{mine.wrong:.0f} wrong results"
    for name, unit in (("tflops", "TFLOP/s"), ("gbps", "GB/s of memory")):
        rate, middle = getattr(mine, name), median([getattr(each, name) for each in everyone])
        if rate < least * middle:
            return f"{rate:.3g} {unit}; the median of all ranks is {middle:.3g}"
    return ""


def row(rank: int, load: Load) -> str:
    """Return a rank's line of the table."""
    return f"{rank:>6} {load.tflops:>10.4g} {load.gbps:>10.4g} {load.wrong:>6.0f}"


def median(values: list[float]) -> float:
    """Return the middle value, the upper one of two."""
    return sorted(values)[len(values) // 2]


def parse() -> argparse.Namespace:
    """Read the command line; errors end the program with exit code 2."""
    parser = Parser(__doc__)
    parser.add_argument("--seconds", type=positive_number, default=10.0, help="for each part (default: 10)")
    parser.add_argument("--least-share", type=positive_number, help="of the median (default: 0.85; of CPUs 0.5)")
    return parser.parse_args()


def main() -> int:
    """Join, load the device, and return the exit code: 1 on a rank that is slow or wrong."""
    options = parse()
    rank = join(options.backend, options.device, staged=True, shared=False)
    dist.barrier()
    tflops, wrong_products = multiply(rank.device, options.seconds)
    gbps, wrong_bytes = copy(rank.device, options.seconds)
    everyone = loads_of_all(Load(tflops, gbps, float(wrong_products + wrong_bytes)), rank)
    if rank.rank == 0:
        say("\n".join([HEADER, *(row(at, each) for at, each in enumerate(everyone))]))
    report(tflops=median([each.tflops for each in everyone]), memory_gbps=median([each.gbps for each in everyone]))
    least = options.least_share or LEAST_SHARE.get(rank.device.type, USUAL_SHARE)
    found = fault(everyone[rank.rank], everyone, least)
    if found:
        sys.stderr.write(f"{PROGRAM}: {rank.device} of rank {rank.rank} on {socket.gethostname()}: {found}\n")
    return 1 if found else 0


if __name__ == "__main__":
    run(main)
