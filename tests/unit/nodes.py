"""Facts as a node tells them, for tests without a node."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import AnyFacts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.attempts import attempt_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import Job, LaunchPlan, plan_job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program import Program
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request

Facts = dict[str, Any]
HERE = Node("localhost", "localhost", local=True, slots=2)


def launcher(path: str, version: str, said: str = "", refused: str = "") -> Facts:
    """Return a launcher as a node tells of it."""
    return {"path": path, "version": version, "wanted": path or "/x/mpirun", "said": said, "refused": refused}


def facts_of_a_node(**changed: Any) -> Facts:
    """Return what survey() finds on a small machine without GPU; keyword arguments replace parts."""
    return {
        "home": "/home/me/.torchfleet",
        "cwd": "/home/me",
        "uid": 1000,
        "tmpdir": "",
        "interpreter": "/usr/bin/python3",
        "python": "/home/me/.torchfleet/pytorch/bin/python",
        "python_wanted": "/home/me/.torchfleet/pytorch/bin/python",
        "torch": {"version": "2.13.0+cpu", "cuda": "", "hip": ""},
        "gpu_targets": {"torch": [], "gpus": []},
        "launcher": launcher("/opt/ompi/bin/mpirun", "5.0.11"),
        "slurm": None,
        "hostname": "node",
        "machine": "x86_64",
        "nics": ["eth0", "eth1", "lo"],
        "backends": [],
        "cores": 4,
        "accelerators": {"nvidia": 0, "amd": 0},
        "free_bytes": 1 << 40,
        "clock_offset": 0.0,
        "port": 23456,
        "fabric": None,
        "lost_address": "",
        "data": None,
        "program": None,
        "activation": None,
        "container": None,
        "glibc": True,
        "jobs": [],
        "running": [],
        "leftovers": [],
        **changed,
    }


def fabric(nic: str, address: str) -> Facts:
    """Return the fabric.json of a node."""
    return {"version": 1, "nic": nic, "address": address, "network": "10.1.0.0/24", "mtu": 1500, "rdma": []}


def plan_here(
    facts: Facts | None = None, script: str = "/w/mnist.py", data_set: Any = None, **options: Any
) -> LaunchPlan:
    """Plan a job on this machine: facts may be changed, the rest is the user's options."""
    return planned(
        Cluster(HERE, (HERE,)), {HERE.name: facts or facts_of_a_node()}, Program(script, ()), options, data=data_set
    )


def plan_on_two(
    n2: Facts | None = None,
    launcher_facts: Facts | None = None,
    n1: Facts | None = None,
    env: dict[str, dict[str, str]] | None = None,
    slots: dict[str, int] | None = None,
    data_set: Any = None,
    **options: Any,
) -> LaunchPlan:
    """Plan a job on two nodes; `n1`, `n2` change their facts, `env`, `slots` are by node."""
    both = facts_of_a_node(**({"launcher": launcher_facts} if launcher_facts else {}))
    facts = {
        "n1": {**both, "fabric": fabric("eth0", "10.1.0.11"), **(n1 or {})},
        "n2": {**both, "fabric": fabric("eth1", "10.1.0.12"), **(n2 or {})},
    }
    nodes = tuple(
        Node(
            name,
            address,
            slots=(slots or {}).get(name, 2),
            interpreter="/usr/bin/python3.9",
            env=(env or {}).get(name, {}),
        )
        for name, address in (("n1", "192.0.2.1"), ("n2", "192.0.2.2"))
    )
    return planned(Cluster(nodes[0], nodes), facts, Program("/w/mnist.py", (), shipped=True), options, data=data_set)


def planned(
    cluster: Cluster,
    facts: dict[str, Facts],
    program: Program,
    options: dict[str, Any],
    needs: Any = None,
    data: Any = None,
) -> LaunchPlan:
    """Plan a job of the workload mnist with the user's options. `needs`: its environment; `data`: its data set."""
    request = parse_request({"workload": "mnist", **options})
    program = dataclasses.replace(program, args=request.workload_args)
    attempt = attempt_of(request, request.job_id or "job", ())
    runtime, token = "lib/d/torchfleet.py", "0123456789ab"
    job = Job(request.job_id or "job", "/runs/job", program, runtime, token, attempt=attempt, needs=needs, data=data)
    return plan_job(request, cluster, cast(Mapping[str, AnyFacts], facts), job)


STAGING = {"started": 1.0, "private_tmp": "/tmp/torchfleet-0123456789abcdef"}


@contextlib.contextmanager
def nested(place: Path, depth: int, name: str = "") -> Iterator[None]:
    """Make directories in each other, and a file in the innermost. They are taken away here: pytest cannot."""
    here = os.open(place, os.O_RDONLY)
    try:
        for _level in range(depth):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        if name:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=here))
        yield
    finally:
        os.close(here)
        subprocess.run(["rm", "-rf", "--", str(place / "d")], check=True)


def order_of_a_job(**given: Any) -> dict[str, Any]:
    """Return what a job's order.json has for those who come when it is over."""
    return {
        "job_id": "one",
        "home": "/h",
        "host": "n1",
        "head": "n1",
        "ranks": [0],
        "controller": "c",
        "run_dir": "/runs/one",
        "placement": [{"rank": 0, "host": "n1"}],
        "launcher": {"name": "openmpi", "version": "5.0"},
        "backend": "gloo",
        "world_size": 1,
        "shown_command": ["mpirun"],
        **given,
    }
