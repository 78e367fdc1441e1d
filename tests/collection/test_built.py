"""The collection that others install: built, installed far from this repository, and used from there."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._software import interpreter

REPO = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
VERBS = ["setup", "verify", "train", "bench", "clean", "remove", "cluster"]
# ansible-test downloads a script that installs pip. This one needs no download, and runs no pip either: Python has its
# wheel to begin with, and unpacking it installs it.
GET_PIP = f"""
import ensurepip, sysconfig, zipfile
from pathlib import Path
SYSTEM_WHEELS = Path({str(interpreter.SYSTEM_WHEELS)!r})
{inspect.getsource(interpreter.bundled_pip)}
wheel = bundled_pip(str(Path(ensurepip.__file__).parent))[0]
zipfile.ZipFile(wheel).extractall(sysconfig.get_path("purelib"))
"""


def run(argv: list[str | Path], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run one of our own tools away from the repository: its ansible.cfg and its collections are not seen there."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    path = f"{BIN}:/usr/local/bin:/usr/bin:/bin"
    done = subprocess.run(
        [BIN / argv[0], *argv[1:]],
        cwd=cwd,
        env={**plain, "PATH": path, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    # Of the many words of ansible-test only those that say what is wrong.
    errors = [line for line in done.stdout.splitlines() if line.startswith(("ERROR:", "FATAL:"))]
    assert done.returncode == 0, "\n".join(errors) or done.stdout
    return done


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an ansible.cfg of its own and the collection installed from its tarball."""
    root = tmp_path_factory.mktemp("project")
    run(["ansible-galaxy", "collection", "build", REPO, "--output-path", root], cwd=root)
    tarball = next(root.glob("torchfleet-cluster-*.tar.gz"))
    (root / "ansible.cfg").write_text(f"[defaults]\ncollections_path = {root}/collections\ninventory = hosts.yml\n")
    (root / "hosts.yml").write_text((REPO / "inventory/hosts.yml").read_text())
    run(["ansible-galaxy", "collection", "install", tarball, "-p", root / "collections"], cwd=root)
    return root


@pytest.fixture(scope="module")
def installed(project: Path) -> Path:
    return project / "collections/ansible_collections/torchfleet/cluster"


def test_the_collection_has_what_it_needs_and_nothing_of_the_workshop(installed: Path) -> None:
    there = {entry.name for entry in installed.iterdir()}
    assert {"meta", "playbooks", "plugins", "roles", "workloads", "README.md", "LICENSE", "requirements.txt"} <= there
    assert {name for name in there if name.startswith(".")} == set()
    workshop = {"Makefile", "ansible.cfg", "changelogs", "collections", "release", "reports", "runs"}
    assert there & (workshop | {f"{verb}.yml" for verb in VERBS}) == set()


@pytest.mark.parametrize("verb", VERBS)
def test_a_playbook_is_found_by_its_full_name(project: Path, verb: str) -> None:
    run(["ansible-playbook", f"torchfleet.cluster.{verb}", "--syntax-check"], cwd=project)


def test_it_trains_from_there(project: Path) -> None:
    home = os.environ.get("TORCHFLEET_HOME", "~/.torchfleet")
    extra = json.dumps({"workload": "message_passing", "torchfleet_home": home})
    run(["ansible-playbook", "torchfleet.cluster.train", "-e", extra], cwd=project)
    result = json.loads((project / "runs/latest/result.json").read_text())
    assert (result["state"], result["world_size"]) == ("succeeded", 2)
    assert str(project) in json.loads((project / "runs/latest/plan.json").read_text())["head"]["argv"][1]


def test_sanity(installed: Path) -> None:
    """All but tests/, which it is no judge of, and what ruff and ansible-lint judge more strictly. It reads all
    documentation as it is installed, with ansible-doc.

    Its environments are kept in .cache, away from the user's ~/.ansible.
    """
    home = REPO / ".cache/ansible-test"
    (home / ".ansible/test/cache").mkdir(parents=True, exist_ok=True)
    (home / ".ansible/test/cache/get_pip_24_2.py").write_text(GET_PIP)
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    argv: list[str | Path] = ["ansible-test", "sanity", "--color", "no", "--python", python, "--exclude", "tests/"]
    argv += [word for name in ("pep8", "pylint", "yamllint") for word in ("--skip-test", name)]
    run(argv, cwd=installed, HOME=str(home))
