"""all_reduce by backends mpi and shm against gloo, the MPI's own, and what the machine allows: `make bench-backends`.

All sides take turns in one process per rank; the limit of the memory, and of TCP between nodes, is a C++ program that
runs before them. Figures are medians of the rounds' ratios, with their lower quartiles. Then what DDP's communication
adds to a step. With --nodes the ranks are on two lab nodes (root), with --shm only shm is measured, with --pinned each
rank stays on a core. "no core": the share of the time in which a rank waited for one. Nothing here passes or fails:
people read them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "collections"))

from tests.lab.cluster import Cluster
from tests.lab.lab import Lab
from torch_backends.tests import package

BENCH = package.PACKAGE / "bench"
KIB = 1 << 10
HEADER = "{:>10} {:>10} {:>15} {:>15} {:>13} {:>15} {:>10}"
SHM_HEADER = "{:>10} {:>10} {:>15} {:>13} {:>15} {:>10}"
DDP_HEADER = "{:>10} {:>12} {:>12} {:>12} {:>12}"
SIZES = [KIB, 8 * KIB, 64 * KIB, KIB**2, 4 * KIB**2, 16 * KIB**2, 64 * KIB**2, 256 * KIB**2]


def compiled(name: str) -> str:
    """Return the path of a program that measures what the machine allows."""
    program = package.REPO / ".cache" / name
    package.called("g++", "-O3", "-march=native", "-std=c++20", BENCH / f"{name}.cpp", "-o", program)
    return str(program)


def limits(ranks: int, rounds: int, sizes: list[int]) -> dict[int, float]:
    """Return the seconds of one all_reduce by the limit program, by bytes."""
    words = [compiled("limit"), *(str(word) for word in [ranks, rounds, *sizes])]
    return seconds_by_bytes(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def limits_of_nodes(lab: Lab, ranks: int, rounds: int, sizes: list[int]) -> dict[int, float]:
    """Return the seconds of one all_reduce between two nodes by the limit program, by bytes."""
    words = [compiled("limit_nodes"), str(ranks // 2), str(rounds), "29821"]

    def printed_on(node: str, other: str) -> str:
        return lab.network(node, *words, other, *map(str, sizes)).stdout

    with ThreadPoolExecutor() as both:
        waiting = both.submit(printed_on, "n1", "-")
        both.submit(printed_on, "n2", lab.address("n1")).result()
        return seconds_by_bytes(waiting.result())


def seconds_by_bytes(text: str) -> dict[int, float]:
    """Return the medians that a limit program printed."""
    rows = [[float(word) for word in line.split()] for line in text.splitlines()]
    return {int(row[0]): statistics.median(row[1:]) for row in rows}


def ratio(theirs: list[float], ours: list[float]) -> str:
    """Return how many times faster ours is: the median of the rounds, and their lower quartile."""
    ratios = sorted(one / two for one, two in zip(theirs, ours, strict=True))
    return f"{statistics.median(ratios):6.1f} ({ratios[len(ratios) // 4]:5.1f})"


def show(title: str, lines: list[str], limit: dict[int, float]) -> None:
    """Print a table of all_reduce, from what rank 0 printed."""
    print(title)
    print(HEADER.format("bytes", "mpi, us", "x gloo", "x MPI_Allreduce", "of the limit", "DDP's, x gloo", "no core"))
    for row in map(json.loads, lines):
        own = statistics.median(row["mpi"])
        versus = [ratio(row[side], row["mpi"]) for side in ("gloo", "plain")]
        bucket = ratio(row["gloo"], row["bucket"])  # a tensor that the backend gave
        rest = [share_of(limit, row["bytes"], own), bucket, f"{row['waiting']:.1%}"]
        print(HEADER.format(row["bytes"], f"{own * 1e6:.1f}", *versus, *rest), flush=True)


def show_shm(title: str, lines: list[str], limit: dict[int, float]) -> None:
    """Print backend shm under torchrun, against gloo alone, from what rank 0 printed."""
    print(title)
    print(SHM_HEADER.format("bytes", "shm, us", "x gloo", "of the limit", "DDP's, x gloo", "no core"))
    for row in map(json.loads, lines):
        own = statistics.median(row["shm"])
        own_ratio, bucket = (ratio(row["gloo"], row[side]) for side in ("shm", "bucket"))
        rest = [share_of(limit, row["bytes"], own), bucket, f"{row['waiting']:.1%}"]
        print(SHM_HEADER.format(row["bytes"], f"{own * 1e6:.1f}", own_ratio, *rest), flush=True)


def share_of(limit: dict[int, float], size: int, seconds: float) -> str:
    """Return how near to the limit an operation is; it is known of float32 alone."""
    return f"{limit[size] / seconds:.0%}" if limit else ""


def show_ddp(title: str, lines: list[str]) -> None:
    """Print what DDP adds to a step, from what rank 0 printed."""
    print(f"{title}: DDP")
    print(DDP_HEADER.format("gradients", "step alone", "+ gloo", "+ ours", "gloo / ours"))
    for row in map(json.loads, lines):
        alone, gloo, ours = (statistics.median(row[name]) * 1000 for name in ("alone", "gloo", "ours"))
        times = [f"{value:.1f} ms" for value in (alone, gloo, ours)]
        print(DDP_HEADER.format(f"{row['megabytes']:g} MB", *times, f"{gloo / ours:.1f}"), flush=True)


def here(given: argparse.Namespace) -> None:
    """Measure on this machine."""
    limit_of = {ranks: limits(ranks, given.rounds, given.bytes) for ranks in given.ranks}
    cores = "pinned" if given.pinned else "free"
    print(f"the package, built for {' and '.join(package.BUILT_FOR)}: {build():.0f} s")
    for ranks in given.ranks:
        for launcher in ["torchrun"] if given.shm else ["torchrun", *given.mpi]:
            title = f"{'shm, ' if launcher == 'torchrun' else ''}{launcher}, {ranks} ranks"
            for kind in given.types:
                argv = [BENCH / "ranks.py", kind, cores, *given.bytes, given.rounds]
                lines = printed(launcher, ranks, *argv)
                limit = limit_of[ranks] if (kind, cores) == ("float32", "free") else {}
                (show_shm if launcher == "torchrun" else show)(f"{title}, {kind}, {cores}", lines, limit)
            if given.megabytes:
                show_ddp(title, printed(launcher, ranks, BENCH / "ddp.py", *given.megabytes, given.rounds))


def printed(mpi: str, ranks: int, *argv: object) -> list[str]:
    """Return the lines that the ranks of a program print."""
    done = package.start(mpi, ranks, *argv, MASTER_ADDR="127.0.0.1", MASTER_PORT="29811")
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout.splitlines()


def on_nodes(given: argparse.Namespace) -> None:
    """Measure on two lab nodes, with as many ranks on each."""
    (wheel,) = Path(package.HOME, "backends", "wheels").glob("*.whl")
    with tempfile.TemporaryDirectory() as scratch:
        cluster = Cluster(Lab("benchb", Path(scratch) / "inventory", nodes=2, nics=2), Path(scratch))
        try:
            cluster.lab.up()
            options = {"mpis": package.MPIS, "torch_backends_wheel": str(wheel)}
            play(cluster, "--skip-tags", "verify", **options)
            again = {"backends": ["mpi", "shm"], **options}
            first, second = (play(cluster, "--tags", "torch_backends", **again) for _time in range(2))
            print(f"the package, built before: {(first - second) / 2:.1f} s for each node, {first:.1f} s with Ansible")
            for ranks in given.ranks:
                limit = limits_of_nodes(cluster.lab, ranks, given.rounds, given.bytes)
                words = ["float32", "free", *given.bytes, given.rounds]
                lines = trained(cluster, "torchrun", "shm", ranks, "ranks.py", *words)
                title = f"shm, torchrun, {ranks} ranks on two nodes"
                show_shm(title, lines, limit)
                show_ddp(title, trained(cluster, "torchrun", "shm", ranks, "ddp.py", *given.megabytes, given.rounds))
                for mpi in given.mpi if not given.shm else []:
                    title = f"{mpi}, {ranks} ranks on two nodes"
                    show(title, trained(cluster, mpi, "mpi", ranks, "ranks.py", *words), limit)
                    show_ddp(title, trained(cluster, mpi, "mpi", ranks, "ddp.py", *given.megabytes, given.rounds))
        finally:
            cluster.lab.down()


def play(cluster: Cluster, *words: str, **options: object) -> float:
    """Return the seconds that a run of setup.yml takes."""
    start = time.monotonic()
    done = cluster.play("setup.yml", *words, **options)
    if done.process.returncode:
        sys.exit(done.output)
    return time.monotonic() - start


def build() -> float:
    """Return the seconds that it takes to build the package for two MPIs, at the same time."""
    prefixes = ":".join(str(package.HOME / mpi) for mpi in package.BUILT_FOR)
    words = ["-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir"]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        argv = [str(package.PYTHON), *words, place, str(package.PACKAGE)]
        subprocess.run(argv, env={**os.environ, "TORCHFLEET_BACKENDS_MPI": prefixes}, check=True)
    return time.monotonic() - start


def trained(cluster: Cluster, launcher: str, backend: str, ranks: int, script: str, *argv: object) -> list[str]:
    """Return the lines that rank 0 of a job prints."""
    options = {"workload": str(BENCH / script), "workload_args": [str(word) for word in argv], "launcher": launcher}
    job = cluster.train(**options, backend=backend, np=ranks, ranks_per_node=ranks // 2)
    return [line for line in job.stdout(0).splitlines() if line.startswith("{")]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", nargs="+", default=package.MPIS)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--bytes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--types", nargs="+", default=["float32"])
    parser.add_argument("--pinned", action="store_true", help="each rank stays on a core")
    parser.add_argument("--megabytes", type=float, nargs="*", default=[1, 10, 80])
    parser.add_argument("--nodes", action="store_true", help="on two lab nodes")
    parser.add_argument("--shm", action="store_true", help="backend shm alone")
    given = parser.parse_args()
    package.install()
    (on_nodes if given.nodes else here)(given)


if __name__ == "__main__":
    main()
