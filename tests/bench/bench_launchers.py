"""How long every launcher takes to start and end a job that does nothing on two nodes: ours against the bare program.

`make bench-launchers` (needs root, for the lab). Both sides take turns in one run. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "collections"))

from tests.lab import slurm
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab

HOME = "/home/fleet/.torchfleet"
SSH = f"ssh -F {HOME}/ssh/config"
AGENT = f"{HOME}/pytorch/bin/python -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --no-python"
MEETING = "--master-addr {address} --master-port 29876"
# What a person types on the head, by the files that setup.yml has laid there.
BARE = {
    "openmpi": f'{HOME}/openmpi/bin/mpirun --hostfile {HOME}/hostfiles/openmpi --np 4 --mca plm_rsh_agent "{SSH}" true',
    "mpich": f'HYDRA_LAUNCHER_EXTRA_ARGS="-F {HOME}/ssh/config" '
    f"{HOME}/mpich/bin/mpiexec.hydra -f {HOME}/hostfiles/hydra -n 4 true",
    "intelmpi": f"{HOME}/intelmpi/bin/mpiexec.hydra -f {HOME}/hostfiles/hydra -n 4 "
    f'-bootstrap-exec-args "-F {HOME}/ssh/config" true',
    "torchrun": f"{SSH} n2 {AGENT} --node-rank 1 {MEETING} true & {AGENT} --node-rank 0 {MEETING} true && wait $!",
    "srun": "srun --nodes=2 --ntasks=4 true",
    "sbatch": "sbatch --wait --nodes=2 --ntasks=4 --output=/dev/null --wrap 'srun true'",
}


def bare(cluster: Cluster, launcher: str) -> float:
    """Return the seconds that the bare program takes on the head; it must succeed."""
    line = BARE[launcher].replace("{address}", cluster.lab.address("n1", nic=1))
    script = f"set -a; . {HOME}/fabric.env; set +a\nstart=$(date +%s.%N)\n{line} >/dev/null 2>&1 || exit 1\n"
    told = cluster.lab.ssh("n1", f"bash -c {quoted(script + 'echo $(date +%s.%N) - $start | bc -l')}")
    return float(told.stdout)


def quoted(text: str) -> str:
    """Return a text as one word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def ours(cluster: Cluster, launcher: str) -> float:
    """Return the seconds that train.yml takes on the controller."""
    start = time.perf_counter()
    cluster.train(workload=str(cluster.root / "nothing" / "true.sh"), np=4, launcher=launcher)
    return time.perf_counter() - start


def spread(values: list[float]) -> str:
    """Return "median (least..most)"."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def measure(cluster: Cluster, rounds: int) -> None:
    """Print what each launcher takes."""
    script = cluster.root / "nothing" / "true.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o755)
    for launcher in BARE:
        pairs = [(ours(cluster, launcher), bare(cluster, launcher)) for _round in range(rounds)]
        mine, theirs = [list(side) for side in zip(*pairs, strict=True)]
        ratios = spread([left / right for left, right in pairs])
        print(f"{launcher:<9} train.yml {spread(mine)} s   bare {spread(theirs)} s   ratio {ratios}", flush=True)


def main() -> None:
    """Bring two nodes up, set them up with everything, measure, take them away."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        lab = Lab("benchl", Path(scratch) / "inventory", nodes=2, nics=2, packages=["slurm-wlm", "bc"])
        cluster = Cluster(lab, Path(scratch))
        try:
            lab.up()
            done = cluster.play("setup.yml", "--skip-tags", "verify", mpis=["openmpi", "mpich", "intelmpi"])
            if done.process.returncode:
                sys.exit(json.dumps(done.output))
            slurm.bring_up(lab, ["n1", "n2"])
            measure(cluster, given.rounds)
        finally:
            lab.down()


if __name__ == "__main__":
    main()
