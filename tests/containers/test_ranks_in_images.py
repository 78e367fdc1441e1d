"""Ranks in an image on two nodes: they compute together, end with all that they started, and are refused in a line."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.containers.nodes import IMAGES, NODES, InImages
from tests.driver import wait_until

ENGINES = ("podman", "docker", "charliecloud")
MPIS = ("openmpi", "mpich", "intelmpi")
LAUNCHERS = (*MPIS, "torchrun")
SUM = """import os
import torch
import torch.distributed as dist
backend = os.environ["TORCHFLEET_BACKEND"]
dist.init_process_group(backend)
ones = torch.ones(1 << 20)
dist.all_reduce(ones)
print(dist.get_backend(), int(ones[0]), os.getuid(), os.path.exists("/usr/bin/podman"))
dist.destroy_process_group()
"""
# What a program may leave: a session of its own, and twice forked with no variable of ours.
ESCAPES = """import os, subprocess, sys, time
subprocess.Popen(["setsid", "sleep", "98765"])
subprocess.Popen(["setsid", "sh", "-c", "sleep 98765 & "], env={"PATH": os.environ["PATH"]})
open("began", "w").close()
if os.environ["RANK"] == "3" and "fail" in sys.argv:
    time.sleep(1)
    sys.exit("boom")
time.sleep(600)
"""


def nothing_is_left(images: InImages, text: str, seconds: float = 5) -> None:
    """Wait until no process has this text in its command line, and no engine has a record of a job."""
    wait_until(lambda: not images.left(text), seconds, lambda: str(images.left(text)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program").mkdir()
    (tmp_path / "program/sum.py").write_text(SUM)
    (tmp_path / "program/escapes.py").write_text(ESCAPES)
    return tmp_path / "program"


@pytest.mark.parametrize(
    ("launcher", "backend"), [*((launcher, "gloo") for launcher in LAUNCHERS), *((mpi, "mpi") for mpi in MPIS)]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_compute_together(images: InImages, folder: Path, engine: str, launcher: str, backend: str) -> None:
    """Backend mpi is the package in the environment of the node, over the node's MPI: both are mounted."""
    job = images.play(engine, folder / "sum.py", launcher=launcher, backend=backend)
    assert job.process.returncode == 0, job.output
    said = [job.stdout(rank).split() for rank in range(4)]
    assert said == [[backend, "4", "1000", "False"]] * 4  # of all ranks, as the user of the node, not among its files
    nothing_is_left(images, "torchfleet.py")


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_fails_is_blamed_and_nothing_stays(
    images: InImages, folder: Path, engine: str, launcher: str
) -> None:
    job = images.play(engine, folder / "escapes.py", launcher=launcher, workload_args=["fail"])
    assert job.process.returncode == 2
    failure = job.result["first_failure"]
    assert (failure["rank"], failure["host"], failure["message"]) == (3, "n2", "boom")
    nothing_is_left(images, "sleep 98765")


@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        *(("podman", fault) for fault in ("guard", "daemon", "conmon", "controller", "supervisor and guard")),
        *(("docker", fault) for fault in ("guard", "controller", "supervisor and guard")),
        *(("charliecloud", fault) for fault in ("guard", "daemon", "controller")),
    ],
)
def test_a_fault_leaves_no_process_and_no_record(images: InImages, folder: Path, engine: str, fault: str) -> None:
    """With supervisor and guard of a node gone, what escaped there stays until clean.yml."""
    job = images.start(engine, folder / "escapes.py")
    job.wait_until(lambda: all(len(images.processes(node, "sleep 98765")) == 4 for node in NODES))
    bystanders = {
        node: images.cluster.lab.ssh(node, "setsid sleep 4711 >/dev/null 2>&1 & echo $!").stdout for node in NODES
    }
    found = images.victims(job, fault)
    assert found
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # what the one before had below it
            pass
    job.process.wait(60)
    if fault == "supervisor and guard":
        images.cluster.clean()
    nothing_is_left(images, "sleep 98765", 30)
    nothing_is_left(images, "torchfleet.py")
    assert all(images.processes(node, "sleep 4711") for node in bystanders)
    for node, pid in bystanders.items():
        images.cluster.lab.ssh(node, "kill", pid.strip())
    images.cluster.clean()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_node_that_is_cut_off_ends_its_part_itself(images: InImages, folder: Path, engine: str) -> None:
    job = images.start(engine, folder / "escapes.py")
    job.wait_until(lambda: all(len(images.processes(node, "sleep 98765")) == 4 for node in NODES))
    images.cluster.lab.cut("n2")
    try:
        job.process.wait(120)
        wait_until(lambda: not images.processes("n2", "sleep 98765"), 40, lambda: "n2 runs on")
    finally:
        images.cluster.lab.heal("n2")
    assert job.result["state"] == "lost"
    nothing_is_left(images, "sleep 98765")
    images.cluster.clean()


@pytest.mark.parametrize(
    ("engine", "given", "said"),
    [
        ("podman", {"container_image": "localhost/none:1"}, "n1 has no such image: podman pull"),
        ("charliecloud", {"container_image": "/images/none"}, "n1 has no such directory"),
        ("podman", {"python": "/no/python"}, "it has no Python on n1"),
        ("charliecloud", {"python": "/no/python"}, "it has no Python on n1"),
        ("podman", {"container_args": "--nonsense"}, "(Error: unknown flag: --nonsense)"),
        ("charliecloud", {"container_mounts": ["/nowhere"]}, "can't bind: source not found: /nowhere"),
        ("podman", {"container_engine": "charliecloud"}, "charliecloud does not start a name"),
        (
            "podman",
            {"container_engine": "auto", "container_image": "/images/none.sif"},
            "n1 has no apptainer: install it",
        ),
        ("docker", {"container_image": "localhost/none:1"}, "n1 has no such image: docker pull"),
        ("docker", {"python": "/no/python"}, "it has no Python on n1"),
        ("docker", {"container_args": "--nonsense"}, "(unknown flag: --nonsense)"),
        ("podman", {"launcher": "torchrun", "backend": "mpi"}, "torchrun starts no MPI; use -e launcher=openmpi"),
    ],
)
def test_what_cannot_be_is_refused(
    images: InImages, folder: Path, engine: str, given: dict[str, object], said: str
) -> None:
    job = images.play(engine, folder / "sum.py", **given)
    assert job.process.returncode == 2
    assert said in job.output.replace("''", "'")
    nothing_is_left(images, "torchfleet.py")


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_an_image_without_a_shell_is_refused_by_that(images: InImages, folder: Path, engine: str) -> None:
    """As images are that have one program and nothing else."""
    tag = "localhost/empty:1"
    for node in NODES:
        images.cluster.lab.ssh(node, f"tar -c -C /etc hostname | {engine} import - {tag}")
    job = images.play(engine, folder / "sum.py", container_image=tag)
    for node in NODES:
        images.cluster.lab.ssh(node, engine, "rmi", tag)
    assert job.process.returncode == 2
    assert "its /bin/sh or Python is not found on n1 (" in job.output and "needs Python 3.8 or newer" in job.output
    nothing_is_left(images, "torchfleet.py")


# A Python in a user namespace that may have none below it: what a node is like whose administrator has turned them off.
WITHOUT_NAMESPACES = """#!/bin/sh
exec unshare --user --map-current-user --keep-caps sh -c '
echo 0 >/proc/sys/user/max_user_namespaces
exec setpriv --ambient-caps=-all --inh-caps=-all /usr/bin/python3 "$@"' sh "$@"
"""


@pytest.mark.parametrize("engine", ["podman", "charliecloud"])
def test_user_namespaces_that_are_off_are_named_with_what_turns_them_on(
    images: InImages, folder: Path, engine: str
) -> None:
    lab, python = images.cluster.lab, "/home/fleet/python-without-namespaces"
    lab.root("n2", "sh", "-c", f'printf %s "$1" >{python}; chmod 755 {python}', "sh", WITHOUT_NAMESPACES)
    images.cluster.write("host_vars/n2", ansible_python_interpreter=python)
    try:
        job = images.play(engine, folder / "sum.py")
        brought = images.cluster.play(
            "setup.yml", "--tags", "container", container_image=IMAGES[engine], container_engine=engine
        )
    finally:
        (lab.directory / "host_vars/n2.yml").unlink()
        lab.root("n2", "rm", python)
    said = "needs user namespaces, which are off on n2; as root there: sysctl -w user.max_user_namespaces=15000"
    assert job.process.returncode == 2 and said in job.output
    assert "on n1" not in job.output
    if engine == "podman":  # Charliecloud's is a directory, which is there
        assert brought.process.returncode == 2 and said in brought.output
    nothing_is_left(images, "torchfleet.py")


def test_an_image_that_differs_on_one_node_is_refused(images: InImages, folder: Path) -> None:
    lab, tag = images.cluster.lab, "localhost/differs:1"
    lab.ssh("n1", f"podman tag {IMAGES['podman']} {tag}")
    lab.ssh("n2", f"podman commit -q $(podman create {IMAGES['podman']} true) {tag}; podman rm --all")
    job = images.play("podman", folder / "sum.py", container_image=tag)
    assert job.process.returncode == 2
    assert "not one image on all nodes" in job.output
