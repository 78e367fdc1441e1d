"""A Python of our own on nodes whose Python is too old: who gets it, from where, and what an archive may not do."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.action import standalone_python as action
from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.base_python import python_facts
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import archive, standalone
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment_files import NotMadeError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import standalone as choice
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Limits
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software import versions_file
from tests.unit.recorded_nodes import RECORDED, judged, two_nodes

REPO = Path(__file__).parents[2]
VERSION = "{}.{}.0".format(*sys.version_info[:2])
PROGRAM = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
Members = list[tuple[str, str, str]]  # name, kind, text or target
GOOD: Members = [
    ("python", "dir", ""),
    ("python/bin", "dir", ""),
    ("python/bin/python3.99", "program", PROGRAM),
    ("python/bin/python3", "symlink", "python3.99"),
    ("python/lib/python3.99/os.py", "file", "# nothing\n"),
    ("python/lib/second", "link", "python/lib/python3.99/os.py"),
    ("python/lib64", "symlink", "lib"),
]
KINDS = {"dir": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE, "link": tarfile.LNKTYPE, "device": tarfile.CHRTYPE}


def packed(path: Path, members: Members) -> str:
    """Write an archive. Return its checksum."""
    with tarfile.open(path, "w:gz") as tar:
        for name, kind, text in members:
            member = tarfile.TarInfo(name)
            member.type = KINDS.get(kind, tarfile.REGTYPE)
            member.mode, member.uid = (0o6777 if kind == "program" else 0o666), 12345
            data = text.encode() if kind in ("file", "program") else b""
            member.size, member.linkname = len(data), "" if data else text
            tar.addfile(member, io.BytesIO(data))
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- the archive ------------------------------------------------------------------------------------------------------


def test_it_is_unpacked_as_it_is(tmp_path: Path) -> None:
    packed(tmp_path / "a.tar.gz", GOOD)
    (tmp_path / "there").mkdir()
    archive.unpack(str(tmp_path / "a.tar.gz"), tmp_path / "there")
    program = tmp_path / "there/bin/python3"
    assert program.is_symlink() and program.read_text() == PROGRAM
    assert program.stat().st_mode & 0o7777 == 0o755, "no more than its mode here: no setuid"
    assert (tmp_path / "there/lib/second").stat().st_ino == (tmp_path / "there/lib/python3.99/os.py").stat().st_ino


@pytest.mark.parametrize(
    "bad",
    [
        ("/etc/cron.d/x", "file", "x"),
        ("python/../../x", "file", "x"),
        ("python/../x", "file", "x"),
        ("elsewhere/x", "file", "x"),
        ("python//x", "file", "x"),
        ("python/out", "symlink", "/etc"),
        ("python/out", "symlink", "../etc"),
        ("python/lib/out", "symlink", "../../../etc"),
        ("python/lib/out", "symlink", "python3.99/../../bin"),  # up after down: it may pass a link
        ("python/bin/python3/x", "file", "through a link that came before"),
        ("python/lib64/x", "file", "through a link to a directory"),
        ("python/bin/python3", "file", "in the place of a link"),
        ("python/null", "device", ""),
        ("python/second", "link", "/etc/passwd"),
        ("python/second", "link", "python/../../etc/passwd"),
        ("python/second", "link", "python/bin/python3"),
        ("python/second", "link", "python/not-there"),
        ("python/second", "link", "python/lib64/python3.99/os.py"),  # through a link to a directory
        ("python/lib/python3.99/os.py", "file", "twice"),
    ],
)
def test_nothing_of_it_lies_elsewhere(tmp_path: Path, bad: tuple[str, str, str]) -> None:
    packed(tmp_path / "a.tar.gz", [*GOOD, bad])
    there = tmp_path / "home/python"
    there.mkdir(parents=True)
    with pytest.raises(NotMadeError) as refused:
        archive.unpack(str(tmp_path / "a.tar.gz"), there)
    assert len(str(refused.value).splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "home"]
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["python"]


def test_an_archive_that_is_none_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tar.gz"
    for text in (b"no archive", gzip.compress(b"no tar file")):
        path.write_bytes(text)
        with pytest.raises(NotMadeError, match="could not be unpacked"):
            archive.unpack(str(path), tmp_path)
    packed(path, GOOD)
    for name, most in (("MOST_FILES", 3), ("MOST_BYTES", 10)):
        with monkeypatch.context() as patch, pytest.raises(NotMadeError, match="has more than"):
            patch.setattr(archive, name, most)
            archive.unpack(str(path), tmp_path / name)


# --- on the node ------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def made(home: Path, version: str = VERSION, members: Members = GOOD, sha256: str = "") -> bool:
    path = home / "archive.tar.gz"
    digest = packed(path, members)
    try:
        return standalone.make(str(home), version, str(path), sha256 or digest)
    finally:
        assert not path.exists(), "what was brought is removed"


def test_it_is_there_once_it_is_whole(home: Path) -> None:
    assert standalone.usual("", str(home)) == sys.executable
    assert made(home) is True
    assert made(home) is False
    assert standalone.newest(str(home)) == VERSION
    assert standalone.usual("", str(home)) == f"{home}/python-{VERSION}/bin/python3"
    assert standalone.usual("/usr/bin/other", str(home)) == "/usr/bin/other"
    about = python_facts("", str(home))
    assert (about["standalone"], about["path"]) == (VERSION, f"{home}/python-{VERSION}/bin/python3")


@pytest.mark.parametrize(
    ("version", "members", "sha256", "why"),
    [
        (VERSION, GOOD, "0" * 64, "did not arrive whole"),
        ("2.7.18", GOOD, "", "is not 2.7.18"),
        (VERSION, GOOD[:2], "", "does not run here"),
        (VERSION, [*GOOD, ("/etc/x", "file", "x")], "", "may not be in an archive"),
    ],
)
def test_what_went_wrong_leaves_nothing(home: Path, version: str, members: Members, sha256: str, why: str) -> None:
    with pytest.raises(NotMadeError, match=why):
        made(home, version, members, sha256)
    assert standalone.newest(str(home)) == ""
    assert not (home / f"python-{version}").exists()


def test_a_full_disk_is_said_before(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standalone, "free_mb", lambda _path: 7)
    with pytest.raises(NotMadeError, match=r"Python needs 500 MB in .*home, where 7 MB are free"):
        made(home)


def test_the_newest_version_is_taken_by_its_number(home: Path) -> None:
    for version in ("3.9.20", "3.12.4", "3.12.13"):
        (home / f"python-{version}").mkdir()
        (home / f"python-{version}" / standalone.RECEIPT).write_text("{}")
    (home / "python-3.13.0").mkdir()  # interrupted
    assert standalone.newest(str(home)) == "3.12.13"


# --- who gets it ------------------------------------------------------------------------------------------------------

OLD = {"path": "/usr/bin/python3", "version": "3.9.2", "venv": True, "headers": False, "standalone": ""}
NEW = {**OLD, "version": "3.11.2"}
OURS = {**OLD, "version": "3.12.13", "standalone": "3.12.13"}


@pytest.mark.parametrize(
    ("switch", "pythons", "wanted"),
    [
        ("auto", [NEW, NEW], False),
        ("auto", [NEW, OLD], True),
        ("auto", [NEW, {**NEW, "venv": False}], True),
        ("auto", [NEW, {**NEW, "version": ""}], True),
        ("auto", [NEW, {**NEW, "version": "3.15.0"}], True),
        ("auto", [OURS, NEW], True),
        ("true", [NEW], True),
        ("false", [OLD, OURS], False),
    ],
)
def test_all_nodes_get_it_if_one_needs_it(switch: str, pythons: list[dict[str, Any]], wanted: bool) -> None:
    assert choice.is_wanted(switch, dict(enumerate_names(pythons)), "3.11", "3.14") is wanted


def enumerate_names(pythons: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [(f"n{count}", python) for count, python in enumerate(pythons)]


def test_another_switch_or_machine_is_refused() -> None:
    with pytest.raises(InputError, match=r"prerequisites_python: got .*; give one of auto, true, false"):
        choice.is_wanted("maybe", {}, "3.11", "3.14")
    with pytest.raises(InputError, match="there is one for aarch64 and x86_64 only: install Python yourself"):
        choice.source_for("riscv64", {"x86_64": {}, "aarch64": {}}, "https://mirror.example")


def test_every_machine_with_wheels_has_a_source_with_a_checksum() -> None:
    lock = versions_file.read_lock(str(REPO / "versions.yml"))
    for machine in ("x86_64", "aarch64"):
        source = versions_file.entry(lock, f"cpython.{machine}.source")
        found = choice.source_for(machine, {machine: source}, lock["cpython"]["mirror"])
        assert found["url"].startswith("https://") and found["url"].endswith(f"/{found['file']}")
        assert machine in found["file"] and source["version"] in found["file"]
        assert Limits().python_min <= source["version"].rpartition(".")[0] <= Limits().python_max


def test_preflight_tells_what_setup_brings() -> None:
    old = two_nodes(python__version="3.9.2")
    auto = Limits(prerequisites={"python": "auto", **dict.fromkeys(("rdma", "limits", "clock", "logins"), "false")})
    auto = Limits(prerequisites={**auto.prerequisites, "ssh_client": "false"})
    (finding,) = [each for each in judged(old, auto) if each.id == "TF-PYTHON-TORCH"]
    assert finding.severity == "info" and "brings a Python of its own to all nodes" in finding.mend
    (finding,) = [each for each in judged(old) if each.id == "TF-PYTHON-TORCH"]
    assert finding.severity == "error"


# --- the action -------------------------------------------------------------------------------------------------------


class Node(action.ActionModule):
    """The action, on a node that takes what it is brought."""

    def __init__(self, check: bool = False) -> None:
        self._task = SimpleNamespace(check_mode=check)
        self.brought, self.orders = list[tuple[str, str]](), list[dict[str, Any]]()

    def bring_file(self, source: str, there: str, variables: dict[str, Any]) -> dict[str, Any]:
        self.brought.append((source, there))
        return {"changed": True}

    def answer(self, variables: dict[str, Any], options: dict[str, Any] | None = None) -> dict[str, Any]:
        self.orders.append(options or {})
        return {"changed": True, "python": "3.12.13"}


@pytest.fixture
def act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Give the action on n2, of whose archive the wheelhouse has a file."""
    monkeypatch.setattr(action.constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    (tmp_path / "house").mkdir()
    digest = packed(tmp_path / "house/cpython.tar.gz", GOOD)
    source = {"version": "3.12.13", "url": "x/cpython.tar.gz", "file": "cpython.tar.gz", "sha256": digest}
    wheelhouse = str(tmp_path / "house")

    def run(node: Node, n1: dict[str, Any], n2: dict[str, Any], **more: Any) -> dict[str, Any]:
        seen = {name: {"facts": {**RECORDED[name], "python": python}} for name, python in (("n1", n1), ("n2", n2))}
        hostvars = {name: {"preflight_seen": answer} for name, answer in seen.items()}
        limits = {"python_min": "3.11", "python_max": "3.14", "switch": "auto"}
        given = {**limits, "sources": {"x86_64": source}, "mirror": "https://m.example", "home": "~/.torchfleet"}
        given |= {"seen": seen["n2"], "wheelhouse": wheelhouse, "wheelhouse_fill": False, **more}
        groups = {"head": ["n1"], "workers": ["n1", "n2"]}
        names = {"inventory_hostname": "n2", "groups": groups, "ansible_play_hosts_all": ["n1", "n2"]}
        return node.act(given, {**names, "hostvars": hostvars})

    return run


def test_a_node_gets_what_another_one_needs(act: Callable[..., dict[str, Any]]) -> None:
    node = Node()
    assert act(node, OLD, NEW) == {"changed": True, "python": "3.12.13"}
    home = RECORDED["n2"]["home"]["path"]
    assert node.brought[0][1] == node.orders[0]["archive"] == f"{home}/python-3.12.13.tar.gz"


def test_nobody_is_brought_what_is_there_or_is_not_needed(act: Callable[..., dict[str, Any]]) -> None:
    node = Node()
    assert act(node, NEW, NEW) == {"changed": False, "python": ""}
    assert act(node, OLD, OURS) == {"changed": False, "python": "3.12.13"}
    assert act(Node(check=True), OLD, NEW) == {"changed": True, "python": "3.12.13"}
    assert node.brought == []


def test_an_archive_that_cannot_be_had_is_said(act: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "house/cpython.tar.gz").write_bytes(b"of somebody else")
    node = Node()
    found = act(node, OLD, OLD)
    assert found["failed"] and found["msg"] == (
        f"prerequisites: {tmp_path}/house has no cpython.tar.gz with the checksum of versions.yml: "
        "download it with -e prerequisites_wheelhouse_fill=true"
    )
    assert node.brought == []


def test_a_receipt_says_what_is_there(home: Path) -> None:
    made(home)
    receipt = json.loads((home / f"python-{VERSION}" / standalone.RECEIPT).read_text())
    assert receipt["python"] == VERSION and len(receipt["sha256"]) == 64
