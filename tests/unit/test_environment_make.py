"""How pip is called to make an environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._software import environment_files, environment_make
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment import Lock
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software import wheel_download
from tests.wheels import request_for

INDEX = "https://me:secret@mirror/simple"
Calls = list[tuple[list[str], str]]  # each with the index of its environment


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The programs that are run, in place of running them."""
    found: Calls = []

    def run(argv: list[str], **given: Any) -> subprocess.CompletedProcess[Any]:
        found.append((argv, (given.get("env") or {}).get("PIP_INDEX_URL", "")))
        return subprocess.CompletedProcess(argv, 1 if "--no-index" in argv else 0, b"", "")

    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.setattr(subprocess, "run", run)
    return found


@pytest.mark.parametrize("lock", [Lock(), Lock(lines=["tiny==1.0 --hash=sha256:0"], of_the_build=["tiny"], more=["x"])])
def test_the_password_of_an_index_is_on_no_command_line(tmp_path: Path, calls: Calls, lock: Lock) -> None:
    request = request_for(tmp_path, packages=["tiny==1.0", "x"], index_url=INDEX, lock="0" if lock.lines else "")
    environment_make.install(replace(request, locked=lock), str(tmp_path))
    assert [index for argv, index in calls if "tiny==1.0" in argv] == [INDEX]
    assert [index for argv, index in calls if "x" in argv] == [""]
    assert not [word for argv, _index in calls for word in argv if "secret" in word]


def test_nor_where_the_controller_downloads(tmp_path: Path, calls: Calls) -> None:
    wanted = wheel_download.Download(["tiny==1.0", "x"], str(tmp_path), INDEX, {}, tmp_path)
    wheel_download.download(wanted, "3.11", "2.36", "x86_64", lambda: False)
    assert [index for _argv, index in calls] == ["", INDEX, ""]
    assert not [word for argv, _index in calls for word in argv if "secret" in word]


# --- locks and leftovers ----------------------------------------------------------------------------------------------


def link(lock: Path) -> None:
    lock.symlink_to(lock.with_name("precious"))


def pipe(lock: Path) -> None:
    os.mkfifo(lock)


def directory(lock: Path) -> None:
    lock.mkdir()


@pytest.mark.parametrize("make", [link, pipe, directory])
def test_a_lock_that_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Reproduced before: the file that a link led to was emptied."""
    (tmp_path / "precious").write_text("words")
    make(tmp_path / "venv.lock")
    with (
        pytest.raises(OSError, match=r"venv\.lock is not a lock file of this user: remove it"),
        environment_files.locked(tmp_path / "venv"),
    ):
        pass
    assert (tmp_path / "precious").read_text() == "words"


def test_a_lock_of_another_user_is_refused_and_a_file_is_not_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "venv.lock"
    lock.write_text("words")
    with environment_files.locked(tmp_path / "venv"):
        assert lock.read_text() == "words"
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(OSError, match="is not a lock file of this user"), environment_files.locked(tmp_path / "venv"):
        pass


def test_what_an_interrupted_installation_left_goes_with_the_next_one(tmp_path: Path) -> None:
    request = request_for(tmp_path, packages=[])
    place = request.place.parent
    for name in (".venv.brought-abcdefgh/wheels", ".venv.build-abcdefgh", ".venv2.brought-abcdefgh"):
        (place / name).mkdir(parents=True)
    (place / "venv.brought.tar").touch()
    assert environment_make.try_to_make(request)["error"] == ""
    assert sorted(os.listdir(place)) == [".venv2.brought-abcdefgh", "venv", "venv.lock"]
