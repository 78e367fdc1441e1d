"""A job as a list of jobs has it, and what a controller is told that follows one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime import following
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import Channel
from tests.unit.nodes import STAGING, order_of_a_job


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    made = JobDir(str(tmp_path / "jobs" / "one"))
    made.create([0])
    order: Any = order_of_a_job(home=str(tmp_path))
    made.write("order.json", {**order, "head": order["host"], "ranks": [0]})
    made.write("staging.json", STAGING)
    Path(made.rank(0, "stdout")).write_text("torchfleet: step=1 steps=4\ntorchfleet: step=3 steps=4\nnoise\n")
    return made


def test_a_list_of_jobs_shows_the_last_values_and_writes_nothing(job: JobDir) -> None:
    """Reproduced before: metrics.jsonl of a running job was put away, and what its supervisor wrote then was lost."""
    metrics = Path(job.at("metrics.jsonl"))
    metrics.write_text('{"step": 1, "time": 1.5, "rank": 0}\n')
    inode = metrics.stat().st_ino
    row = following.row_of(job, "me")
    assert row is not None and row["values"] == {"step": 3, "steps": 4}
    assert metrics.stat().st_ino == inode and metrics.read_text() == '{"step": 1, "time": 1.5, "rank": 0}\n'


def test_a_list_of_jobs_has_the_owner_and_the_first_report_of_one_that_runs(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pace counts from there. A program of the job may have written that file."""
    rows = ["no json", "[]", '{"loss": 1.0, "time": 1.0}', '{"steps": 4, "time": "x"}', '{"steps": 4, "time": NaN}']
    good = '{"step": 2, "steps": 4, "epoch": "x", "loss": 1, "time": 100.5, "rank": 0}'
    Path(job.at("metrics.jsonl")).write_text("\n".join([*rows, good, '{"step": 3, "steps": 4, "time": 200.0}', ""]))
    job.write("order.json", {**(job.order() or {}), "owner": "alice@laptop"})
    row = following.row_of(job, "me")
    assert row is not None and (row["owner"], row["before"], row["paced_seconds"]) == ("alice@laptop", {}, 0.0)
    monkeypatch.setattr(JobDir, "running", lambda _job: True)
    monkeypatch.setattr(following.time, "time", lambda: 110.5)
    row = following.row_of(job, "me")
    assert row is not None and (row["before"], row["paced_seconds"]) == ({"step": 2, "steps": 4}, 10.0)
    Path(job.at("metrics.jsonl")).unlink()
    row = following.row_of(job, "me")
    assert row is not None and (row["before"], row["paced_seconds"]) == ({}, 0.0)


@pytest.mark.parametrize(("written", "state"), [("failed", "failed"), ("\x1b[2J", "lost")])
def test_a_state_that_there_is_not_keeps_no_other_job_from_the_list(job: JobDir, written: str, state: str) -> None:
    """Reproduced before: any program of the user could write it, and no job was listed any more."""
    job.write("result.json", {"state": written})
    row = following.row_of(job, "me")
    assert row is not None and row["state"] == state


def test_a_job_that_lets_nobody_in_is_not_said_to_be_dead(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduced before: who followed a job while it was staged was told to run clean.yml."""
    monkeypatch.setattr(JobDir, "running", lambda _job: True)
    for name in ("ROOM_SECONDS", "RESULT_SECONDS"):
        monkeypatch.setattr(following, name, 0.0)
    assert following.follow(job, Channel(-1, -1)) == following.BUSY
