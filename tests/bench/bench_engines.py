"""What an engine adds to the launch of a job of two nodes whose ranks do nothing: with an image against without one.

`make bench-engines` (needs root, for the lab). The sides take turns in one run. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "collections"))

from tests.containers.nodes import InImages, container_nodes

ENGINES = ("podman", "docker", "charliecloud")
LAUNCHERS = ("openmpi", "torchrun")


def seconds(images: InImages, script: Path, launcher: str, engine: str) -> float:
    """Return how long a job took on its nodes; it must succeed. An empty `engine`: without an image."""
    given: dict[str, Any] = {"launcher": launcher, **({} if engine else {"container_image": "none"})}
    job = images.play(engine or "podman", script, **given)
    if job.process.returncode:
        sys.exit(json.dumps(job.output))
    return float(job.result["seconds"])


def measure(images: InImages, script: Path, rounds: int) -> None:
    """Print what each engine adds under each launcher."""
    for launcher in LAUNCHERS:
        found: dict[str, list[float]] = {engine: [] for engine in ("", *ENGINES)}
        for number in range(rounds + 1):  # the first round does not count
            for engine in found:
                value = seconds(images, script, launcher, engine)
                found[engine] += [value] if number else []
        bare = statistics.median(found[""])
        for engine in ENGINES:
            taken = statistics.median(found[engine])
            print(f"{launcher:<9} {engine:<13} {taken:.2f} s  bare {bare:.2f} s  ratio {taken / bare:.2f}", flush=True)


def main() -> None:
    """Bring two nodes up, set them up with everything, measure, take them away."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        images = container_nodes("benche", Path(scratch))
        script = Path(scratch) / "nothing" / "nothing.py"
        script.parent.mkdir()
        script.write_text("pass\n")
        try:
            images.set_up()
            measure(images, script, given.rounds)
        finally:
            images.cluster.lab.down()


if __name__ == "__main__":
    main()
