"""Workloads, the ids of jobs, and the directory of a run on the controller."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import (
    JOB_ID,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import run_directory


def test_workloads_are_found_by_name_or_path(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "_helper.py").touch()
    assert run_directory.find_workload("train", tmp_path) == str(tmp_path / "train.py")
    assert run_directory.find_workload(str(tmp_path / "train.py"), tmp_path / "none") == str(tmp_path / "train.py")
    for name, text in (("_helper", "give one of train, or"), ("none.py", "no such"), (str(tmp_path), "not a file")):
        with pytest.raises(InputError, match=text):
            run_directory.find_workload(name, tmp_path)


def test_a_workload_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)  # root, as in CI, may read everything
    with pytest.raises(InputError, match=r"cannot be read: chmod \+r"):
        run_directory.find_workload(str(tmp_path / "mine.py"), tmp_path / "none")


@pytest.mark.parametrize("name", ["x" * 300, "~nobody-of-this-name/x.py", "/dev/null/x.py"])
def test_paths_that_cannot_be_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="workload"):
        run_directory.find_workload(name, tmp_path)
    if name != "/dev/null/x.py":
        with pytest.raises(InputError, match="runs_dir"):
            run_directory.check_run_dir(name, "job")


def test_run_directory(tmp_path: Path) -> None:
    run_dir = run_directory.check_run_dir(str(tmp_path / "runs"), "one")
    run_directory.make_run_dir(run_dir, {"plan.json": "{}"})
    assert (tmp_path / "runs" / "latest" / "plan.json").read_text() == "{}"
    assert run_dir.stat().st_mode & 0o777 == 0o700
    with pytest.raises(InputError, match="exists already"):
        run_directory.check_run_dir(str(tmp_path / "runs"), "one")
    second = run_directory.check_run_dir(str(tmp_path / "runs"), "two")
    run_directory.make_run_dir(second, {})
    assert (tmp_path / "runs" / "latest").resolve() == second
    run_directory.remove_run_dir(second)
    assert not second.exists() and not (tmp_path / "runs" / "latest").is_symlink()


def test_nobody_can_be_in_the_way_of_the_link_to_the_latest_run(tmp_path: Path) -> None:
    """Reproduced before: in a directory for all, somebody who had taken `.latest.<pid>` had the job refused."""
    taken = tmp_path / f".latest.{os.getpid()}"
    taken.mkdir()
    run_directory.make_run_dir(tmp_path / "one", {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [taken.name, "latest", "one"]
    assert os.readlink(tmp_path / "latest") == "one"


@pytest.mark.parametrize(
    ("text", "home"),
    [
        ('{"missing": []}', True),
        ('{"missing": ["n2: gone"]}', False),
        ("", False),
        ("[]", False),
        ('{"missing": 0}', False),
    ],
)
def test_a_run_is_home_when_nothing_is_missing(tmp_path: Path, text: str, home: bool) -> None:
    assert not run_directory.is_fetched(tmp_path)
    (tmp_path / "fetched.json").write_text(text)
    assert run_directory.is_fetched(tmp_path) is home


def test_the_run_of_another_controller_goes_where_nothing_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_directory.fetched_run("one", str(tmp_path)) == tmp_path / "one"
    (tmp_path / "linked").symlink_to(tmp_path / "nowhere")
    (tmp_path / "made" / "diagnosis").mkdir(parents=True)
    assert run_directory.fetched_run("made", str(tmp_path)) == tmp_path / "made"
    (tmp_path / "made" / "plan.json").touch()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "diagnosis").symlink_to(tmp_path / "made")
    for name in ("linked", "made", "odd"):
        with pytest.raises(InputError, match="exists already"):
            run_directory.fetched_run(name, str(tmp_path))
    monkeypatch.setattr(run_directory.shutil, "disk_usage", lambda _path: SimpleNamespace(free=1000))
    assert run_directory.room_for(tmp_path) == 500  # a head cannot fill the disk


def test_job_ids_are_new_and_valid() -> None:
    ids = {run_directory.new_job_id("/x/my naïve train$(script).py") for _ in range(50)}
    assert len(ids) == 50
    assert all(JOB_ID.match(name) for name in ids)


def test_two_playbooks_do_not_write_into_one_run_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """train.yml and jobs.yml may follow one job to its end: each truncated and appended to the files of the other."""
    asked: list[bool] = []

    def third_time() -> bool:
        asked.append(len(asked) == 2)
        return asked[-1]

    with run_directory.written_alone(tmp_path):
        with run_directory.written_alone(tmp_path, third_time):
            assert asked == [False, False, True]
        monkeypatch.setattr(run_directory, "WRITER_SECONDS", 0.0)
        with pytest.raises(TimeoutError, match="another ansible-playbook"), run_directory.written_alone(tmp_path):
            pass
    for path in (tmp_path, tmp_path / "removed meanwhile"):
        with run_directory.written_alone(path):
            pass
