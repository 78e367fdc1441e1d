"""Who a controller is, and what becomes of runs that wait: its own come home, those of others can be had or dropped."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import (
    FETCHED_MARK,
    JobDir,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.supervisor import Supervisor
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller import identity
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import is_of_a_job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.waiting_runs import (
    check_given,
    fate,
    of_others,
    place_for,
)
from tests.unit.nodes import STAGING, order_of_a_job

REPO = Path(__file__).parents[2]
GIVEN: dict[str, Any] = {"job_id": "", "drop_run": False, "drop_after": None, "runs_dir": "runs"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user").mkdir()
    return tmp_path / "user"


def test_an_identity_is_made_once_and_is_private(home: Path) -> None:
    first = identity.identity()
    assert first == identity.identity() and len(first) == 32
    (kept,) = (home / ".torchfleet").iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700


def test_many_that_start_at_once_have_one_identity(home: Path) -> None:
    source = f"from {identity.__name__} import identity\nprint(identity())"
    starts = [
        subprocess.Popen([sys.executable, "-c", source], cwd=REPO / "collections", stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    assert {start.communicate()[0] for start in starts} == {identity.identity() + "\n"}
    assert [path.name for path in (home / ".torchfleet").iterdir()] == ["controller"]


def test_two_users_and_two_machines_of_one_name_are_two_controllers(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = identity.identity()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert identity.identity() != first


@pytest.mark.parametrize("text", [b"", b"localhost\n", b"\xff\xfe", b"0" * 33])
def test_a_file_that_is_no_identity_is_refused(home: Path, text: bytes) -> None:
    (home / ".torchfleet").mkdir()
    (home / ".torchfleet" / "controller").write_bytes(text)
    with pytest.raises(InputError, match="controller: got"):
        identity.identity()


def test_a_home_that_cannot_be_written_gives_an_identity_for_this_run(home: Path) -> None:
    (home / ".torchfleet").write_text("a file in its place")
    with pytest.raises(InputError):
        identity.identity()
    (home / ".torchfleet").unlink()
    (home / ".torchfleet").symlink_to("/proc/none")
    assert len(identity.identity()) == 32


def row(job_id: str, own: bool, days: float = 0.0) -> dict[str, Any]:
    return {"job_id": job_id, "run_dir": "/gone/" + job_id, "state": "lost", "own": own, "seconds": days * 86400}


def test_own_runs_come_home_and_those_of_others_stay() -> None:
    assert fate(row("a", True), GIVEN) == "runs"
    assert fate(row("a", False), GIVEN) == "others"
    assert fate(row("a", False), {**GIVEN, "job_id": "a"}) == "runs"
    assert fate(row("b", False), {**GIVEN, "job_id": "a"}) == "others"


def test_what_is_dropped_was_named_or_is_old_and_somebody_elses() -> None:
    named = {**GIVEN, "job_id": "a", "drop_run": True}
    assert fate(row("a", False), named) == fate(row("a", True), named) == "dropped"
    assert fate(row("b", False), named) == "others"
    old = {**GIVEN, "drop_after": 30.0}
    assert fate(row("a", False, 31), old) == "dropped"
    assert fate(row("a", False, 29), old) == "others"
    assert fate(row("a", True, 31), old) == "runs"
    assert fate(row("a", False, 31), {**old, "job_id": "a"}) == "runs"  # it is asked for


@pytest.mark.parametrize("days", [0.0, -1.0, float("nan")])
def test_no_number_of_days_drops_them_all(days: float) -> None:
    """Reproduced before: -e drop_after=-1 dropped every run of others, and said nothing of it."""
    check_given({**GIVEN, "drop_after": 0.5})
    with pytest.raises(InputError, match=r"drop_after: got .*; give days greater than 0: -e drop_after=30"):
        check_given({**GIVEN, "drop_after": days})
    with pytest.raises(InputError, match="drop_run"):
        check_given({**GIVEN, "drop_run": True})


def test_runs_of_others_are_told_in_one_line() -> None:
    told = of_others([row(f"job-{number}", False, number) for number in range(12)], "n1")
    assert "job-3 (lost, 3 days)" in told and "and 2 more" in told and "\n" not in told
    for way in ("-e job_id=", "-e drop_run=true", "-e drop_after=30"):
        assert way in told


def test_a_run_without_a_plan_here_has_a_directory_only_if_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no plan of this job"):
        place_for(row("a", True), GIVEN)
    assert place_for(row("a", True), {**GIVEN, "job_id": "a"}) == (tmp_path / "runs" / "a", None)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    with pytest.raises(InputError, match="exists already"):
        place_for(row("a", True), {**GIVEN, "job_id": "a"})
    (tmp_path / "runs" / "a" / "diagnosis").mkdir()  # somebody has looked at the job from here
    (tmp_path / "runs" / "a" / "report.html").touch()  # and made its report
    assert place_for(row("a", True), {**GIVEN, "job_id": "a"}) == (tmp_path / "runs" / "a", None)
    (tmp_path / "runs" / "a" / "notes").touch()
    with pytest.raises(InputError, match="exists already"):
        place_for(row("a", True), {**GIVEN, "job_id": "a"})


@pytest.mark.parametrize(
    "name", ["../x", "/x", "ranks/0/../x", "plan.json", "launcher.../x.out", "launcher./.out", "ranks/a/stdout", ""]
)
def test_a_run_that_was_not_planned_here_has_the_files_of_a_job_only(name: str) -> None:
    assert not is_of_a_job(name, None)
    for good in ("launcher.out", "launcher.n1.out", "metrics.jsonl", "result.json", "ranks/12/stderr"):
        assert is_of_a_job(good, None)


class Wire:
    """Keeps what a supervisor answers."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, frame: dict[str, Any]) -> None:
        self.sent.append(frame)


def test_the_head_tells_all_that_wait_and_whose_they_are(tmp_path: Path) -> None:
    for name, controller in (("mine", "a" * 32), ("other", "b" * 32)):
        job = JobDir(str(tmp_path / "jobs" / name))
        job.create([0])
        job.write("order.json", order_of_a_job(controller=controller, run_dir=f"/runs/{name}"))
        job.write("staging.json", STAGING)
        job.write("result.json", {"state": "failed"})
        os.utime(job.at("result.json"), (0, time.time() - 86400))
    wire = Wire()
    head = Supervisor(wire)  # type: ignore[arg-type]
    asked = {"home": str(tmp_path), "controller": "a" * 32, "dry_run": True}
    head.finished.on_collect(asked)
    rows = {found["job_id"]: found for found in wire.sent.pop()["jobs"]}
    assert {name: (found["own"], found["state"]) for name, found in rows.items()} == {
        "mine": (True, "failed"),
        "other": (False, "failed"),
    }
    assert all(86400 <= found["seconds"] < 86500 for found in rows.values())
    head.finished.on_forget({"home": str(tmp_path), "job_id": "other"})
    assert wire.sent.pop() == {"kind": "forgotten", "missing": []}
    other = tmp_path / "jobs" / "other"
    assert (other / FETCHED_MARK).exists() and not (other / "ranks").exists()
    head.finished.on_collect(asked)
    assert [found["job_id"] for found in wire.sent.pop()["jobs"]] == ["mine"]
    head.finished.on_forget({"home": str(tmp_path), "job_id": "never-was"})
    assert not (tmp_path / "jobs" / "never-was").exists()
    json.dumps(wire.sent)


def test_a_job_that_runs_is_neither_collected_nor_forgotten(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([0])
    job.write("order.json", order_of_a_job())
    job.write("staging.json", STAGING)
    wire, lock = Wire(), job.lock()
    head = Supervisor(wire)  # type: ignore[arg-type]
    head.finished.on_collect({"home": str(tmp_path), "controller": "c", "dry_run": False})
    assert wire.sent.pop() == {"kind": "waiting", "jobs": []}
    head.finished.on_forget({"home": str(tmp_path), "job_id": "one"})
    assert wire.sent.pop() == {"kind": "forgotten", "missing": ["it still runs"]}
    assert os.path.isdir(job.at("ranks")) and not os.path.exists(job.at(FETCHED_MARK))
    assert job.end() is None and job.read("result.json") is None
    os.close(lock)


def test_check_mode_writes_no_result_of_a_job_whose_guardians_are_gone(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([0])
    job.write("order.json", order_of_a_job(home=str(tmp_path)))
    job.write("staging.json", STAGING)
    wire = Wire()
    head = Supervisor(wire)  # type: ignore[arg-type]
    for dry_run in (True, False):
        head.finished.on_collect({"home": str(tmp_path), "controller": "c", "dry_run": dry_run})
        (row,) = wire.sent.pop()["jobs"]
        assert row["state"] == "lost" and (job.read("result.json") is None) is dry_run
        assert (job.end() is None) is dry_run
