"""Builds stress.cpp, ring_stress.cpp and tcp_stress.cpp for sanitizers and runs them: `make sanitize-backends`.

An argument: operations of each run. The ranks are threads of one process, with one mapping of their memory, a network
of their own, or TCP, for a sanitizer sees no other process. All code is instrumented: of PyTorch and MPI there is only
what torch_parts and mpi_parts have. No report is suppressed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
SOURCES = TESTS.parents[1] / "csrc"
FLAGS = ["-O1", "-g", "-std=c++20", "-fno-omit-frame-pointer", "-DTORCHFLEET_SHM", "-pthread"]
REPORTED = 66  # exit status


class Program(NamedTuple):
    """A program, and what makes it wrong: then the sanitizer has to report something, else it sees nothing at all.

    Ranks that share no memory have nothing that could be wrong in this way.
    """

    name: str
    source: str
    ranks: tuple[int, ...]
    operations: int
    fault: str = ""
    fault_flag: str = ""


class Build(NamedTuple):
    """A build of a program."""

    program: Program
    name: str
    flags: list[str]
    options: dict[str, str]  # environment
    reports: bool = False  # whether it has to report something


SHARED = Program("shared memory", "stress.cpp", (2, 3), 10_000, "an ordering that is too weak", "-DTORCHFLEET_RELAXED")
RING = Program("the ring", "ring_stress.cpp", (2, 3, 4), 2_000, "sends that end too early", "-DTORCHFLEET_HASTY")
TCP = Program("TCP", "tcp_stress.cpp", (2, 3, 4), 2_000)
THREAD = {"TSAN_OPTIONS": f"exitcode={REPORTED}:halt_on_error=1"}
ADDRESS = {"ASAN_OPTIONS": f"exitcode={REPORTED}", "UBSAN_OPTIONS": f"exitcode={REPORTED}"}


def builds(program: Program) -> list[Build]:
    """Return all builds of a program."""
    address = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    right = [
        Build(program, "thread", ["-fsanitize=thread"], THREAD),
        Build(program, "address-undefined", address, ADDRESS),
    ]
    if not program.fault:
        return right
    flags = ["-fsanitize=thread", program.fault_flag]
    return [*right, Build(program, f"thread, with {program.fault}", flags, THREAD, reports=True)]


BUILDS = [build for program in (SHARED, RING, TCP) for build in builds(program)]


def built(build: Build, into: Path) -> Path:
    """Compile a program. Return its path."""
    program = into / f"{build.program.source} {build.name}".replace(" ", "-")
    includes = [f"-I{path}" for path in (SOURCES, TESTS / "torch_parts", TESTS / "mpi_parts")]
    words = [os.environ.get("CXX", "g++"), *FLAGS, *build.flags, *includes, str(TESTS / build.program.source)]
    subprocess.run([*words, "-o", str(program)], check=True)
    return program


def wrong(build: Build, program: Path, ranks: int, operations: int, limit_s: float | None = None) -> str:
    """Run it with so many ranks. Return what is wrong, an empty text if all is well. subprocess.TimeoutExpired."""
    title = f"{build.program.name}, {build.name}, {ranks} ranks"
    done = subprocess.run(
        [program, str(ranks), str(operations), str(ranks)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **build.options},
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
    )
    print(f"{title}: {operations} operations, status {done.returncode}", flush=True)
    if build.reports:
        return "" if done.returncode == REPORTED else f"{title}: nothing was reported"
    is_right = (done.returncode, done.stdout) == (0, "right\n")
    return "" if is_right else f"{title}: {done.stdout}{done.stderr}"


def main() -> int:
    given = int(sys.argv[1]) if sys.argv[1:] else 0
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = list(pool.map(lambda build: built(build, Path(place)), BUILDS))
        found = [
            wrong(build, program, ranks, given or build.program.operations)
            for build, program in zip(BUILDS, programs, strict=True)
            for ranks in build.program.ranks
        ]
    for text in filter(None, found):
        print(text, file=sys.stderr)
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main())
