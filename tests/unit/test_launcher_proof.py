"""The proof of an MPI launcher, and the versions of all nodes. The launchers here are scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.action import launcher_proof, launcher_versions
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import launcher_proof as proof
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.launchers import difference, version_of

WORKS = 'for rank in 0 1; do env OMPI_COMM_WORLD_RANK=$rank "$@"; done'
OPTIONS = "--oversubscribe -n 2 printenv OMPI_COMM_WORLD_RANK"


@pytest.fixture(autouse=True)
def as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests."""
    monkeypatch.setattr(proof.os, "getuid", lambda: 1000)


def write(home: Path, starts: str = WORKS) -> Path:
    """Write a launcher that notes how it is started. Return its home."""
    (home / "bin").mkdir(exist_ok=True)
    for name, script in (
        ("mpirun", f'[ "$1" != --version ] || {{ echo "mpirun (Open MPI) 1.2"; exit; }}\nshift 3\n{starts}'),
        ("ompi_info", "echo mca:pml:ucx:version"),
    ):
        path = home / "bin" / name
        path.write_text(f'#!/bin/sh\necho "$*" >>{home}/log\n{script}\n')
        path.chmod(0o755)
    return home


def test_it_is_proven_by_two_processes(tmp_path: Path) -> None:
    assert proof.given_proof(tmp_path) == ""
    assert proof.prove("openmpi", write(tmp_path), "1.2") == "1.2"
    assert (tmp_path / "log").read_text().splitlines() == ["--version", OPTIONS]
    assert proof.given_proof(tmp_path) == "1.2"


def test_root_has_to_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof.os, "getuid", lambda: 0)
    proof.prove("openmpi", write(tmp_path, "shift; " + WORKS))
    assert (tmp_path / "log").read_text().splitlines()[1] == f"--allow-run-as-root {OPTIONS}"


@pytest.mark.parametrize(
    ("starts", "change", "says"),
    [
        (WORKS, {"version": "1.3"}, "bin/mpirun should be openmpi 1.3, but says: mpirun (Open MPI) 1.2"),
        (WORKS, {"launcher": "mpich"}, "bin/mpirun should be mpich, but says: mpirun (Open MPI) 1.2"),
        (WORKS, {"path": Path("/no/such")}, "/no/such/bin/mpirun does not run: No such file or directory"),
        (WORKS, {"components": ["mca:pml:ucx:", "mca:coll:ucc:"]}, " was built without mca:coll:ucc:"),
        ("echo 0", {}, "should start ranks 0 and 1, but says: 0"),
        ("echo '----'; echo 'no slots' >&2; exit 3", {}, f"{OPTIONS} ended with status 3 and said: no slots"),
        ("exec sleep 60", {}, f"{OPTIONS} did not end within 1 s"),
    ],
)
def test_what_does_not_work_is_told_in_a_line(
    tmp_path: Path, starts: str, change: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "SECONDS", 1)
    write(tmp_path, starts)
    with pytest.raises(proof.UnprovenError) as error:
        proof.prove(**{"launcher": "openmpi", "path": tmp_path, **change})
    assert says in str(error.value) and "\n" not in str(error.value)
    assert proof.given_proof(tmp_path) == ""


def test_what_it_imports_is_compiled_whatever_a_profile_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    proof.prove("openmpi", write(tmp_path, f'test -z "$PYTHONDONTWRITEBYTECODE" || exit 5\n{WORKS}'))


# --- versions of all nodes -------------------------------------------------------------------------------------------


def test_different_versions_are_refused_with_the_nodes() -> None:
    assert difference("mpich", {"n1": "4.0.2", "n2": "4.0.2", "n3": ""}) == ""
    assert difference("mpich", {}) == ""
    assert difference("mpich", {"n1": "4.0.2", "n2": "4.2.1"}) == (
        "mpich: not one version on all nodes: n1 has 4.0.2, n2 has 4.2.1: set mpich_install_method to wheel"
    )


@pytest.mark.parametrize("version", ["4.0.2\n", "4 0", 4, None, ["4"], "\x1b[31m4", "4" * 65, "{{ x }}"])
def test_a_node_cannot_say_anything_but_a_version(version: Any) -> None:
    with pytest.raises(InputError, match=r'answer of n2: got "version"'):
        version_of("n2", {"version": version})
    assert version_of("n2", {}) == version_of("n2", "text") == ""
    assert version_of("n2", {"version": "2021.18"}) == "2021.18"


def test_the_task_for_all_nodes_fails_where_versions_differ() -> None:
    action = object.__new__(launcher_versions.ActionModule)
    given = {"launcher": "mpich", "proofs": {"n1": {}, "n2": {"version": "4.0.2"}}}
    assert action.act(given, {}) == {"changed": False, "version": "4.0.2"}
    given["proofs"] = {"n1": {"version": "4.2.1"}, "n2": {"version": "4.0.2"}}
    failed = action.act(given, {})
    assert failed["failed"] is True and "n1 has 4.2.1, n2 has 4.0.2" in failed["msg"]


def test_of_what_a_node_answers_the_version_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    action = object.__new__(launcher_proof.ActionModule)
    answer = {"changed": "yes", "version": "4.0.2", "more": "x"}
    monkeypatch.setattr(action, "answer", lambda _variables: answer)
    assert action.act({}, {"inventory_hostname": "n1"}) == {"changed": False, "version": "4.0.2"}
    answer["version"] = "4 {{ x }}"
    with pytest.raises(InputError, match="answer of n1"):
        action.act({}, {"inventory_hostname": "n1"})
    answer["failed"] = True
    assert action.act({}, {"inventory_hostname": "n1"}) is answer
