"""The programs behind the role mpi: what proves a launcher, and what is linked of a package."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.programs import load

FILES = Path(__file__).parents[2] / "roles/mpi/files"


prove, package = load(FILES / "prove.py"), load(FILES / "package.py")


# --- prove ----------------------------------------------------------------------------------------------------------

WORKS = "for rank in 0 1; do RANK=$rank printenv RANK; done"


@pytest.fixture
def question(tmp_path: Path) -> dict[str, Any]:
    """What the role would ask."""
    (tmp_path / "bin").mkdir()
    words = {"options": ["--some"], "options_as_root": [], "variable": "RANK"}
    return {"path": str(tmp_path), "version": "1.2", "pattern": r"Some MPI (\S+)", **words}


def launcher(question: dict[str, Any], starts: str = WORKS) -> None:
    """Write a launcher that notes how it is started."""
    path = Path(question["path"], "bin/mpirun")
    says = '[ "$1" != --version ] || { echo "Some MPI 1.2"; exit; }'
    path.write_text(f"#!/bin/sh\necho \"$@\" >>'{question['path']}/log'\n{says}\n{starts}\n")
    path.chmod(0o755)


def test_it_is_proven_once(question: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    launcher(question)
    for _run in range(2):
        prove.main(question, Path(question["path"], "proof"))
        assert capsys.readouterr().out == "1.2\n"
    log = Path(question["path"], "log").read_text().splitlines()
    assert log == ["--version", "--some -n 2 printenv RANK"]


@pytest.mark.parametrize(
    ("starts", "change", "says"),
    [
        (WORKS, {"version": "1.3"}, "bin/mpirun should be 1.3, but says: Some MPI 1.2"),
        (WORKS, {"pattern": "Other (.*)", "version": ""}, "should be a launcher of that kind, but says: Some MPI 1.2"),
        (WORKS, {"path": "/no/such"}, "/no/such/bin/mpirun does not run: No such file or directory"),
        ("echo 0", {}, "should start ranks 0 and 1, but says: 0"),
        ("echo '----'; echo 'no slots' >&2; exit 3", {}, "printenv RANK ended with status 3 and said: no slots"),
        ("exec sleep 60", {}, "printenv RANK did not end within 1 s"),
    ],
)
def test_what_does_not_work_is_told_in_a_line(
    question: dict[str, Any], starts: str, change: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove, "SECONDS", 1)
    launcher(question, starts)
    proof = Path(question["path"], "proof")
    with pytest.raises(prove.UnprovenError) as error:
        prove.main({**question, **change}, proof)
    assert says in str(error.value) and "\n" not in str(error.value)
    assert not proof.exists()


# --- package --------------------------------------------------------------------------------------------------------


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the role would ask for: here a package is a directory with a version."""
    programs = tmp_path / "usr/bin"
    programs.mkdir(parents=True)
    for name in ("mpirun.some", "daemon"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    (programs / "notes").write_text("no program\n")
    (tmp_path / "version").write_text("installed 1.2-3")

    def ask(*argv: str) -> str:
        if "--listfiles" in argv:
            return "\n".join(str(path) for path in programs.iterdir())
        return (tmp_path / "version").read_text() if "--show" in argv else ""

    monkeypatch.setattr(package, "ask", ask)
    monkeypatch.setattr(package, "PROGRAMS", f"{programs}/")
    monkeypatch.setattr(package, "was_interrupted", lambda: False)
    wanted = {"role": "some", "path": str(tmp_path / "home/some"), "package": "some-bin", "suffix": ".some"}
    return {**wanted, "disk_mb": 1}


def links(request: dict[str, Any]) -> dict[str, str]:
    return {path.name: path.readlink().name for path in Path(request["path"], "bin").iterdir()}


def test_programs_are_linked_once_under_their_plain_names(request_: dict[str, Any]) -> None:
    seen = package.look(request_)
    assert seen == {"refusals": [], "installed": True, "interrupted": False, "ready": False}
    assert package.try_to_link(request_) == {"changed": True, "error": ""}
    assert links(request_) == {"mpirun": "mpirun.some", "daemon": "daemon"}
    assert package.look(request_)["ready"]
    assert package.try_to_link(request_) == {"changed": False, "error": ""}
    assert sorted(os.listdir(Path(request_["path"]).parent)) == ["some", "some.lock"]


def test_an_environment_gives_way_and_a_stranger_does_not(request_: dict[str, Any]) -> None:
    path = Path(request_["path"])
    path.mkdir(parents=True)
    (path / "mine").write_text("")
    assert package.look(request_)["refusals"] == [
        f"some: {path} exists and is not from torchfleet, so it is left alone: set torchfleet_home to another directory"
    ]
    (path / "pyvenv.cfg").write_text("")
    assert package.look(request_)["refusals"] == []
    assert package.link(request_)
    assert "mpirun" in links(request_)


@pytest.mark.parametrize("state", ["unpacked 1.2-3", "half-installed 1.2-3", ""])
def test_a_package_that_is_not_whole_is_not_installed(request_: dict[str, Any], tmp_path: Path, state: str) -> None:
    package.link(request_)
    (tmp_path / "version").write_text(state)
    seen = package.look(request_)
    assert (seen["installed"], seen["ready"]) == (False, False)


def test_an_upgrade_is_linked_and_proven_anew(request_: dict[str, Any], tmp_path: Path) -> None:
    package.link(request_)
    proof = Path(request_["path"], "torchfleet-proof.txt")
    proof.write_text("1.2")
    (tmp_path / "version").write_text("installed 1.3-1")
    assert package.link(request_)
    assert not proof.exists()
    receipt = json.loads(Path(request_["path"], package.RECEIPT).read_text())
    assert receipt["version"] == "1.3-1"


def test_a_machine_without_apt_is_refused(request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package.shutil, "which", lambda name: None)
    (only,) = package.look(request_)["refusals"]
    assert only == "some: packages are installed with apt, which is not here: set some_install_method to wheel"
