"""How long a look at a job of many ranks that does not go on takes: `make bench-look` (needs root, for the lab).

Lab nodes run one job of programs that sleep. With --pytorch it is a job of PyTorch over gloo, in which one rank sleeps
and all others wait for it in all_reduce (tests/hangs/made.py); to import PyTorch 64 times takes minutes.
playbooks/look.yml and `ansible -m ping` of the head take turns. Nothing here passes or fails: it is told how many looks
said the whole truth, for on a busy machine a rank may not answer in time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "collections"))

from tests.bench.bench_nodes import spread, timed
from tests.driver import REPO, wait_until
from tests.hangs.cases import PROGRAM, places
from tests.lab.cluster import Cluster, Job
from tests.lab.lab import Lab

CASE = "own_code"
SLEEPS = "import time\n\nprint('up', flush=True)\ntime.sleep(3600)\n"
START_SECONDS = 3600.0  # until no rank goes on: they start on the cores of one machine
JOBS = "/home/fleet/.torchfleet/jobs"


class Hang(NamedTuple):
    """A job that does not go on: what train.yml is given, the word of each rank that is there, what is to be said."""

    given: dict[str, Any]
    word: str
    truth: str


def sleepers(root: Path, nodes: int, size: int) -> Hang:
    """Return programs that sleep: no rank waits for another."""
    program = root / "program" / "sleeps.py"
    program.parent.mkdir(exist_ok=True)
    program.write_text(SLEEPS)
    names = ", ".join(f"n{number + 1}" for number in range(nodes))
    truth = f"ranks 0-{size - 1} on {names} are sleeping or waiting at sleeps.py:4"
    return Hang({"workload": str(program)}, "up", truth)


def collective(ranks: int, size: int) -> Hang:
    """Return programs of PyTorch: all wait for one in a collective."""
    culprit = size // 2 + 1
    truth = f"rank {culprit} on n{culprit // ranks + 1} is sleeping or waiting at {places()[CASE]} in {CASE}"
    given = {"workload": str(PROGRAM), "workload_args": ["gloo", "/tmp", CASE]}
    return Hang({**given, "job_env": {"CULPRIT": str(culprit), "OMP_NUM_THREADS": "1"}}, CASE, truth)


def start(cluster: Cluster, hang: Hang, ranks: int, size: int) -> Job:
    """Start the job; return it when all ranks have said their word."""
    began = time.perf_counter()
    job = cluster.start(np=size, launcher="openmpi", backend="gloo", hang_look=0, **hang.given)
    left = set(range(size))

    def all_there() -> bool:
        if job.process.poll() is not None:
            sys.exit(job.output)
        for rank in sorted(left):
            said = cluster.lab.read(f"n{rank // ranks + 1}", f"{JOBS}/{job.job_id}/ranks/{rank}/stdout")
            left.difference_update([rank] if hang.word in said.split() else [])
        return not left

    wait_until(all_there, START_SECONDS, lambda: f"ranks {sorted(left)} have not come")
    print(f"{size} ranks are there after {time.perf_counter() - began:.0f} s", flush=True)
    return job


def look(cluster: Cluster, job_id: str, truth: str) -> tuple[float, bool]:
    """Look at it; return the seconds, and whether it said the truth. If not, that is printed."""
    began = time.perf_counter()
    words = ["playbooks/look.yml", "-e", f"job_id={job_id} runs_dir={cluster.runs}"]
    done = subprocess.run(
        ["ansible-playbook", "-i", str(cluster.inventory), *words],
        cwd=REPO, env=cluster.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    took = time.perf_counter() - began
    said = " ".join((done.stdout + done.stderr).split())
    if truth not in said:
        print(f"a look should have said {truth!r}: {said}")
    return took, truth in said


def measure(cluster: Cluster, given: argparse.Namespace) -> None:
    """Print what looks take, and what Ansible takes to start and to reach the head."""
    size = given.nodes * given.ranks
    hang = collective(given.ranks, size) if given.pytorch else sleepers(cluster.root, given.nodes, size)
    job = start(cluster, hang, given.ranks, size)
    told(cluster, job.job_id, hang.truth, given.rounds)


def told(cluster: Cluster, job_id: str, truth: str, rounds: int) -> None:
    """Look so many times, and print what it takes."""
    looks, pings, right = [], [], 0
    for _round in range(rounds):
        seconds, true = look(cluster, job_id, truth)
        looks.append(seconds)
        right += true
        pings.append(timed("ansible", "-i", str(cluster.inventory), "head", "-m", "ping"))
    print(f"{right} of {rounds} looks said: {truth}")
    print(f"  playbooks/look.yml       {spread(looks)} s")
    print(f"  ansible head -m ping     {spread(pings)} s")
    print(f"  one without the other    {spread([a - b for a, b in zip(looks, pings, strict=True)])} s", flush=True)


def main() -> None:
    """Bring nodes up, start a job that does not go on, look at it, take all away."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=16, help="on each node")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pytorch", action="store_true", help="each rank takes some 150 MB of memory then")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        options = {"nodes": given.nodes, "nics": 1, "slots": given.ranks}
        cluster = Cluster(Lab("benchlook", Path(scratch) / "inventory", **options), Path(scratch))
        try:
            cluster.lab.up()
            done = cluster.play("setup.yml", "--skip-tags", "verify")
            if done.process.returncode:
                sys.exit(done.output)
            measure(cluster, given)
            cluster.clean()
        finally:
            cluster.lab.down()


if __name__ == "__main__":
    main()
