"""all_reduce by backend mpi against gloo, the MPI's own, and what the memory allows: `make bench-backends`.

All sides take turns in one process per rank; the memory's limit is a C++ program that runs before them. Figures are
medians of the rounds' ratios, with their lower quartiles. Nothing here passes or fails: people read them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from torch_backends.tests import package

BENCH = package.PACKAGE / "bench"
KIB = 1 << 10
HEADER = "{:>10} {:>10} {:>15} {:>15} {:>13}"
SIZES = [KIB, 8 * KIB, 64 * KIB, KIB**2, 4 * KIB**2, 16 * KIB**2, 64 * KIB**2, 256 * KIB**2]


def limits(ranks: int, rounds: int, sizes: list[int]) -> dict[int, float]:
    """Return the seconds of one all_reduce by the limit program, by bytes."""
    program = package.REPO / ".cache" / "limit"
    package.called("g++", "-O3", "-std=c++20", BENCH / "limit.cpp", "-o", program)
    words = [str(word) for word in [program, ranks, rounds, *sizes]]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    rows = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
    return {int(row[0]): statistics.median(row[1:]) for row in rows}


def ratio(theirs: list[float], ours: list[float]) -> str:
    """Return how many times faster ours is: the median of the rounds, and their lower quartile."""
    ratios = sorted(one / two for one, two in zip(theirs, ours, strict=True))
    return f"{statistics.median(ratios):6.1f} ({ratios[len(ratios) // 4]:5.1f})"


def measure(mpi: str, ranks: int, rounds: int, sizes: list[int]) -> None:
    """Print a table of one MPI."""
    limit = limits(ranks, rounds, sizes)
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29811"}
    done = package.start(mpi, ranks, BENCH / "ranks.py", *sizes, rounds, **rendezvous)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    print(f"{mpi}, {ranks} ranks")
    print(HEADER.format("bytes", "mpi, us", "x gloo", "x MPI_Allreduce", "of the limit"))
    for line in done.stdout.splitlines():
        row = json.loads(line)
        own = statistics.median(row["mpi"])
        versus = [ratio(row[side], row["mpi"]) for side in ("gloo", "plain")]
        share = f"{limit[row['bytes']] / own:.0%}"
        print(HEADER.format(row["bytes"], f"{own * 1e6:.1f}", *versus, share), flush=True)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", nargs="+", default=["openmpi", "mpich", "intelmpi"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--bytes", type=int, nargs="+", default=SIZES)
    given = parser.parse_args()
    package.install()
    for ranks in given.ranks:
        for mpi in given.mpi:
            measure(mpi, ranks, given.rounds, given.bytes)


if __name__ == "__main__":
    main()
