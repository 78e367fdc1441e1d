"""Detached jobs that the head starts again: one job, one name, and every attempt on record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver import REPO, wait_until
from tests.integration.fleet import Fleet
from tests.integration.test_detached import attach, jobs, listed

# Attempt k goes on when the file go-k is there. The first is ended by a failure, the second saves, the third is done.
ATTEMPTS = """
import os, pathlib, sys, time, zipfile
count, rank = int(os.environ["TORCHFLEET_RESTART_COUNT"]), os.environ["RANK"]
saved = pathlib.Path(os.environ["TORCHFLEET_CHECKPOINT_DIR"], "saved-" + rank)
told = pathlib.Path(os.environ["TORCHFLEET_RESUME"]).name, os.environ.get("TORCHFLEET_RESTART_REASON")
print("attempt", count, saved.read_text() if saved.exists() else "none", *told, flush=True)
if (count, rank) == (0, "0"):
    with zipfile.ZipFile(saved.with_name("step.pt"), "w") as checkpoint:
        checkpoint.writestr("step/data.pkl", "")
print(f"torchfleet: step={count + 1} steps=3", flush=True)
while not os.path.exists(f"{sys.argv[1]}-{count}"):
    time.sleep(0.05)
saved.write_text(str(count))
pathlib.Path(f"wrote-{count}-{rank}").touch()
if count == 0:
    while not all(saved.with_name(name).exists() for name in ("saved-0", "saved-1")):
        time.sleep(0.05)  # who fails ends the other
    raise ValueError("the first one fails")
sys.exit(75 if count == 1 else 0)
"""


@pytest.fixture
def script(fleet: Fleet) -> Iterator[str]:
    path = fleet.root / "again.py"
    path.write_text(ATTEMPTS)
    yield str(path)
    for written in REPO.glob("wrote-?-?"):  # ranks on this machine work where the playbook was started
        written.unlink()


def go(fleet: Fleet, attempt: int) -> None:
    (fleet.root / f"go-{attempt}").touch()


def start(fleet: Fleet, script: str, **given: object) -> None:
    words = [str(fleet.root / "go")]
    played = fleet.play(workload=script, workload_args=words, detach=True, job_id="away", **given)
    assert played.rc == 0, played.stdout


def test_the_head_starts_a_job_again_and_keeps_every_attempt(fleet: Fleet, script: str) -> None:
    start(fleet, script, max_restarts=5, collect=["wrote-*"])
    follower = attach(fleet, do="attach", job_id="away", log_name="follows", show_ranks="all")
    before: set[int] = set()
    for attempt in range(3):
        # The first has written its line before anybody followed: its last report is told instead.
        text = f"[0@localhost] attempt {attempt} {attempt - 1}" if attempt else "[0@localhost] step 1/3"
        follower.wait_until(lambda text=text: text in follower.log.read_text())
        if attempt == 1:
            rows = list(listed(fleet).values())
            assert [(row["job_id"], row["state"], row["restarts"]) for row in rows] == [("away", "running", 1)]
        now = set(fleet.alive("away"))
        assert now and not now & before, "processes of an earlier attempt are left"
        before = now
        go(fleet, attempt)
    assert follower.process.wait(60) == 0, follower.log.read_text()
    log = follower.log.read_text()
    assert "job away failed: restart 1 of at most 5" in log and "job away saved: restart 2 of at most 5" in log
    run = fleet.runs / "away"
    rows = json.loads((run / "attempts.json").read_text())["attempts"]
    assert [(row["job_id"], row["state"], row["failure"]) for row in rows] == [
        *(("away", "failed", "1 ValueError"), ("away", "saved", ""), ("away", "succeeded", "")),
    ]
    places = [run / "attempts" / "0", run / "attempts" / "1", run]
    assert [json.loads((place / "result.json").read_text())["state"] for place in places] == [
        *("failed", "saved", "succeeded"),
    ]
    for number, place in enumerate(places):
        for rank in "01":
            told = ["attempt 0 none  None\n", "attempt 1 0 step.pt failed\n", "attempt 2 1 step.pt saved\n"]
            assert told[number] in (place / "ranks" / rank / "stdout").read_text()
        rows = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        assert sorted((row["rank"], row["step"]) for row in rows) == [(0, number + 1), (1, number + 1)]
    # Of the rank that fails first: it may end the other before that says so too.
    assert any("the first one fails" in (places[0] / "ranks" / rank / "stderr").read_text() for rank in "01")
    written = {Path(row["path"]).name for row in json.loads((run / "artifacts.json").read_text())["files"]}
    assert {f"wrote-{attempt}-{rank}" for attempt in range(3) for rank in "01"} == written
    assert not fleet.alive("away")


def test_a_job_that_is_ended_by_its_name_is_not_started_again(fleet: Fleet, script: str) -> None:
    start(fleet, script, max_restarts=5)
    go(fleet, 0)
    wait_until((fleet.home / "jobs" / "away" / "attempts" / "0").exists, 60, lambda: "it is not started again")
    ended = jobs(fleet, do="cancel", job_id="away")
    assert ended.rc == 0 and "job away cancelled in" in ended.stdout, ended.stdout
    rows = json.loads((fleet.runs / "away" / "attempts.json").read_text())["attempts"]
    assert [row["state"] for row in rows] == ["failed", "cancelled"] and not fleet.alive("away")


def test_the_same_failure_is_not_tried_a_third_time(fleet: Fleet) -> None:
    script = fleet.root / "bad.py"
    script.write_text("raise RuntimeError('as ever')")
    start(fleet, str(script), max_restarts=9)
    played = jobs(fleet, do="wait", job_id="away")
    assert played.rc != 0 and "job away failed: rank" in played.msg
    rows = json.loads((fleet.runs / "away" / "attempts.json").read_text())["attempts"]
    assert [row["failure"] for row in rows] == ["1 RuntimeError"] * 2
