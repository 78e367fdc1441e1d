"""A proven cluster of lab nodes: set up once by setup.yml, trained on by the tests, and looked into from outside."""

from __future__ import annotations

import dataclasses
import functools
import ipaddress
import json
import os
from pathlib import Path
from typing import Any

from tests import driver
from tests.driver import END_SECONDS, command, parent, wait_until
from tests.lab.lab import ENVIRONMENT, Lab

HYDRA = ["mpich", "intelmpi"]
DAEMONS = ("prted", "orted", "hydra_pmi_proxy", "hydra_bstrap_proxy")
SLURM = ["srun", "sbatch"]
# One thread for each rank: those of PyTorch spin while they wait for each other, and all nodes share two cores.
PAIR: dict[str, Any] = {"nodes": "n1,n2", "ranks_per_node": 1, "job_env": {"OMP_NUM_THREADS": "1"}}
OB1 = "-mca pml ob1 -mca btl ^openib"  # as documents of others start Open MPI
LAUNCHERS = ["openmpi", "torchrun", *HYDRA, *SLURM]


class Cluster:
    """Lab nodes that took setup.yml, and the runs of jobs on them."""

    def __init__(self, lab: Lab, root: Path) -> None:
        self.lab, self.root = lab, root
        self.runs, self.inventory = root / "runs", lab.inventory
        self.environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": "1"}  # Python holds lines back that go to a file

    def set_up(self) -> None:
        """Start the nodes and run setup.yml, with every MPI that it has."""
        self.lab.up()
        self.make_nodes_differ()
        self.prove(mpis=["openmpi", "mpich", "intelmpi"])

    def set_up_alike(self) -> None:
        """Do so with one home for torchfleet on all nodes, and with Open MPI alone."""
        self.lab.up()
        self.place_pytorch()
        self.prove(mpis=["openmpi"])

    def prove(self, **given: Any) -> None:
        """Run setup.yml. What it comes to is proven by the tests of verify, and by the second setup."""
        done = self.play("setup.yml", "--skip-tags", "verify", fabric_subnet=self.second_network(), **given)
        assert done.process.returncode == 0, done.log.read_text()

    def place_pytorch(self) -> None:
        """Have PyTorch in one place on all nodes, because a copy is sent faster than three more are made."""
        for node, host in self.lab.hosts().items():
            self.lab.root(node, "install", "-d", "-o", host["ansible_user"], "/srv/torchfleet")
        python = "/srv/torchfleet/pytorch/bin/python"
        self.write("group_vars/all", pytorch_venv="/srv/torchfleet/pytorch", torchfleet_python=python)

    def make_nodes_differ(self) -> None:
        """Give n3 another name for its second NIC, and n4 another home for torchfleet."""
        for words in (("down",), ("name", "fast0"), ("up",)):
            self.lab.root("n3", "ip", "link", "set", "fast0" if words == ("up",) else "eth1", *words)
        self.place_pytorch()
        self.write("host_vars/n3", torchfleet_python="/srv/torchfleet/pytorch/bin/python3")
        self.write("host_vars/n4", torchfleet_home="/srv/torchfleet")

    def home_of(self, node: str) -> str:
        """Return where torchfleet is at home on a node."""
        path = self.lab.directory / f"host_vars/{node}.yml"
        given = json.loads(path.read_text()) if path.exists() else {}
        return str(given.get("torchfleet_home", f"/home/{self.lab.hosts()[node]['ansible_user']}/.torchfleet"))

    def mend(self) -> None:
        """Make all nodes as good as new: n2 is the one that is cut off, and n3's NICs the lab no longer knows."""
        for node, state in self.lab.states().items():
            if state == "paused":
                self.lab.resume(node)
            elif state != "running":
                self.lab.restart(node)
                self.wait_for_sshd(node)
        self.lab.heal_links("n2")

    def wait_for_sshd(self, node: str, seconds: float = 40.0) -> None:
        """Wait until a node that was started takes logins."""
        login = functools.partial(self.lab.ssh, node, "true", check=False)
        wait_until(lambda: login().returncode == 0, seconds, lambda: f"{node} takes no logins")

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
        log = self.root / f"{Path(playbook).name}.{job_id}.log"
        extra = json.dumps({"runs_dir": str(self.runs), **given})
        argv = ["ansible-playbook", "-i", str(self.inventory), playbook, "-e", extra, *words]
        return Job(driver.start(argv, log, env=self.environment), str(job_id), log, self.runs, self)

    def play(self, playbook: str = "train.yml", *words: str, **given: Any) -> Job:
        """Run a playbook to its end."""
        job = self.start(playbook, *words, **given)
        job.process.wait(1800)
        return job

    def train(self, **given: Any) -> Job:
        """Run a job that must succeed."""
        job = self.play(**given)
        assert job.process.returncode == 0, job.output
        assert job.result["state"] == "succeeded"
        return job

    def clean(self) -> Job:
        return self.play("clean.yml", job_id="")


def four_bare_nodes(name: str, root: Path, user: str = "other") -> Cluster:
    """Return a cluster of four nodes that are not there yet. The last two differ in user, port, slots and host name.

    `user`: of n3; Slurm wants that of the other nodes, `fleet`.
    """
    overrides = {"n3": {"user": user, "port": 2222, "slots": 1, "hostname": "gpu-box"}, "n4": {"slots": 3}}
    options = {"nodes": 4, "nics": 2, "install": True, "overrides": overrides, "image": "bare"}
    options["packages"] = ["openmpi-bin", "slurm-wlm"]  # two launchers that no role installs
    return Cluster(Lab(name, root / "inventory", **options), root)


@dataclasses.dataclass
class Job(driver.Started):
    """A playbook that runs or has run, and the job it launched on lab nodes."""

    cluster: Cluster

    @property
    def output(self) -> str:
        """Return what was printed, white space folded."""
        return " ".join(self.log.read_text().split())

    def stdout(self, rank: int) -> str:
        return (self.run_dir / "ranks" / str(rank) / "stdout").read_text()

    def alive(self, node: str) -> list[int]:
        """Return the processes of the job on a node, by their pids on this machine."""
        return self.cluster.lab.pids(node, f"TORCHFLEET_JOB_ID={self.job_id}\0")

    def programs(self, node: str, script: str) -> list[int]:
        """Return the ranks' programs on a node."""
        return [pid for pid in self.alive(node) if script in " ".join(command(pid)[1:2])]

    def wait_for_programs(self, script: str, **counts: int) -> dict[str, list[int]]:
        """Wait until so many ranks run their program on each node; return their pids."""
        self.wait_until(lambda: all(len(self.programs(node, script)) == count for node, count in counts.items()))
        return {node: self.programs(node, script) for node in counts}

    def all_gone(self, *nodes: str, seconds: float = END_SECONDS) -> None:
        """Wait until no process of the job is left on these nodes; fail after the promised time."""
        self.wait_until_gone(lambda: [pid for node in nodes for pid in self.alive(node)], seconds)

    def part(self, node: str, what: str) -> int:
        """Return the pid on this machine of a part of the job: supervisor, guard, launcher or daemon."""
        if what == "daemon":
            return next(pid for pid in self.alive(node) if is_daemon(command(pid)))
        above = supervisors(self.cluster.lab, node)
        supervisor = next(pid for pid in above if parent(pid) not in above)
        if what == "supervisor":
            return supervisor
        guard = next(pid for pid in above if parent(pid) == supervisor)  # not its sampler, whose pid may be lower
        return guard if what == "guard" else next(pid for pid in self.alive(node) if parent(pid) == guard)


def is_daemon(words: list[str]) -> bool:
    return "".join(words[:1]).rpartition("/")[2] in DAEMONS or "torch.distributed.run" in words


def supervisors(lab: Lab, node: str) -> list[int]:
    """Return the processes of torchfleet's own on a node: supervisor, guard and sampler."""
    return [pid for pid in lab.pids(node, "") if command(pid)[-1:] == ["supervise"]]
