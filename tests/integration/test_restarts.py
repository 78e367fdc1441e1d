"""Jobs that are longer than their time: told before the end, saved, started again, and each attempt on record."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.driver import SCRIPTS
from tests.integration.fleet import Fleet

RESUMES = str(SCRIPTS / "resumes.py")


@pytest.mark.parametrize("launcher", ["openmpi", "torchrun"])
def test_a_program_that_saves_in_time_is_started_again_until_it_is_done(fleet: Fleet, launcher: str) -> None:
    words = ["alone"] if launcher == "openmpi" else []  # a rank that saves longer than the other is not disturbed
    played = fleet.play(
        workload=RESUMES, workload_args=words, launcher=launcher, job_id="long",
        job_timeout=120, notice=117, max_restarts=5, show_ranks="all",
    )  # fmt: skip
    assert played.rc == 0, played.stdout
    runs = [fleet.runs / name for name in ("long", "long-r1", "long-r2")]
    results = [json.loads((run / "result.json").read_text()) for run in runs]
    assert [result["state"] for result in results] == ["saved", "saved", "succeeded"], played.stdout
    assert [result["rc"] for result in results] == [75, 75, 0]
    assert [row["state"] for row in results[0]["ranks"]] == ["saved", "saved"]
    assert results[0]["leftovers"] == {"localhost": []}
    listed = json.loads((runs[2] / "attempts.json").read_text())["attempts"]
    assert [(row["job_id"], row["state"]) for row in listed] == [
        ("long", "saved"), ("long-r1", "saved"), ("long-r2", "succeeded"),
    ]  # fmt: skip
    for rank in ("0", "1"):
        assert (runs[0] / "ranks" / rank / "stdout").read_text() == "start 0 saved False True\n"
        assert (runs[2] / "ranks" / rank / "stdout").read_text().splitlines() == ["start 2 saved True True", "count 6"]
    assert not (fleet.runs / "long-r3").exists() and "job long saved: restart 1 of at most 5" in played.stdout


def test_a_program_that_has_saved_says_so_where_nobody_starts_it_again(fleet: Fleet, tmp_path: Path) -> None:
    played = fleet.play(workload=RESUMES, job_timeout=120, notice=117, checkpoint_dir=str(tmp_path / "c"), job_id="one")
    assert played.rc != 0 and played.result["state"] == "saved" and played.result["first_failure"] is None
    asks = "job one saved: it saved its work and asks to be run again (exit status 75): -e max_restarts=10 does so"
    assert asks in played.msg
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["count-0", "count-1"]


def test_a_failure_is_tried_again_as_often_as_was_said(fleet: Fleet) -> None:
    script = str(SCRIPTS / "fail.py")
    played = fleet.play(workload=script, workload_args=["1", "3"], max_restarts=1, job_id="bad")
    assert played.rc != 0 and "job bad-r1 failed: rank" in played.msg
    assert sorted(path.name for path in fleet.runs.iterdir()) == ["bad", "bad-r1", "latest"]
    assert (fleet.runs / "latest").readlink() == Path("bad-r1")


def test_a_job_that_a_person_ended_is_not_started_again(fleet: Fleet) -> None:
    started = fleet.start(workload=str(SCRIPTS / "saver.py"), workload_args=["0"], max_restarts=3)
    for rank in (0, 1):
        started.wait_for_output(rank, "up")
    started.process.send_signal(signal.SIGINT)
    assert started.process.wait(60) != 0
    started.all_gone()
    assert started.result["state"] == "cancelled"
    assert not (fleet.runs / f"{started.job_id}-r1").exists()
