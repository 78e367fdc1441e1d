"""What a node tells of itself when programs of it have to be asked."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import node, versions

RECORDED = Path(__file__).parents[1] / "unit/recorded/node_facts.json"


def test_this_machine_tells_everything_in_plain_values() -> None:
    request = {
        "home": "",
        "python": "",
        "base_python": "",
        "mpirun": "",
        "sudo": False,
        "container_image": "",
        "engines": [],
    }
    facts = json.loads(json.dumps(node.node_facts(request)))
    recorded = json.loads(RECORDED.read_text())["n1"]
    networks, seat = facts.pop("networks"), facts.pop("seat")  # for other roles, which have tests of their own
    assert "lo" in {nic["name"] for nic in networks["nics"]}
    assert facts["versions"].pop("image") == ""  # none was asked for
    assert set(seat) == {"home", "cores", "accelerators", "fabric"}
    assert set(facts) == set(recorded)
    recorded["torch"] = {"version": "", "cuda": "", "hip": "", "xpu": ""} if facts["torch"] else None  # if it is there
    assert {name: set(value) for name, value in facts.items() if isinstance(value, dict)} == {
        name: set(value) for name, value in recorded.items() if isinstance(value, dict)
    }
    assert facts["system"]["libc"].startswith("glibc 2.")
    assert facts["python"]["path"] == sys.executable
    assert facts["home"]["writable"]
    assert facts["versions"]["kernel"] == os.uname().release


SAYS = {
    "openmpi": ("mpirun (Open MPI) 5.0.11\n\nReport bugs to ...\n", "5.0.11"),
    "mpich": (
        "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: x\n",
        "4.0.2",
    ),
    "intelmpi": (
        "Intel(R) MPI Library for Linux* OS, Version 2021.15 Build 20250213 (id: d233448)\nCopyright\n",
        "2021.15",
    ),
}


@pytest.mark.parametrize("kind", SAYS)
def test_an_mpi_by_what_it_says(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    said, version = SAYS[kind]
    program = tmp_path / kind / "bin/mpirun"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n")
    program.chmod(0o755)
    assert versions.mpi(str(tmp_path), "")[kind] == version
    assert versions.mpi("/none", str(program))[kind] == version


def test_the_python_of_the_ranks() -> None:
    assert versions.python_version(sys.executable) == ".".join(map(str, sys.version_info[:3]))
    assert versions.python_version("/no/python") == ""


def test_debian_tells_no_version_of_what_is_not_there() -> None:
    assert versions.debian_version("no-such-package") == ""
    if Path("/etc/debian_version").exists():
        assert versions.debian_version("dpkg")[0].isdigit()
