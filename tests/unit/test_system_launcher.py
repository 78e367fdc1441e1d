"""Links to the programs of a distribution's MPI. Here a package is a directory with a version."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._software import system_launcher as launcher
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.system_launcher import Request


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    """What a role asks for."""
    programs = tmp_path / "usr/bin"
    programs.mkdir(parents=True)
    for name in ("mpirun.some", "daemon"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    (programs / "notes").write_text("no program\n")
    (tmp_path / "version").write_text("1.2-3")
    (tmp_path / "apt-get").touch()
    monkeypatch.setattr(launcher, "APT", str(tmp_path / "apt-get"))
    monkeypatch.setattr(launcher, "PROGRAMS", f"{programs}/")
    monkeypatch.setattr(launcher, "files_of", lambda package: [str(path) for path in programs.iterdir()])
    monkeypatch.setattr(launcher, "installed_version", lambda package: (tmp_path / "version").read_text())
    return Request("some", tmp_path / "home/some", "some-bin", ".some", 1)


def links(request: Request) -> dict[str, str]:
    return {path.name: path.readlink().name for path in (request.place / "bin").iterdir()}


def test_programs_are_linked_once_under_their_plain_names(request_: Request) -> None:
    assert launcher.refusals(request_) == []
    assert not launcher.is_linked(request_)
    (diff,) = launcher.difference(request_)
    assert launcher.link(request_)
    assert diff["before"] == "" and [line.split(" -> ")[0] for line in diff["after"].splitlines()] == [
        "daemon",
        "mpirun",
    ]
    assert links(request_) == {"mpirun": "mpirun.some", "daemon": "daemon"}
    assert launcher.is_linked(request_)
    assert not launcher.link(request_)
    assert sorted(os.listdir(request_.path.parent)) == ["some.lock", "versions"]


def test_an_environment_gives_way_and_a_stranger_does_not(request_: Request) -> None:
    request_.path.mkdir(parents=True)
    (request_.path / "mine").write_text("")
    assert launcher.refusals(request_) == [
        f"some: {request_.path} exists and is not from torchfleet, so it is left alone: "
        "set torchfleet_home to another directory"
    ]
    (request_.path / "pyvenv.cfg").write_text("")
    assert launcher.refusals(request_) == []
    assert launcher.link(request_)
    assert "mpirun" in links(request_)


def test_links_to_a_package_that_is_no_longer_whole_are_none(request_: Request, tmp_path: Path) -> None:
    launcher.link(request_)
    (tmp_path / "version").write_text("")
    assert not launcher.is_linked(request_)


def test_a_link_that_was_changed_is_mended(request_: Request) -> None:
    launcher.link(request_)
    (request_.place / "bin/daemon").unlink()
    assert launcher.link(request_)
    assert links(request_) == {"mpirun": "mpirun.some", "daemon": "daemon"}


def test_an_upgrade_is_linked_and_proven_anew(request_: Request, tmp_path: Path) -> None:
    launcher.link(request_)
    proof = request_.place / "torchfleet-proof.txt"
    proof.write_text("1.2")
    (tmp_path / "version").write_text("1.3-1")
    assert launcher.link(request_)
    assert proof.exists() and not (request_.place / proof.name).exists()
    assert json.loads((request_.place / launcher.RECEIPT).read_text())["version"] == "1.3-1"


def test_what_an_interrupted_run_left_is_in_nobodys_way(request_: Request) -> None:
    launcher.link(request_)
    request_.place.rename(request_.place.with_name(request_.version + ".new"))
    assert launcher.link(request_)
    assert sorted(os.listdir(request_.path.parent)) == ["some.lock", "versions"]


def test_a_machine_without_apt_is_refused(request_: Request, tmp_path: Path) -> None:
    (tmp_path / "apt-get").unlink()
    (only,) = launcher.refusals(request_)
    assert only == (
        "some: packages are installed with apt, and this machine has no apt: set some_install_method to wheel"
    )


def test_a_full_disk_is_refused_before_the_package_is_installed(request_: Request, tmp_path: Path) -> None:
    large = request_._replace(disk_mb=10**9)
    assert launcher.refusals(large) == []
    (tmp_path / "version").write_text("")
    (only,) = launcher.refusals(large)
    assert only.startswith("some: some-bin needs 1000000000 MB in /usr, where ") and only.endswith(" free: make room")


def test_a_directory_that_nobody_may_write_to_is_refused(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root does not find one: the answer of the system is replaced."""
    monkeypatch.setattr(launcher.os, "access", lambda path, mode: mode == os.X_OK)
    (only,) = launcher.refusals(request_)
    near = request_.path.parents[1]
    assert only == f"some: no permission to write in {near}: set torchfleet_home to another directory"


def test_a_link_in_place_of_the_directory_is_refused(request_: Request, tmp_path: Path) -> None:
    """What it leads to would be replaced, or the link alone, and the next upgrade would fail."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    request_.path.parent.mkdir()
    request_.path.symlink_to(elsewhere)
    assert launcher.refusals(request_) == [
        f"some: {request_.path} is a symbolic link: set torchfleet_home to a directory of its own"
    ]
