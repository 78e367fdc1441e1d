"""Builds stress.cpp for sanitizers and runs it: `make sanitize-backends`. An argument: operations of each run.

The ranks are threads of one process with one mapping of their memory, for a sanitizer sees no other process. All code
is instrumented: of PyTorch there is only what torch_parts has. No report is suppressed.
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
OPERATIONS = 10_000
# An ordering that is too weak: with it, the sanitizer has to report something, else it sees nothing at all.
TOO_WEAK = "-DTORCHFLEET_RELAXED"
REPORTED = 66  # exit status


class Build(NamedTuple):
    """A build of the program."""

    name: str
    flags: list[str]
    options: dict[str, str]  # environment
    reports: bool = False  # whether it has to report something


BUILDS = [
    Build("thread", ["-fsanitize=thread"], {"TSAN_OPTIONS": f"exitcode={REPORTED}:halt_on_error=1"}),
    Build(
        "address-undefined",
        ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
        {"ASAN_OPTIONS": f"exitcode={REPORTED}", "UBSAN_OPTIONS": f"exitcode={REPORTED}"},
    ),
    Build(
        "thread, with an ordering that is too weak",
        ["-fsanitize=thread", TOO_WEAK],
        {"TSAN_OPTIONS": f"exitcode={REPORTED}:halt_on_error=1"},
        reports=True,
    ),
]


def built(build: Build, into: Path) -> Path:
    """Compile the program. Return its path."""
    program = into / str(BUILDS.index(build))
    includes = [f"-I{path}" for path in (SOURCES, TESTS / "torch_parts")]
    words = [os.environ.get("CXX", "g++"), *FLAGS, *build.flags, *includes, str(TESTS / "stress.cpp")]
    subprocess.run([*words, "-o", str(program)], check=True)
    return program


def wrong(build: Build, program: Path, ranks: int, operations: int) -> str:
    """Run it with so many ranks. Return what is wrong, an empty text if all is well."""
    done = subprocess.run(
        [program, str(ranks), str(operations), str(ranks)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **build.options},
        capture_output=True,
        text=True,
        check=False,
    )
    print(f"{build.name}: {ranks} ranks, {operations} operations: status {done.returncode}", flush=True)
    if build.reports:
        return "" if done.returncode == REPORTED else f"{build.name}: nothing was reported"
    is_right = (done.returncode, done.stdout) == (0, "right\n")
    return "" if is_right else f"{build.name}, {ranks} ranks: {done.stdout}{done.stderr}"


def main() -> int:
    operations = int(sys.argv[1]) if sys.argv[1:] else OPERATIONS
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = list(pool.map(lambda build: built(build, Path(place)), BUILDS))
        found = [
            wrong(build, program, ranks, operations)
            for build, program in zip(BUILDS, programs, strict=True)
            for ranks in (2, 3)
        ]
    for text in filter(None, found):
        print(text, file=sys.stderr)
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main())
