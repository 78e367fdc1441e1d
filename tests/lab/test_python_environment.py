"""A Python environment on real nodes: made on one, sent to the other over the SSH mesh, and what goes wrong then."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ansible_collections.torchfleet.cluster.plugins.modules import python_environment
from tests.driver import REPO, command, wait_until
from tests.lab.lab import ENVIRONMENT, Lab, ansible
from tests.lab.test_software import HOME, RECEIPT, SOME, Software, changed, errors_in
from tests.wheels import add_wheel

(EXAMPLE,) = yaml.safe_load(python_environment.EXAMPLES)


@pytest.fixture(scope="module")
def meshed(two_nodes: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Software]:
    """Two nodes with an SSH mesh and nothing else."""
    software = Software(two_nodes, tmp_path_factory.mktemp("environments"))
    for version in ("1.0", "2.0"):
        add_wheel(software.wheels, "tiny", version)
    mesh = {"ssh_mesh_directory": str(software.place / "ca"), "ssh_mesh_cluster": "environments"}
    software.make(["ssh_mesh"], **mesh)
    yield software
    software.make(["ssh_mesh"], **mesh, ssh_mesh_state="absent")
    for node in ("n1", "n2"):
        software.remove(node, HOME)


@pytest.fixture
def software(meshed: Software, lab: Lab) -> Software:
    """The same, with links and nodes mended after the test."""
    return meshed


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


def test_a_wheelhouse_that_lacks_a_wheel_is_refused_before_anything(software: Software) -> None:
    make(software)
    line = refusal(software, packages=["tiny==3.0"])
    assert f"some: {software.wheels} has no wheel of tiny==3.0 for Python 3." in line
    assert software.version("n1") == "1.0"


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
