"""Millions of random operations under backends shm and mpi, with 2 to 4 ranks: `make stress-backends`.

    stress.py DIRECTORY [--operations 10000000] [--seed 1] [--at-once 1] [--minutes 0]

It is divided into runs of random_worlds.py, each with a seed of its own. DIRECTORY/runs.jsonl has a line for each that
has ended: what was done, and what was wrong. A run that is there is not repeated: so it goes on where it was stopped.
Prints how much was done under each launcher, and which mishaps were injected. Exit status 1: something was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from torch_backends.tests import package

PROGRAM = "torch_backends.tests.random_worlds"
# Parts of all operations, by launcher ("": backend shm) and ranks.
PARTS = {
    ("", 2): 24,
    ("", 3): 23,
    ("", 4): 5,
    ("apart", 2): 1,
    ("apart", 3): 1,
    ("unequal", 3): 1,
    ("openmpi", 2): 12,
    ("openmpi", 3): 11,
    ("mpich", 2): 11,
    ("mpich", 3): 11,
}
MISHAPS = 0.001  # of the operations
# Operations of a run. Of mpi it is one job: an operation that failed keeps its communicators, of which MPICH has some
# 2,000.
LENGTH = 100_000
LONGEST = 3600  # seconds of a run
# In place of a launcher: backend shm, whose ranks are on one node, each on its own, or two on the first one.
SHM = {"": {}, "apart": {"TORCHFLEET_SHM_NODE_RANKS": "1"}, "unequal": {"TORCHFLEET_SHM_NODE_RANKS": "2"}}
ENVIRONMENT = {"PYTHONPATH": str(package.REPO), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}


class Run(NamedTuple):
    """Some of the operations."""

    launcher: str
    ranks: int
    seed: str
    operations: int

    @property
    def environment(self) -> dict[str, str]:
        return {**ENVIRONMENT, **SHM.get(self.launcher, {})}

    @property
    def world(self) -> str:
        backend = f"mpi, {self.launcher}" if self.launcher not in SHM else f"shm {self.launcher}".strip()
        return f"{backend}, {self.ranks} ranks"

    @property
    def name(self) -> str:
        return f"{self.world}, seed {self.seed}, {self.operations} operations"

    def command(self, place: str) -> list[str]:
        """Return how it is started."""
        words = [self.seed, str(self.operations), str(MISHAPS)]
        if self.launcher not in SHM:
            return package.command(self.launcher, self.ranks, "-m", PROGRAM, "mpi", place, *words)
        return [str(package.PYTHON), "-W", "ignore", "-m", PROGRAM, "shm", str(self.ranks), *words]


def runs(operations: int, seed: int) -> Iterator[Run]:
    """Yield all runs, those of the launchers in turn."""
    left = {world: operations * part // 100 for world, part in PARTS.items()}
    for number in range(operations):
        for (launcher, ranks), rest in left.items():
            if rest > 0:
                yield Run(launcher, ranks, f"{seed}.{number}", min(LENGTH, rest))
        left = {world: rest - LENGTH for world, rest in left.items()}
        if max(left.values()) <= 0:
            return


def ended(run: Run, place: str, done: subprocess.CompletedProcess[str]) -> tuple[Counter[str], str]:
    """Return what was done in a run, and what was wrong."""
    files = [Path(place, f"{rank}.json") for rank in range(run.ranks)]
    if run.launcher in SHM:
        if done.returncode:
            return Counter(), done.stdout + done.stderr
        return Counter(json.loads(done.stdout)), ""
    told = [json.loads(file.read_text()) if file.exists() else {"wrong": "it has ended"} for file in files]
    wrong = [f"rank {rank}: {one['wrong']}" for rank, one in enumerate(told) if "wrong" in one]
    if not done.returncode:
        wrong.append("a rank was killed, and the job did not fail")
    if wrong:
        return Counter(), "\n".join([*wrong, done.stdout, done.stderr])
    found: Counter[str] = Counter({"worlds": 1, "killed": 1})
    for one in told:
        found.update(one)
    return found, ""


class Log:
    """The runs that have ended."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, threading.Lock()
        lines = path.read_text().splitlines() if path.exists() else []
        self.lines = {line["run"]: line for line in map(json.loads, lines)}

    def add(self, run: Run, seconds: float, found: Counter[str], wrong: str) -> None:
        """Write a line."""
        line = {"run": run.name, "world": run.world, "seconds": round(seconds), "done": dict(found), "wrong": wrong}
        with self.lock, self.path.open("a") as file:
            self.lines[run.name] = line
            file.write(json.dumps(line) + "\n")

    def summary(self) -> list[str]:
        """Return a line for each launcher and number of ranks, one for all together, and the runs that were wrong."""
        totals: dict[str, Counter[str]] = {}
        for line in self.lines.values():
            for name in (line["world"], "all"):
                totals.setdefault(name, Counter()).update({**line["done"], "seconds": line["seconds"], "runs": 1})
        told = [
            f"{name}: {json.dumps(dict(totals[name]))}"
            for name in sorted(totals, key=lambda name: (name == "all", name))
        ]
        return told + [f"WRONG: {name}: {line['wrong']}" for name, line in self.lines.items() if line["wrong"]]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--operations", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=0, help="after which no run begins; 0: no limit")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    log = Log(given.directory / "runs.jsonl")
    end = time.monotonic() + 60 * given.minutes

    def play(run: Run) -> None:
        if run.name in log.lines or (given.minutes and time.monotonic() > end):
            return
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            try:
                done = subprocess.run(
                    run.command(place),
                    env={**os.environ, **run.environment},
                    capture_output=True,
                    text=True,
                    check=False,
                    cwd=package.REPO,
                    timeout=LONGEST,
                )
                found, wrong = ended(run, place, done)
            except subprocess.TimeoutExpired:
                found, wrong = Counter[str](), f"it has not ended within {LONGEST} seconds"
        log.add(run, time.monotonic() - begun, found, wrong)

    with ThreadPoolExecutor(given.at_once) as pool:
        list(pool.map(play, runs(given.operations, given.seed)))
    print("\n".join(log.summary()))
    return 1 if any(line["wrong"] for line in log.lines.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
