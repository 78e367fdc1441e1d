"""What setting up costs as the cluster grows, as ratios within one run: `make bench-nodes` (needs root, for the lab).

For each number of lab nodes: the second run of setup.yml and of verify.yml against `ansible -m ping` of the same nodes,
in turns; PyTorch sent from one node to all others against one copy of it by tar and ssh; and a data set laid on all
nodes: the bytes that came to the head and to each other node against those of the set. Nothing here passes or fails:
these machines are noisy, people read the figures.
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
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "collections"))

from tests.driver import REPO
from tests.lab.lab import BIN, ENVIRONMENT, Lab

DATA_BYTES = 256 << 20


def timed(*argv: str) -> float:
    """Run one of Ansible's programs, which must succeed, and return its wall time in seconds."""
    start = time.perf_counter()
    done = subprocess.run(
        [BIN / argv[0], *argv[1:]], cwd=REPO, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return time.perf_counter() - start


def spread(values: list[float]) -> str:
    """Return "median (least..most)"."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def send(lab: Lab, play: Callable[[], float], usual: float) -> None:
    """Take PyTorch from all nodes but the first, and print what sending it there costs, in copies of it."""
    copy = "tar -C .torchfleet -c pytorch | ssh -F .torchfleet/ssh/config n2 'mkdir copy && tar -C copy -x'"
    start = time.perf_counter()
    lab.ssh("n1", copy)
    once = time.perf_counter() - start
    others = [name for name in lab.hosts() if name != "n1"]
    for name in others:
        lab.ssh(name, "rm -rf copy .torchfleet/pytorch .torchfleet/pytorch.* .torchfleet/versions/pytorch")
    took = play() - usual
    print(f"  PyTorch to {len(others)} others  {took:.1f} s = {took / once:.2f} copies of {once:.1f} s", flush=True)


def received(lab: Lab, name: str) -> int:
    """Return the bytes that came to a node by its NICs."""
    counters = "cat /sys/class/net/[!l]*/statistics/rx_bytes"
    return sum(map(int, lab.root(name, "sh", "-c", counters).split()))


def lay(lab: Lab, words: tuple[str, ...], scratch: Path) -> None:
    """Lay a data set on all nodes, and print what came to each, in sizes of the set: the head's came from here."""
    place, program = scratch / "set.bin", scratch / "nothing" / "nothing.py"
    program.parent.mkdir(exist_ok=True)
    program.touch()
    place.write_bytes(os.urandom(DATA_BYTES))
    start = ("ansible-playbook", *words, "train.yml", "-e", f"workload={program} runs_dir={scratch}/runs")
    usual = timed(*start)
    before = {name: received(lab, name) for name in lab.hosts()}
    took = timed(*start, "-e", f"data={place}") - usual
    came = [(received(lab, name) - count) / DATA_BYTES for name, count in before.items()]
    print(
        f"  {DATA_BYTES >> 20} MiB of data  {took:.1f} s; came to the head {came[0]:.2f} of it, to the others ", end=""
    )
    print(f"{spread(came[1:])}; again {timed(*start, '-e', f'data={place}') - usual:.1f} s", flush=True)


def measure(nodes: int, rounds: int, skipped: str, scratch: Path) -> None:
    """Bring up so many nodes, set them up, and print what the second time costs."""
    lab = Lab(f"bench{nodes}", scratch / f"inventory{nodes}", nodes=nodes, nics=1, slots=1)
    extra = json.dumps({f"{role}_report": str(scratch / f"{role}.json") for role in ("preflight", "verify")})
    words = ("-i", str(lab.inventory), "-e", extra, "-e", f"verify_runs={scratch}/runs")
    sides: dict[str, Callable[[], float]] = {
        "ping": lambda: timed("ansible", "-i", str(lab.inventory), "all", "-m", "ping"),
        "setup again": lambda: timed("ansible-playbook", *words, "setup.yml", "--skip-tags", f"verify,{skipped}"),
        "verify": lambda: timed("ansible-playbook", *words, "verify.yml"),
    }
    try:
        start = time.perf_counter()
        lab.up()
        print(f"{nodes} nodes: up in {time.perf_counter() - start:.1f} s", flush=True)
        first = timed("ansible-playbook", *words, "setup.yml", "--skip-tags", f"verify,{skipped}")
        print(f"  setup, first time    {first:.1f} s", flush=True)
        if skipped:
            sides.pop("verify")
        figures: dict[str, list[float]] = {name: [] for name in sides}
        for _round in range(rounds):
            for name, side in sides.items():
                figures[name].append(side())
        for name, values in figures.items():
            ratios = [value / ping for value, ping in zip(values, figures["ping"], strict=True)]
            print(f"  {name:<20} {spread(values)} s   {spread(ratios)} pings", flush=True)
        if not skipped:
            send(lab, sides["setup again"], statistics.median(figures["setup again"]))
            lay(lab, words, scratch)
    finally:
        lab.down()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--with-pytorch-up-to", type=int, default=8, help="nodes; a copy takes 1 GB of this machine's disk"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for nodes in given.nodes:
            measure(nodes, given.rounds, "" if nodes <= given.with_pytorch_up_to else "pytorch", Path(scratch))


if __name__ == "__main__":
    main()
