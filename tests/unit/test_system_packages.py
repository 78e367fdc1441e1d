"""Packages of the distribution, with programs of our own in the place of apt and dpkg."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.action import system_packages as action
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import system_packages as packages

Writer = Callable[..., None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """Give a function that writes a program which notes its arguments in `log` and does the rest of a script."""
    monkeypatch.setattr(packages, "PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(packages, "APT", f"{tmp_path}/apt-get")
    monkeypatch.setattr(packages, "UPDATES", tmp_path / "updates")
    monkeypatch.setattr(packages, "PAUSES", (0.0, 0.0))

    def write(name: str, script: str = "") -> None:
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/log\n{script}\n')
        path.chmod(0o755)

    write("dpkg")
    return write


def calls(tmp_path: Path) -> list[str]:
    """Return what was called, without options."""
    lines = (tmp_path / "log").read_text().splitlines()
    return [
        " ".join(word for word in line.split() if not word.startswith(("DPkg", "APT", "--option"))) for line in lines
    ]


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ("echo 'installed 1.2-3'", "1.2-3"),
        ("echo 'unpacked 1.2-3'", ""),
        ("echo 'half-installed 1.2-3'", ""),
        ("echo 'config-files 1.2-3'", ""),
        ("echo 'dpkg-query: no packages found' >&2; exit 1", ""),
    ],
)
def test_a_package_that_is_not_whole_is_missing(program: Writer, says: str, version: str) -> None:
    program("dpkg-query", says)
    assert packages.installed_version("some") == version
    assert packages.missing(["some"]) == ([] if version else ["some"])


def test_without_dpkg_everything_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "PATH", str(tmp_path))
    assert packages.missing(["some", "other"]) == ["some", "other"]
    assert packages.files_of("some") == []


def test_what_is_missing_is_installed_and_an_interrupted_installation_is_finished_first(
    program: Writer, tmp_path: Path
) -> None:
    program("apt-get")
    packages.install(["some", "other"])
    apart = ["apt-get update", "apt-get --yes --no-install-recommends install -- some other"]
    assert calls(tmp_path) == ["dpkg --audit", *apart]
    (tmp_path / "log").unlink()
    (tmp_path / "updates").mkdir()
    (tmp_path / "updates/0001").touch()
    packages.install(["some"])
    assert calls(tmp_path)[1] == "dpkg --force-confdef --force-confold --configure -a"
    program("dpkg", "echo 'The following packages are only half configured'")
    (tmp_path / "updates/0001").unlink()
    assert packages.was_interrupted()


def test_a_list_that_another_apt_is_at_is_asked_for_again(program: Writer, tmp_path: Path) -> None:
    once = f'[ "$1" != update ] || [ -e {tmp_path}/free ] || {{ touch {tmp_path}/free; exit 100; }}'
    program("apt-get", once)
    packages.install(["some"])
    assert [call for call in calls(tmp_path) if "apt-get" in call][:2] == ["apt-get update"] * 2


def test_the_errors_of_apt_are_told_in_one_line(program: Writer) -> None:
    install = 'echo "Reading..."; echo "E:  Unable to locate  package some" >&2; exit 100'
    program("apt-get", f"[ $1 != update ] || {{ echo 'W: Failed to fetch http://x'; exit; }}\n{install}")
    with pytest.raises(packages.NotInstalled) as error:
        packages.install(["some"])
    assert str(error.value) == "E: Unable to locate package some; W: Failed to fetch http://x"
    program("apt-get", '[ "$1" = update ] || exit 7')
    with pytest.raises(packages.NotInstalled, match="apt-get ended with status 7"):
        packages.install(["some"])


# --- root ------------------------------------------------------------------------------------------------------------


class Node(action.ActionModule):
    """The action, with a node that answers as a test says."""

    def __init__(self, answers: dict[str, Any], sudo: dict[str, Any]) -> None:
        self.answers, self.sudo, self.asked = answers, sudo, list[str]()
        self._connection = self
        self.become: object | None = "sudo"

    def set_become_plugin(self, plugin: object | None) -> None:
        self.become = plugin

    def answer(self, variables: dict[str, Any]) -> dict[str, Any]:
        who = "root" if self.become else "user"
        self.asked.append(who)
        return dict(self.answers[who])

    def _low_level_execute_command(self, command: str) -> dict[str, Any]:
        assert self.become and command == "true"
        return self.sudo

    def act_so(self) -> dict[str, Any]:
        given = {"role": "some", "names": ["a", "b"], "hint": "set some_install_method to wheel"}
        return self.act(given, {"inventory_hostname": "n1"})


NEEDS = {"failed": True, "needs_root": True, "msg": "only root"}
INSTALLED = {"changed": True, "missing": ["a"]}


@pytest.mark.parametrize("seen", [{"changed": False, "missing": []}, {"failed": True, "msg": "no apt"}])
def test_nobody_becomes_root_where_nothing_is_missing_or_nothing_can_be_done(seen: dict[str, Any]) -> None:
    node = Node({"user": seen}, {})
    assert node.act_so() == seen
    assert node.asked == ["user"] and node.become == "sudo"


def test_root_installs_what_is_missing() -> None:
    node = Node({"user": NEEDS, "root": INSTALLED}, {"rc": 0})
    assert node.act_so() == INSTALLED
    assert node.asked == ["user", "root"]


def test_where_nobody_can_become_root_it_is_said_what_to_do() -> None:
    node = Node({"user": NEEDS}, {"rc": 1, "stderr": "sudo: fleet is not\n in the sudoers \x1b[31mfile"})
    found = node.act_so()
    assert found["failed"]
    assert found["msg"] == (
        "some: a, b would be installed as root, and there is no way to become root on n1 "
        "(sudo: fleet is not in the sudoers [31mfile): set some_install_method to wheel"
    )
    assert node.asked == ["user"]
