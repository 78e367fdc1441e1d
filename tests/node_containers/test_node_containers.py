"""Node containers for real, on two machines with podman.

The tests go on from each other: refused, started, trained on, stopped and started, kept as an image, removed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import ansible
from tests.node_containers.machines import NAMES, PORTS, TORCH, Machines, podman

LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
PYTHON = "/home/fleet/torch/bin/python"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    made = Machines(tmp_path_factory.mktemp("machines"))
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def empty_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image that has one file, and no Python."""
    place = tmp_path_factory.mktemp("image")
    (place / "file").touch()
    subprocess.run(["tar", "-C", place, "-cf", place / "image.tar", "file"], check=True)
    name = f"localhost/nc{os.getpid()}-empty:1"
    podman("import", "--quiet", str(place / "image.tar"), name)
    yield name
    podman("rmi", "--force", name)


def changed(done: subprocess.CompletedProcess[str]) -> bool:
    assert done.returncode == 0, done.stdout + done.stderr
    return bool(re.search(r"changed=[1-9]", done.stdout))


def refusals(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what a playbook said when it refused: a line for each machine, and no traceback."""
    assert done.returncode != 0, done.stdout
    output = done.stdout + done.stderr
    assert "Traceback" not in output
    return [part.partition("\nOrigin: ")[0].replace("\n", " ") for part in output.split("[ERROR]: ")[1:]]


# --- refused: nothing is started, and nothing is left -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"image": "EMPTY"}, "EMPTY has no python3; give an image with Python 3.8 or newer"),
        (
            {"image": "localhost/none:1"},
            "there is no localhost/none:1 on n1; playbooks/containers.yml -e container_sta",
        ),
        ({"image": "no.such.registry.invalid/x:1"}, "podman pull no.such.registry.invalid/x:1: "),
        ({"port": 22}, "node_container_port: 22 is in use on n1; give another one, or 0 for the first free one"),
        ({"port": "ssh"}, "node_container_port"),
        ({"cluster": "My"}, "node_container_cluster: got 'My'; give at most 30"),
        ({"mounts": ["/no/such"]}, "node_container_mounts: there is no /no/such on n1"),
        ({"devices": ["/dev/none"]}, "node_container_devices: there is no /dev/none on n1"),
        ({"directory": "OTHERS"}, 'node_container_directory: got "'),
    ],
)
def test_bad_input_is_refused_in_a_line_and_leaves_nothing(
    machines: Machines, empty_image: str, tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others/notes.txt").touch()
    words = {"EMPTY": empty_image, "OTHERS": str(tmp_path / "others")}
    before = podman("ps", "--all", "--quiet", "--filter", "name=^nc").split()
    lines = refusals(machines.play("present", **{name: words.get(str(it), it) for name, it in given.items()}))
    for word, text in words.items():
        told = told.replace(word, text)
    assert 1 <= len(lines) <= len(NAMES) and any(told in line for line in lines), lines
    assert podman("ps", "--all", "--quiet", "--filter", "name=^nc").split() == before
    assert not machines.nodes.exists() and machines.containers() == {}


def test_a_machine_without_an_engine_is_refused_before_anything_starts_on_the_other(machines: Machines) -> None:
    python = machines.place / "python-n2"
    before = python.read_text()
    python.write_text(before.replace("exec ", "exec env PATH=/nowhere "))
    python.write_text(python.read_text().replace("nsenter", "/usr/bin/nsenter"))
    try:
        (line,) = refusals(machines.play("present"))
    finally:
        python.write_text(before)
    assert "neither podman nor docker is installed on n2; type: apt-get install -y podman" in line
    assert machines.containers() == {} and not machines.nodes.exists()


# --- started ----------------------------------------------------------------------------------------------------------


def test_check_mode_starts_nothing(machines: Machines) -> None:
    done = machines.play("present", "--check", "--diff")
    assert changed(done) and '"node_container_shm_size": "64m"' not in done.stdout
    assert f'"node_container_port": {PORTS["n2"]}' in done.stdout
    assert machines.containers() == {} and not machines.nodes.exists()


def test_they_start_and_their_host_keys_are_pinned(machines: Machines) -> None:
    assert changed(machines.play("present"))
    assert machines.containers() == {f"{machines.cluster}-{name}": "running" for name in NAMES}
    done = machines.in_containers("playbooks/check_inventory.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ping(machines) == 2
    assert (machines.nodes / "key").stat().st_mode & 0o777 == 0o600
    # Not the keys that the image has, which everybody knows who has the image.
    keys = {line.split()[2] for line in (machines.nodes / "known_hosts").read_text().splitlines()}
    image = podman("run", "--rm", "--network=none", *LIMITS, machines.image, "sh", "-c", "cat /etc/ssh/*.pub; true")
    assert len(keys) == 2 and "ssh-ed25519" in image and not any(key in image for key in keys)


def ping(machines: Machines) -> int:
    """Return how many nodes Ansible reaches over SSH, strict about host keys."""
    done = ansible("ansible", "-i", str(machines.nodes / "hosts.yml"), "all", "-m", "ansible.builtin.ping")
    return done.stdout.count("SUCCESS")


def test_a_wrong_host_key_is_refused(machines: Machines) -> None:
    known = machines.nodes / "known_hosts"
    right = known.read_text()
    one, two = (line.split(" ", 1) for line in right.splitlines())
    known.write_text(f"{one[0]} {two[1]}\n{two[0]} {one[1]}\n")
    try:
        assert "Host key verification failed" in machines.ssh("n1", "true").stderr
    finally:
        known.write_text(right)
    assert machines.ssh("n1", "true").returncode == 0


def test_the_second_time_nothing_changes_and_another_value_is_refused(machines: Machines) -> None:
    assert not changed(machines.play("present"))
    lines = refusals(machines.play("present", shm_size="64m"))
    assert "node_container_shm_size: " in lines[0] and "exists with another value" in lines[0]


def test_a_node_is_a_machine(machines: Machines) -> None:
    """Its user with sudo, its name, the network of its machine, processes of its own."""
    for name in NAMES:
        said = machines.login(name, "id -un; sudo -n id -u; hostname; df -m /dev/shm | tail -1; ls /proc")
        lines = said.splitlines()
        assert lines[:3] == ["fleet", "0", name]
        assert lines[3].split()[1] == "8192"
        assert len([line for line in lines[4:] if line.isdigit()]) < 20
    assert "zombie" not in machines.inside("n1", "sh", "-c", "grep -l zombie /proc/[0-9]*/status || true")


# --- setup and training, unchanged ------------------------------------------------------------------------------------


def test_setup_and_training_take_them_for_machines(machines: Machines) -> None:
    done = machines.in_containers("setup.yml", "--tags", "preflight,ssh_mesh,fabric,mpi,hostfile")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in NAMES:
        found = f"for place in torch/lib/python3.*/site-packages; do echo {TORCH} >$place/here.pth; done"
        machines.login(name, f"python3 -m venv --without-pip torch && {found}")
    for launcher in ("openmpi", "torchrun"):
        given = {"workload": "message_passing", "launcher": launcher, "torchfleet_python": PYTHON}
        done = machines.in_containers("train.yml", **given)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "succeeded" in done.stdout and "2 ranks" in done.stdout


def test_a_node_that_was_stopped_comes_back_with_its_files_and_keys(machines: Machines) -> None:
    before = (machines.nodes / "known_hosts").read_text()
    podman("stop", "--time", "10", f"{machines.cluster}-n2")
    assert changed(machines.play("present"))
    assert (machines.nodes / "known_hosts").read_text() == before
    assert ping(machines) == 2
    assert machines.inside("n2", "ls", "/home/fleet/.torchfleet/openmpi/bin/mpirun")


@pytest.fixture(scope="module")
def bare_image(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with Python, and without anything of OpenSSH and sudo."""
    place, name = tmp_path_factory.mktemp("bare"), f"localhost/nc{os.getpid()}-bare:1"
    purge = "SUDO_FORCE_REMOVE=yes apt-get purge -y -qq openssh-server openssh-client sudo"
    (place / "Containerfile").write_text(f"FROM {machines.image}\nRUN {purge} && rm -rf /etc/ssh\n")
    podman("build", "--quiet", "--tag", name, *LIMITS, str(place))
    yield name
    podman("rmi", "--force", name)


def test_what_an_image_lacks_is_installed_in_the_container(machines: Machines, bare_image: str) -> None:
    """And the package's own sshd is not started meanwhile, in the network of the machine: port 22 stays as it was."""
    cluster, place = f"{machines.cluster}-b", machines.place / "bare"
    other = {"image": bare_image, "cluster": cluster, "directory": str(place), "port": 2203}
    (line, *_more) = refusals(machines.play("present", "-e", "away=n2", install=False, **other))
    assert f"{bare_image} lacks sshd, ssh, ssh-keygen, sudo; say -e node_container_install=true" in line
    try:
        assert changed(machines.play("present", "-e", "away=n2", **other))
        said = podman("exec", f"{cluster}-n1", "sh", "-c", "cat /proc/[0-9]*/comm; ls /usr/sbin/policy-rc.d || true")
        assert said.split().count("sshd") == 1 and "policy-rc.d" not in said
    finally:
        assert changed(machines.play("absent", "-e", "away=n2", **other))
    assert not place.exists()


# --- kept, and removed ------------------------------------------------------------------------------------------------


def test_no_image_is_made_of_a_node_with_keys_of_the_mesh(machines: Machines) -> None:
    (line, *_more) = refusals(machines.play("built"))
    assert "has keys of the SSH mesh in ~fleet/.torchfleet/ssh, which belong in no image" in line


def test_a_half_made_cluster_is_completed_by_present(machines: Machines) -> None:
    """As after a start that was cut off, or a container that somebody removed: the other node is left as it is."""
    one, other = (f"{machines.cluster}-{name}" for name in NAMES)
    before = podman("container", "inspect", "--format", "{{.Id}}", one)
    podman("rm", "--force", "--volumes", "--time", "0", other)
    assert changed(machines.play("present"))
    assert machines.containers() == {one: "running", other: "running"}
    assert podman("container", "inspect", "--format", "{{.Id}}", one) == before
    assert ping(machines) == 2


def test_absent_removes_ours_and_a_bystander_lives(machines: Machines) -> None:
    """A container of somebody else with a similar name and our labels, as of an image that was made of a node."""
    stranger = f"{machines.cluster}-n1-of-mine"
    labels = [f"--label=torchfleet.node_container={machines.cluster}", "--label=torchfleet.node_container.host=n1"]
    podman("run", "--detach", "--name", stranger, *labels, *LIMITS, machines.image, "sleep", "600")
    volumes = set(podman("volume", "ls", "--quiet").split())
    try:
        assert changed(machines.play("absent", "--check")) and len(machines.containers()) == 3
        assert changed(machines.play("absent"))
        assert machines.containers() == {stranger: "running"}
        assert not machines.nodes.exists()
        assert len(volumes - set(podman("volume", "ls", "--quiet").split())) == len(NAMES)
        assert not changed(machines.play("absent"))
    finally:
        podman("rm", "--force", "--time", "0", stranger)


def test_what_setup_installed_is_kept_as_an_image_without_what_makes_a_node_itself(machines: Machines) -> None:
    """From the base: no registry. The next cluster starts with Open MPI there."""
    image = "localhost/torchfleet-worker:cpu"
    before = podman("images", "--quiet", image).strip()
    try:
        assert changed(machines.play("present", image=""))
        done = machines.in_containers("setup.yml", "--tags", "mpi")
        assert done.returncode == 0, done.stdout + done.stderr
        assert changed(machines.play("built", "-e", "away=n2", image=""))  # both would give it the same name
        config = json.loads(podman("image", "inspect", "--format", "{{json .Config}}", image))
        labels = {name: text for name, text in config.pop("Labels").items() if name.startswith("torchfleet.node")}
        assert len(labels) == 4 and set(labels.values()) == {""}
        assert machines.cluster not in json.dumps(config) and "birth" not in json.dumps(config)
        words = ("run", "--rm", "--network=none", *LIMITS, image, "sh", "-c", "ls /etc/ssh; ls /home/fleet/.torchfleet")
        there = podman(*words)
        assert "ssh_host" not in there and "torchfleet_node" not in there and "openmpi" in there
        assert changed(machines.play("absent", image=""))
        assert changed(machines.play("present", image=image)) and ping(machines) == 2
        assert "openmpi" in machines.inside("n2", "ls", "/home/fleet/.torchfleet")
        assert changed(machines.play("absent"))
        assert machines.containers() == {}
    finally:
        podman("rmi", "--force", image)
        if before:  # somebody's own
            podman("tag", before, image)
