"""What torchfleet costs over the bare launcher, as ratios and differences within one run: `make bench`.

Both sides of a comparison take turns (A B A B ...), so that a drift of the machine hits both. Medians are shown with
their quartiles. Nothing here passes or fails: these machines are noisy, people read the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "collections"))

from tests.wheels import add_wheel

REPO = Path(__file__).parents[2]
HOME = Path("~/.torchfleet").expanduser()
PYTHON = HOME / "pytorch" / "bin" / "python"
MPIRUN = HOME / "openmpi" / "bin" / "mpirun"
RANKS = 2
LINES = 1_000_000
ONE_TASK = "- hosts: localhost\n  gather_facts: false\n  tasks: [{ansible.builtin.debug: {msg: nothing}}]\n"
DATA_FILES = 10_000  # of 1,000 bytes
LAID_BYTES, LAID_NODES = 1_000_000_000, 4
# ssh -F <config> -o <option> <host> <command>: nodes are homes of this machine.
SSH = '#!/bin/sh\nfor command; do :; done\nexec /bin/sh -c "$command"\n'
# The controller's own ssh, which counts what leaves it.
COUNTING_SSH = f"""#!{sys.executable} -IS
import os, subprocess, sys
remote, count = subprocess.Popen(["/bin/sh", "-c", sys.argv[-1]], stdin=subprocess.PIPE), 0
while block := os.read(0, 1 << 20):
    remote.stdin.write(block)
    remote.stdin.flush()
    count += len(block)
with open(__file__ + ".counts", "a") as file:
    print(count, file=file)
remote.stdin.close()
sys.exit(remote.wait())
"""
PRINTER = f"for n in range({LINES}): print('line', n, 'of a rank that talks a lot')\n"


def run(words: list[str], output: Path | None = None, **env: str) -> float:
    """Run a command that must succeed and return its wall time in seconds."""
    with (output or Path(os.devnull)).open("wb") as out:
        start = time.perf_counter()
        subprocess.run(words, cwd=REPO, env={**os.environ, **env}, stdout=out, stderr=subprocess.DEVNULL, check=True)
        return time.perf_counter() - start


def take_turns(sides: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return the figures of each side, measured in turns after one round that does not count."""
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, measure in sides.items():
            figure = measure()
            if number:
                figures[name].append(figure)
    return figures


def spread(values: list[float]) -> str:
    """Return "median (lower quartile..upper quartile)"."""
    low, _, high = statistics.quantiles(values, n=4)
    return f"{statistics.median(values):.3f} ({low:.3f}..{high:.3f})"


def show_difference(figures: dict[str, list[float]]) -> None:
    """Print both sides, the first over the second, and how many times that is."""
    for name, values in figures.items():
        print(f"  {name:<38} {spread(values)}")
    pairs = list(zip(*figures.values(), strict=True))
    print(f"  difference                             {spread([mine - theirs for mine, theirs in pairs])}")
    print(f"  ratio                                  {spread([mine / theirs for mine, theirs in pairs])}")


READ = """
import os, sys, time, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[1])
import arrivals_note
note = arrivals_note.Arrivals(sys.argv[2])
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
note.filed(dist.group.WORLD, 2)
for _ in range(2100):
    dist.all_reduce(torch.ones(8))
note.note()
print(note.cost)
"""


class Bench:
    """The measurements, in a scratch directory of their own."""

    def __init__(self, scratch: Path, rounds: int) -> None:
        self.scratch, self.rounds = scratch, rounds
        self.hostfile = self.write("hostfile", f"localhost slots={RANKS}\n")
        self.nothing = self.write("program/nothing.py", "")  # its folder is shipped
        self.printer = self.write("printer.py", PRINTER)
        self.one_task = self.write("one_task.yml", ONE_TASK)

    def write(self, name: str, text: str) -> Path:
        path = self.scratch / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def ours(self, workload: str, *arguments: str, playbook: str = "train.yml", **given: object) -> float:
        """Run train.yml with a workload as a user does."""
        extra = {"workload": workload, "workload_args": list(arguments), "runs_dir": str(self.scratch / "runs")}
        return run(["ansible-playbook", playbook, "-e", json.dumps({**extra, **given})])

    def bare(self, *program: str, output: Path | None = None) -> float:
        """Run a program under the bare launcher line, with the same threads and loopback for gloo."""
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        line = [str(MPIRUN), *root, "--np", str(RANKS), "--hostfile", str(self.hostfile), "--bind-to", "none"]
        threads = str(max(1, len(os.sched_getaffinity(0)) // RANKS))
        env = {
            "OMP_NUM_THREADS": threads,
            "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "23999",
        }
        return run([*line, str(PYTHON), *program], output, **env)

    def launch(self) -> None:
        """Wall time of a job that does nothing."""
        torchrun = [str(PYTHON), "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), str(self.nothing)]
        figures = take_turns(
            {
                "train.yml": lambda: self.ours(str(self.nothing)),
                "bare mpirun": lambda: self.bare(str(self.nothing)),
                "ansible-playbook with one empty task": lambda: run(["ansible-playbook", str(self.one_task)]),
                "bare torchrun": lambda: run(torchrun),
            },
            self.rounds,
        )
        print(f"a job of {RANKS} ranks that do nothing, seconds of wall time")
        for name, values in figures.items():
            print(f"  {name:<38} {spread(values)}")
        extra = [mine - theirs for mine, theirs in zip(figures["train.yml"], figures["bare mpirun"], strict=True)]
        floor = [task - theirs for task, theirs in zip(*list(figures.values())[2:0:-1], strict=True)]
        print(f"  train.yml over bare mpirun             {spread(extra)}")
        print(f"    of this, Ansible itself              {spread(floor)}")
        result = json.loads((self.scratch / "runs" / "latest" / "result.json").read_text())
        print(f"    of the rest, the job: staged to ended {result['seconds']:.3f}, bare mpirun's share included")

    def throughput(self) -> None:
        """Training throughput, samples per second, of the same job."""
        log = self.scratch / "mnist.log"
        script = str(REPO / "workloads" / "mnist.py")

        def ours() -> float:
            self.ours("mnist", "--epochs", "8")
            return float(json.loads((self.scratch / "runs/latest/result.json").read_text())["metrics"]["samples_per_s"])

        def bare() -> float:
            self.bare(script, "--epochs", "8", output=log)
            return float(re.findall(r"samples_per_s=(\S+)", log.read_text())[-1])

        figures = take_turns({"train.yml": ours, "bare mpirun": bare}, self.rounds)
        ratios = [mine / theirs for mine, theirs in zip(*figures.values(), strict=True)]
        print("training mnist, samples/s")
        for name, values in figures.items():
            print(f"  {name:<38} {statistics.median(values):,.0f}")
        print(f"  ratio train.yml / bare                 {spread(ratios)}")

    def sampling(self) -> None:
        """What the sampler takes of a core, and of the throughput of the same job."""
        shares: list[float] = []

        def train(sample: bool) -> float:
            extra = {"workload": "mnist", "workload_args": ["--epochs", "12"], "runs_dir": str(self.scratch / "runs")}
            run(["ansible-playbook", "train.yml", "-e", json.dumps({**extra, "sample": sample})])
            result = json.loads((self.scratch / "runs/latest/result.json").read_text())
            if sample:
                (node,) = result["usage"]["nodes"].values()
                shares.append(100 * node["sampler_seconds"] / result["seconds"])
            return float(result["metrics"]["samples_per_s"])

        figures = take_turns({"with": lambda: train(True), "without": lambda: train(False)}, self.rounds)
        print("training mnist, with what ranks take of their node being read, and without")
        for name, values in figures.items():
            print(f"  samples/s {name:<28} {statistics.median(values):,.0f}")
        ratios = [mine / theirs for mine, theirs in zip(*figures.values(), strict=True)]
        print(f"  ratio with / without                   {spread(ratios)}")
        print(f"  of one core, percent                   {spread(shares)}")

    def output(self) -> None:
        """Lines per second gathered from both ranks, files on the controller included."""
        log = self.scratch / "printer.log"
        figures = take_turns(
            {
                "train.yml": lambda: RANKS * LINES / self.ours(str(self.printer)),
                "bare mpirun > file": lambda: RANKS * LINES / self.bare(str(self.printer), output=log),
            },
            max(2, self.rounds // 3),
        )
        whole = sum(line.endswith(b"talks a lot\n") for line in log.open("rb"))
        print(f"{RANKS} ranks x {LINES:,} lines, lines/s until all are in files")
        for name, values in figures.items():
            print(f"  {name:<38} {statistics.median(values):,.0f}")
        ratios = [mine / theirs for mine, theirs in zip(*figures.values(), strict=True)]
        print(f"  ratio train.yml / bare                 {spread(ratios)}")
        print(f"  whole lines in the bare launcher's file: {whole:,} of {RANKS * LINES:,}")

    def data(self) -> None:
        """Wall time of a second start with an unchanged data set on two nodes, which are homes of this machine."""
        inventory, folder = self.homes(2), self.scratch / "set"
        for number in range(DATA_FILES):
            path = folder / str(number % 100) / str(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"%01000d" % number)
        time.sleep(3)  # files that were written just now are read again

        first = self.start_on(inventory, data=str(folder))
        sides = {
            "with": lambda: self.start_on(inventory, data=str(folder)),
            "without": lambda: self.start_on(inventory),
        }
        figures = take_turns(sides, self.rounds)
        print(f"a data set of {DATA_FILES:,} files on two nodes, seconds of wall time of train.yml")
        print(f"  the first start, which lays it         {first:.3f}")
        show_difference(figures)

    def laying(self) -> None:
        """Bytes that leave the controller for a new data set on four nodes, which are homes of this machine."""
        ssh = self.write("counting_ssh", COUNTING_SSH)
        ssh.chmod(0o755)
        inventory = self.homes(LAID_NODES, ansible_connection="ssh", ansible_ssh_executable=str(ssh))
        file, counts, sent = self.scratch / "large" / "file", Path(f"{ssh}.counts"), list[float]()
        file.parent.mkdir()

        def laid() -> float:
            block = os.urandom(1_000_000)  # every piece is new
            with file.open("wb") as out:
                for _ in range(LAID_BYTES // len(block)):
                    out.write(block)
            counts.unlink(missing_ok=True)
            seconds = self.start_on(inventory, data=str(file.parent), data_keep=1)
            sent.append(sum(map(int, counts.read_text().split())) / LAID_BYTES)
            return seconds

        def copied() -> float:
            copies = [self.scratch / f"copy{number}" for number in range(LAID_NODES)]
            seconds = run(["sh", "-c", 'for to; do cat "$0" >"$to"; done', str(file), *map(str, copies)])
            for copy in copies:
                copy.unlink()
            return seconds

        def again() -> float:
            return self.start_on(inventory, data=str(file.parent), data_keep=1)

        sides = {"with a new one": laid, "with it, unchanged": again, "four plain copies": copied}
        figures = take_turns(sides, max(2, self.rounds // 3))
        print(f"a data set of {LAID_BYTES:,} bytes on {LAID_NODES} nodes, which share one disk and its cores")
        print(f"  sent by the controller, in sizes of it {spread(sent)}")
        for name, values in figures.items():
            print(f"  {name + ', s':<38} {spread(values)}")
        extra = [new - old for new, old, _copies in zip(*figures.values(), strict=True)]
        ratios = [more / copies for more, copies in zip(extra, figures["four plain copies"], strict=True)]
        print(f"  laying it, s                           {spread(extra)}")
        print(f"    over four plain copies               {spread(ratios)}")

    def start_on(self, inventory: Path, **given: object) -> float:
        """Run train.yml with a program that does nothing on the homes of an inventory."""
        extra = {"workload": str(self.nothing), "launcher": "torchrun", "runs_dir": str(self.scratch / "runs")}
        words = ["ansible-playbook", "-i", str(inventory), "train.yml", "-e", json.dumps({**extra, **given})]
        path = f"{self.scratch}/bin{os.pathsep}{os.environ['PATH']}"
        return run(words, PATH=path, HOME=str(self.scratch / "home"))

    def environment(self) -> None:
        """Wall time of a second start of a program with packages of its own, whose environment is there."""
        project, wheels = self.scratch / "project", self.scratch / "wheels"
        project.mkdir()
        wheels.mkdir()
        add_wheel(wheels, "tiny", "1.0")
        script = project / "train.py"
        script.write_text("import tiny\n")
        (project / "requirements.txt").write_text("tiny\n")
        given = {"program_wheelhouse": str(wheels)}
        first = self.ours(str(script), **given)
        figures = take_turns(
            {
                "with": lambda: self.ours(str(script), **given),
                "without": lambda: self.ours(str(self.nothing)),
            },
            self.rounds,
        )
        print("a program with a requirements.txt, seconds of wall time of train.yml")
        print(f"  the first start, which makes it        {first:.3f}")
        show_difference(figures)

    def detached(self) -> None:
        """Wall time that the queue and the hand-over to the head add to a job that does nothing."""
        number = iter(range(1_000_000))

        def detached() -> float:
            job_id = f"bench-{os.getpid()}-{next(number)}"
            seconds = self.ours(str(self.nothing), job_id=job_id, detach=True)
            self.ours("", playbook="playbooks/jobs.yml", job_id=job_id, do="wait")
            return seconds

        for name, queued in (
            ("queue=true", lambda: self.ours(str(self.nothing), queue=True)),
            ("detach=true", detached),
        ):
            figures = take_turns({"with": queued, "without": lambda: self.ours(str(self.nothing))}, self.rounds)
            print(f"a job that does nothing with {name}, seconds until train.yml ends")
            show_difference(figures)

    def arrivals(self) -> None:
        """What a read of a rank's flight recorder takes, which happens once a minute at first."""
        hooks = str(REPO / "plugins" / "module_utils" / "_runtime" / "hooks")
        words = [str(PYTHON), "-c", READ, hooks, str(self.scratch)]

        def read() -> float:
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            return 1000 * float(done.stdout)

        values = take_turns({"read": read}, self.rounds)["read"]
        print("noting when a rank came to 2,000 collectives, milliseconds of its CPU")
        print(f"  a read                                 {spread(values)}")
        print(f"  of a minute, percent                   {spread([value / 600 for value in values])}")

    def homes(self, count: int, **of_head: str) -> Path:
        """Make nodes of this machine, each with a home of its own; return their inventory.

        `of_head`: variables of the first one, by which the controller reaches it.
        """
        place = self.scratch / f"nodes{count}"
        self.write("bin/ssh", SSH).chmod(0o755)
        hosts = {}
        for number in range(1, count + 1):
            home = place / f"home{number}"
            (home / "ssh").mkdir(parents=True)
            (home / "ssh" / "config").touch()
            (home / "pytorch").symlink_to(HOME / "pytorch")
            common = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "slots": 1}
            hosts[f"n{number}"] = {**common, "ansible_host": f"127.0.0.{number}", "torchfleet_home": str(home)}
        hosts["n1"] |= of_head
        groups = {"head": {"hosts": {"n1": None}}, "workers": {"hosts": hosts}}
        return self.write(f"nodes{count}.json", json.dumps({"all": {"children": groups}}))


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    usual = ["launch", "throughput", "sampling", "output", "data", "laying", "environment", "detached", "arrivals"]
    parser.add_argument("parts", nargs="*", default=usual)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if not MPIRUN.exists():
        sys.exit(f"{MPIRUN} is not there; install it with: ansible-playbook setup.yml")
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), options.rounds)
        for part in options.parts:
            getattr(bench, part)()


if __name__ == "__main__":
    main()
