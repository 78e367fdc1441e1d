"""A proven cluster of lab nodes: set up once by setup.yml, trained on by the tests, and looked into from outside."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema

from tests.lab.lab import ENVIRONMENT, REPO, Lab

SCRIPTS = REPO / "tests" / "integration" / "scripts"
SCHEMA = json.loads((REPO / "docs" / "result.schema.json").read_text())
HYDRA = ["mpich", "intelmpi"]
DAEMONS = ("prted", "orted", "hydra_pmi_proxy", "hydra_bstrap_proxy")
SLURM = ["srun", "sbatch"]
LAUNCHERS = ["openmpi", "torchrun", *HYDRA, *SLURM]
END_SECONDS = 5.0  # what the README promises for the end of a job that no network hides


class Cluster:
    """Lab nodes that took setup.yml, and the runs of jobs on them."""

    def __init__(self, lab: Lab, root: Path) -> None:
        self.lab, self.root = lab, root
        self.runs = root / "runs"
        self.environment = dict(ENVIRONMENT)

    def make_nodes_differ(self) -> None:
        """Give n3 another name for its second NIC, and n4 another home for torchfleet.

        PyTorch lies in one place on all of them, because a copy is sent faster than three more are made.
        """
        for words in (("down",), ("name", "fast0"), ("up",)):
            self.lab.root("n3", "ip", "link", "set", "fast0" if words == ("up",) else "eth1", *words)
        for node, host in self.lab.hosts().items():
            self.lab.root(node, "install", "-d", "-o", host["ansible_user"], "/srv/torchfleet")
        python = "/srv/torchfleet/pytorch/bin/python"
        self.write("group_vars/all", pytorch_venv="/srv/torchfleet/pytorch", torchfleet_python=python)
        self.write("host_vars/n3", torchfleet_python=python + "3")
        self.write("host_vars/n4", torchfleet_home="/srv/torchfleet")

    def mend(self) -> None:
        """Make all nodes as good as new: n2 is the one that is cut off, and n3's NICs the lab no longer knows."""
        for node, state in self.lab.states().items():
            if state == "paused":
                self.lab.resume(node)
            elif state != "running":
                self.lab.restart(node)
                self.wait_for_sshd(node)
        self.lab.heal("n2")

    def wait_for_sshd(self, node: str, seconds: float = 40.0) -> None:
        """Wait until a node that was started takes logins."""
        deadline = time.monotonic() + seconds
        while self.lab.ssh(node, "true", check=False).returncode != 0:
            assert time.monotonic() < deadline, f"{node} takes no logins {seconds} s after its start"
            time.sleep(0.2)

    def write(self, name: str, **variables: str) -> None:
        """Add variables to the inventory."""
        path = self.lab.directory / f"{name}.yml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(variables))

    def second_network(self) -> str:
        """Return the network of the second NICs: the one that is not the default."""
        return str(ipaddress.ip_interface(self.lab.address("n1", nic=1) + "/24").network)

    def start(self, playbook: str = "train.yml", *words: str, **given: Any) -> Job:
        """Start a playbook as a person does in a shell; come back while it runs."""
        job_id = given.setdefault("job_id", f"job-{os.getpid()}-{len(list(self.root.glob('*.log')))}")
        log = self.root / f"{playbook}.{job_id}.log"
        extra = json.dumps({"runs_dir": str(self.runs), **given})
        argv = ["ansible-playbook", "-i", str(self.lab.inventory), playbook, "-e", extra, *words]
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv,
                cwd=REPO,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return Job(self, process, str(job_id), log)

    def play(self, playbook: str = "train.yml", *words: str, **given: Any) -> Job:
        """Run a playbook to its end."""
        job = self.start(playbook, *words, **given)
        job.process.wait(900)
        return job

    def train(self, **given: Any) -> Job:
        """Run a job that must succeed."""
        job = self.play(**given)
        assert job.process.returncode == 0, job.output
        assert job.result["state"] == "succeeded"
        return job

    def clean(self) -> Job:
        return self.play("clean.yml", job_id="")


@dataclasses.dataclass
class Job:
    """A playbook that runs or has run, and the job it launched."""

    cluster: Cluster
    process: subprocess.Popen[bytes]
    job_id: str
    log: Path

    @property
    def output(self) -> str:
        """Return what was printed, white space folded."""
        return " ".join(self.log.read_text().split())

    @property
    def run_dir(self) -> Path:
        return self.cluster.runs / self.job_id

    @property
    def result(self) -> dict[str, Any]:
        result = json.loads((self.run_dir / "result.json").read_text())
        jsonschema.validate(result, SCHEMA)
        return dict(result)

    def stdout(self, rank: int) -> str:
        return (self.run_dir / "ranks" / str(rank) / "stdout").read_text()

    def alive(self, node: str) -> list[int]:
        """Return the processes of the job on a node, by their pids on this machine."""
        return self.cluster.lab.pids(node, f"TORCHFLEET_JOB_ID={self.job_id}\0")

    def wait_until(self, condition: Callable[[], Any], seconds: float = 40.0) -> Any:
        """Wait until a condition holds and return its value."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s; output so far:\n{self.log.read_text()}")

    def programs(self, node: str, script: str) -> list[int]:
        """Return the ranks' programs on a node."""
        return [pid for pid in self.alive(node) if command(pid)[-1:] != [""] and script in " ".join(command(pid)[1:2])]

    def wait_for_programs(self, script: str, **counts: int) -> dict[str, list[int]]:
        """Wait until so many ranks run their program on each node; return their pids."""
        self.wait_until(lambda: all(len(self.programs(node, script)) == count for node, count in counts.items()))
        return {node: self.programs(node, script) for node in counts}

    def all_gone(self, *nodes: str, seconds: float = END_SECONDS) -> None:
        """Wait until no process of the job is left on these nodes; fail after the promised time."""
        start = time.monotonic()
        while left := {node: self.alive(node) for node in nodes if self.alive(node)}:
            told = {node: [" ".join(command(pid)) for pid in pids] for node, pids in left.items()}
            assert time.monotonic() - start < seconds + 1.0, f"still there: {told}\n{self.log.read_text()}"
            time.sleep(0.05)

    def part(self, node: str, what: str) -> int:
        """Return the pid on this machine of a part of the job: supervisor, guard, launcher or daemon."""
        if what == "daemon":
            return next(pid for pid in self.alive(node) if is_daemon(command(pid)))
        above = supervisors(self.cluster.lab, node)
        if what == "supervisor":
            return next(pid for pid in above if parent(pid) not in above)
        guard = next(pid for pid in above if parent(pid) in above)
        return guard if what == "guard" else next(pid for pid in self.alive(node) if parent(pid) == guard)


def is_daemon(words: list[str]) -> bool:
    return words[0].rpartition("/")[2] in DAEMONS or "torch.distributed.run" in words


def supervisors(lab: Lab, node: str) -> list[int]:
    """Return the processes of torchfleet's own on a node: supervisor and guard."""
    return [pid for pid in lab.pids(node, "") if command(pid)[-1:] == ["supervise"]]


def command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return [""]


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0
