"""Measure the bandwidth of all-reduce over sizes, on any backend; all rates are in GB/s (10^9 bytes a second)."""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from _bandwidth import algorithm_bandwidth, bus_bandwidth, iterations, size, size_list, sizes
from _basics import Parser, positive, prepare, replacing
from _common import Rank, complain, from_rank_zero, join, report, run, say
from _traffic import Sent, job_rates, job_sends

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
PERIOD = 7  # Of the test pattern: no power of two, so that a piece that lands in another's place is seen.
HEADER = f"{'bytes':>12} {'iterations':>10} {'time (us)':>12} {'algbw (GB/s)':>12} {'busbw (GB/s)':>12} {'wrong':>6}"


class Row(NamedTuple):
    """One measured size: bytes per rank, repetitions, seconds per all-reduce, GB/s, ranks with a wrong sum.

    `seconds`: the median of the rounds, `seconds_min` and `seconds_max`: the fastest and the slowest of them.
    """

    bytes: int
    iterations: int
    seconds: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: int
    seconds_min: float
    seconds_max: float

    def __str__(self) -> str:
        microseconds = f"{self.seconds * 1e6:>12.1f}"
        rates = f"{self.algbw_gbps:>12.4g} {self.busbw_gbps:>12.4g}"
        return f"{self.bytes:>12} {self.iterations:>10} {microseconds} {rates} {self.wrong:>6}"


def pattern(buffer: torch.Tensor, ranks: range) -> torch.Tensor:
    """Make the sum of what `ranks` put in: rank r has 1 where index + r is a multiple of PERIOD, else 0.

    The sums are about ranks / PERIOD, so that every dtype holds them exactly for more than a thousand ranks.
    """
    period = [sum((index + rank) % PERIOD == 0 for rank in ranks) for index in range(PERIOD)]
    repeats = -(-len(buffer) // PERIOD)
    return torch.tensor(period, dtype=buffer.dtype, device=buffer.device).repeat(repeats)[: len(buffer)]


def wrong_ranks(buffer: torch.Tensor, rank: Rank) -> int:
    """Reduce a known pattern in `buffer` [length] and return how many ranks got a wrong sum."""
    buffer.copy_(pattern(buffer, range(rank.rank, rank.rank + 1)))
    dist.all_reduce(buffer)
    right = torch.equal(buffer, pattern(buffer, range(rank.world_size)))
    wrong = torch.tensor(int(not right), device=buffer.device)
    dist.all_reduce(wrong)
    return int(wrong)


def seconds_each(buffer: torch.Tensor, repeats: int) -> float:
    """Reduce `buffer` so often; return the seconds that one all-reduce took on the slowest rank."""
    synchronize = torch.get_device_module(buffer.device).synchronize
    dist.barrier()
    synchronize()
    started = time.perf_counter()
    for _turn in range(repeats):
        dist.all_reduce(buffer)
    synchronize()
    slowest = torch.tensor(time.perf_counter() - started, device=buffer.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest) / repeats


def measure(length: int, options: argparse.Namespace, rank: Rank) -> Row:
    """Check and time the all-reduce of `length` items."""
    buffer = torch.empty(length, dtype=getattr(torch, options.dtype), device=rank.device)
    wrong = wrong_ranks(buffer, rank)
    buffer.zero_()  # Repeated sums of anything else would overflow.
    seconds_each(buffer, options.warmup)
    repeats = max(1, (options.iterations or iterations(buffer.nbytes)) // options.rounds)
    rounds = [seconds_each(buffer, repeats) for _round in range(options.rounds)]
    seconds = statistics.median(rounds)
    algbw = algorithm_bandwidth(buffer.nbytes, seconds)
    busbw = bus_bandwidth(buffer.nbytes, seconds, rank.world_size)
    return Row(buffer.nbytes, repeats * options.rounds, seconds, algbw, busbw, wrong, min(rounds), max(rounds))


def measure_all(options: argparse.Namespace, rank: Rank) -> list[Row]:
    """Measure every size; rank 0 prints the table as it grows, and reports each row."""
    todo = options.sizes or sizes(options.min_bytes, options.max_bytes, options.factor)
    rows: list[Row] = []
    for bytes_ in todo:
        row = measure(bytes_ // getattr(torch, options.dtype).itemsize, options, rank)
        rows.append(row)
        if rank.rank == 0:
            say(f"{row}")
        times = {"seconds": row.seconds, "seconds_min": row.seconds_min, "seconds_max": row.seconds_max}
        report(step=f"{len(rows)}/{len(todo)}", bytes=row.bytes, **times, wrong=row.wrong)
    return rows


def reduced(rows: list[Row], options: argparse.Namespace) -> int:
    """Return the bytes that each rank had reduced, with checks and warm-up."""
    return sum(row.bytes * (1 + options.warmup + row.iterations) for row in rows)


def traffic(before: Sent | None, rank: Rank) -> dict[str, float]:
    """Return what went over the network since `before`, in GB, of the node that sent least; nothing on one node."""
    dist.barrier()
    after = job_sends()
    if before is None or after is None:
        return {}
    least = torch.tensor(after.since(before), dtype=torch.float64, device=rank.device)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return {"nic_sent_gb": float(least[0]) / 1e9, "rdma_sent_gb": float(least[1]) / 1e9}


def line_rates(rank: Rank) -> dict[str, float]:
    """Return what NIC and RDMA devices of the slowest node carry, in Gbit/s; 0: not known. Nothing on one node."""
    here = job_rates()
    if here is None:
        return {}
    least = torch.tensor(here, dtype=torch.float64, device=rank.device)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return {"nic_gbit": float(least[0]), "rdma_gbit": float(least[1])}


def save(path: Path, rows: list[Row], options: argparse.Namespace, rank: Rank) -> None:
    """Write the table as JSON; the names of `Row` are the keys, with its units."""
    table = {
        "backend": dist.get_backend(),
        "device": rank.device.type,
        "world_size": rank.world_size,
        "dtype": options.dtype,
        "rows": [row._asdict() for row in rows],
    }
    with replacing(path) as stream:
        stream.write(json.dumps(table, indent=2).encode() + b"\n")


def parse() -> argparse.Namespace:
    """Read the command line; errors end the program with exit code 2."""
    parser = Parser(__doc__)
    parser.add_argument("--min-bytes", type=size, default="1K", help="first size (default: %(default)s)")
    parser.add_argument("--max-bytes", type=size, default="256M", help="no size above it (default: %(default)s)")
    parser.add_argument("--factor", type=positive, default=4, help="from a size to the next (default: %(default)s)")
    parser.add_argument("--sizes", type=size_list, help="these sizes in place of the three above, such as 1M,64M,4G")
    parser.add_argument("--rounds", type=positive, default=1, help="of which the median counts (default: %(default)s)")
    parser.add_argument("--warmup", type=positive, default=3, help="untimed repetitions (default: %(default)s)")
    parser.add_argument("--iterations", type=positive, help="timed repetitions (default: 200, fewer for large sizes)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, help="where rank 0 also writes the table, as JSON")
    options = parser.parse_args()
    if options.factor < 2:
        parser.error("--factor must be at least 2")
    if options.sizes and min(options.sizes) < getattr(torch, options.dtype).itemsize:
        parser.error(f"--sizes must be at least one {options.dtype} each")
    if not getattr(torch, options.dtype).itemsize <= options.min_bytes <= options.max_bytes:
        parser.error(f"--min-bytes must be at least one {options.dtype} and at most --max-bytes")
    return options


def main() -> int:
    """Join, measure, and report the best bus bandwidth; return the exit code."""
    options = parse()
    rank = join(options.backend, options.device)
    if options.json:
        from_rank_zero(lambda: prepare(options.json))
    if rank.rank == 0:
        say(HEADER)
    dist.barrier()
    before = job_sends()
    rows = measure_all(options, rank)
    if options.json and rank.rank == 0:
        save(options.json, rows, options, rank)
    best = max(row.busbw_gbps for row in rows)
    report(busbw_gbps=best, reduced_gb=reduced(rows, options) / 1e9, **traffic(before, rank), **line_rates(rank))
    if any(row.wrong for row in rows):
        complain("some sums are wrong: see the last column")
        return 1
    return 0


if __name__ == "__main__":
    run(main)
