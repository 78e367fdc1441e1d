"""Four lab nodes for the fault matrix, with bystanders that no job may touch: on n1 and n2, the same user's.

On each a process that looks like a rank, and a detached job of another controller in another torchfleet home.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.driver import command, pids, proc, wait_until
from tests.lab.cluster import Cluster
from tests.lab.lab import Lab, namespace

PROGRAM = Path(__file__).parent / "program" / "steady.py"
NODES = ("n1", "n2", "n3", "n4")
CROWDED = ("n1", "n2")  # nodes with bystanders: those to which things are done
PLACE = "/var/tmp/faults"  # where the program finds what it is told, and notes what it did
HOME = "/var/tmp/beside"  # of the other job
AWAY = "away"  # table of rules that part the head from this machine
FOREIGN = "FAULTS_FOREIGN=1"
LOOKS_LIKE = "import time\nwhile True: time.sleep(60)"


class Bed:
    """The cluster, and what runs beside the jobs on it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.lab = cluster, cluster.lab
        self.beside = Beside(cluster.lab, cluster.root / "beside")

    def mend_nodes(self) -> None:
        """Make all nodes as good as new, but for their files."""
        self.cluster.mend()
        self.lab.heal("n1")
        self.lab.network("n1", "nft", "delete", "table", "inet", AWAY, check=False)

    def mend(self) -> None:
        """Do so, and start the bystanders that are missing."""
        self.mend_nodes()
        for node in CROWDED:
            if not self.lab.pids(node, FOREIGN):
                self.start_foreign(node)
            if not self.of_job(self.beside.job_id(node), node):
                self.beside.start_on(node)

    def wake(self) -> None:
        """Start again what a node that lost power has to run for the launcher: nothing, but under Slurm."""

    def queued(self, job_id: str) -> list[str]:
        """Return what a batch system has of a job; most launchers have none."""
        return []

    def start_foreign(self, node: str) -> None:
        """Start a process that looks like a rank: the same user, program and script."""
        python = "/srv/torchfleet/pytorch/bin/python"
        argv = ["setpriv", "--reuid=fleet", "--regid=fleet", "--clear-groups", "setsid", "-f", "env", "-i", FOREIGN]
        quiet = 'exec "$@" </dev/null >/dev/null 2>&1'
        self.lab.root(node, "sh", "-c", quiet, "sh", *argv, python, "-c", LOOKS_LIKE, "steady.py")
        wait_until(lambda: len(self.lab.pids(node, FOREIGN)) == 1)

    def bystanders(self) -> dict[str, list[int]]:
        """Return, by what they are, the processes that must live (by their pids on this machine)."""
        found = {f"foreign on {node}": self.lab.pids(node, FOREIGN) for node in CROWDED}
        jobs = {f"job on {node}": self.of_job(self.beside.job_id(node), node) for node in CROWDED}
        return {**found, **jobs}

    def of_job(self, job_id: str, *nodes: str) -> list[int]:
        """Return what carries the mark of a job on some nodes, or on all: in its environment, or on its command line.

        A daemon of the program has it only there.
        """
        spaces = self.spaces(*nodes or NODES)
        mark = f"TORCHFLEET_JOB_ID={job_id}\0".encode()
        return [pid for pid in pids() if namespace(pid) in spaces and is_marked(pid, mark, f"faults-of-{job_id}")]

    def spaces(self, *nodes: str) -> set[str]:
        """Return the pid namespaces of nodes; one that is down has none."""
        return {space for space in (self.lab.init(node)[1] for node in nodes) if space}

    def supervisors(self, *nodes: str) -> set[int]:
        """Return torchfleet's own processes on some nodes, of all jobs but the bystanders."""
        spaces = self.spaces(*nodes)
        ours = {pid for pid in pids() if command(pid)[-1:] == ["supervise"] and namespace(pid) in spaces}
        return {pid for pid in ours if f"{HOME}/" not in " ".join(command(pid))}

    def tell(self, job_id: str, word: str, *nodes: str) -> None:
        """Tell the ranks on some nodes, or on all, to act (`go`) or to leave (`done`)."""
        for node in nodes or NODES:
            (self.path(node) / job_id / word).touch()

    def path(self, node: str) -> Path:
        return Path(f"/proc/{self.lab.init(node)[0]}/root{PLACE}")

    def noted(self, job_id: str, rank: int, name: str = "said") -> str:
        """Return what a rank noted, nothing if it has not yet."""
        return self.lab.read(NODES[rank], f"{PLACE}/{job_id}/{name}-{rank}")

    def sweep(self, job_id: str) -> None:
        """End what a job left, so that the next cell tells its own story."""
        kill(self.of_job(job_id))

    def clear(self) -> None:
        """End the bystanders, also of an earlier call; who looks after a job goes first, and so does not notice."""
        spaces, mark = self.spaces(*CROWDED), f"{HOME}/".encode()
        theirs = [pid for pid in pids() if namespace(pid) in spaces and is_marked(pid, mark, HOME, "faults-of-beside-")]
        kill(sorted(theirs, key=lambda pid: command(pid)[-1:] != ["supervise"]))
        for node in CROWDED:
            kill(self.lab.pids(node, FOREIGN))
            self.lab.root(node, "rm", "-rf", HOME, PLACE)
            self.beside.path_of(node).unlink(missing_ok=True)  # else the lab is not made again in its directory


def kill(processes: Iterable[int]) -> None:
    """Kill processes of nodes, by their pids on this machine; some may be gone."""
    for pid in processes:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def is_marked(pid: int, mark: bytes, *words: str) -> bool:
    """Whether a process has a mark in its environment, or a word on its command line."""
    return mark in proc(pid, "environ") or any(word in " ".join(command(pid)) for word in words)


class Beside(Cluster):
    """Detached jobs of another controller: one node each, in a home of their own, until the node goes down."""

    def __init__(self, lab: Lab, root: Path) -> None:
        super().__init__(lab, root)
        root.mkdir(exist_ok=True)
        self.environment["HOME"] = str(root)
        self.started = {"n1": 0, "n2": 0}

    def job_id(self, node: str) -> str:
        return f"beside-{node}-{os.getpid()}-{self.started[node]}"

    def path_of(self, node: str) -> Path:
        return self.lab.directory / f"beside-{node}.json"

    def inventory_of(self, node: str) -> Path:
        """Write the inventory of one node, beside the key and the known hosts that it needs; return its path."""
        workers = yaml.safe_load(self.lab.inventory.read_text())["all"]["children"]["workers"]
        host = {**workers["vars"], **workers["hosts"][node], "slots": 1, "torchfleet_home": HOME}
        groups = {"head": {"hosts": {node: host}}, "workers": {"hosts": {node: {}}}}
        path = self.path_of(node)
        path.write_text(json.dumps({"all": {"children": groups}}))
        return path

    def start_on(self, node: str) -> None:
        """Start the job of a node, which is detached: it has no controller while it runs.

        Its rank writes lines when all its processes are there, and no other.
        """
        self.started[node] += 1
        self.inventory = self.inventory_of(node)
        prepare = 'install -d -o fleet -g fleet "$1" && ln -sfn /home/fleet/.torchfleet/openmpi "$1/openmpi"'
        self.lab.root(node, "sh", "-c", prepare, "sh", HOME)
        given: dict[str, Any] = {"workload": str(PROGRAM), "workload_args": ["none", "0"], "detach": True, "lease": 600}
        job = self.play(job_id=self.job_id(node), **given)
        assert job.process.returncode == 0, job.output
        said = f"{PLACE}/{self.job_id(node)}/said-0"
        wait_until(lambda: int(self.lab.read(node, said) or 0) > 0)
