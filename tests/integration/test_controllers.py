"""Two controllers with one account on the nodes: neither fetches the other's runs, and what one left can be had."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from test_ending import parent

from tests.driver import SCRIPTS, pids
from tests.integration.fleet import Fleet, Started

SLEEPER = str(SCRIPTS / "sleeper.py")


def left_behind(fleet: Fleet, job_id: str) -> Started:
    """Return a run whose controller died with all its processes, and whose result waits on the head."""
    started = fleet.start(workload=SLEEPER, np=1, job_id=job_id)
    started.wait_for_output(0, "up")
    for pid in [pid for pid in pids() if parent(pid) == started.process.pid] + [started.process.pid]:
        os.kill(pid, signal.SIGKILL)
    started.process.wait()
    started.wait_until((started.job_dir / "result.json").exists)
    return started


def test_the_runs_of_another_controller_are_listed_and_can_be_fetched_or_dropped(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in ("first", "second"):
        left_behind(fleet, job_id)
    shutil.rmtree(fleet.runs)  # the container of the CI is gone
    mine = os.environ["HOME"]
    monkeypatch.setenv("HOME", str(tmp_path))
    listed = fleet.play("clean.yml")
    assert listed.rc == 0, listed.stdout
    assert "of other controllers on localhost: " in listed.stdout
    assert "first (lost, 0 days)" in listed.stdout and "second (lost, 0 days)" in listed.stdout
    assert not fleet.runs.exists()
    fetched = fleet.play("clean.yml", job_id="first")
    assert fetched.rc == 0, fetched.stdout
    assert "up" in (fleet.runs / "first" / "ranks" / "0" / "stdout").read_text()
    dropped = fleet.play("clean.yml", job_id="second", drop_run=True)
    assert dropped.rc == 0 and "job second lost; dropped" in dropped.stdout, dropped.stdout
    assert not (fleet.runs / "second").exists()
    fleet.play("clean.yml")
    assert not any((fleet.home / "jobs").iterdir())
    monkeypatch.setenv("HOME", mine)
    assert "of other controllers" not in fleet.play("clean.yml").stdout


def test_check_mode_of_clean_names_what_waits_and_fetches_nothing(fleet: Fleet) -> None:
    played = fleet.play(workload="/bin/true", np=1, job_id="waits")
    assert played.run_dir is not None
    (fleet.home / "jobs" / "waits" / "fetched").unlink()  # the controller was killed before it had the files
    for name in ("fetched.json", "result.json", "report.html"):
        (played.run_dir / name).unlink()
    for check in (True, False):
        cleaned = fleet.play("clean.yml", check=check)
        assert f"job waits succeeded; run: {played.run_dir}" in cleaned.stdout, cleaned.stdout
        assert (played.run_dir / "result.json").exists() is not check
    assert "succeeded in" in (played.run_dir / "report.html").read_text()


def test_a_run_that_is_home_is_not_fetched_again(fleet: Fleet) -> None:
    """Reproduced before: a head that offered it once more wrote over its files."""
    played = fleet.play(workload="/bin/true", np=1, job_id="home")
    assert played.run_dir is not None and (played.run_dir / "fetched.json").exists()
    there = fleet.home / "jobs" / "home"
    before = (played.run_dir / "result.json").read_bytes()
    (there / "fetched").unlink()  # the mark that the controller has it
    (there / "result.json").write_text(json.dumps({**json.loads(before), "state": "lost"}))
    for check in (True, False):
        cleaned = fleet.play("clean.yml", check=check)
        assert cleaned.rc == 0, cleaned.stdout
        assert "job home lost; was already fetched" in cleaned.stdout
        assert (there / "fetched").exists() is not check
    assert (played.run_dir / "result.json").read_bytes() == before
    assert "was already fetched" not in fleet.play("clean.yml").stdout
