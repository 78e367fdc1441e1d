"""Jobs that wait for their turn: in order, taken out, killed, interrupted, and without their controller."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.identity import owner
from tests.driver import parent, pids
from tests.integration.fleet import Fleet, Started
from tests.integration.test_detached import jobs, listed

WAITS = '#!/bin/sh\necho up\nwhile [ ! -e "$1" ]; do sleep 0.1; done\n'

# It asks to be started again, once.
AGAIN = """#!/bin/sh
echo up
while [ ! -e "$1.$TORCHFLEET_RESTART_COUNT" ]; do sleep 0.1; done
[ "$TORCHFLEET_RESTART_COUNT" = 1 ] || exit 75
"""


class Line:
    """Jobs of one rank, each of which runs until it is let go."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.script = fleet, fleet.root / "waits.sh"
        self.script.write_text(WAITS)
        self.script.chmod(0o700)

    def given(self, job_id: str, **more: Any) -> dict[str, Any]:
        words = [str(self.fleet.root / f"{job_id}.go")]
        return {"workload": str(self.script), "workload_args": words, "np": 1, "job_id": job_id, "queue": True, **more}

    def start(self, job_id: str, ahead: str = "", **more: Any) -> Started:
        """Start a job; return it when it runs, or waits with so many ahead: "2 ahead, the first is a"."""
        started = self.fleet.start(**self.given(job_id, **more))
        if ahead:
            tells(started, ahead)
        else:
            started.wait_for_output(0, "up")
        return started

    def go(self, job_id: str) -> None:
        (self.fleet.root / f"{job_id}.go").touch()

    @property
    def tickets(self) -> list[str]:
        return [name for name in os.listdir(self.fleet.home / "queue") if name != "lock"]


@pytest.fixture
def line(fleet: Fleet) -> Line:
    return Line(fleet)


def tells(started: Started, ahead: str) -> None:
    """Wait until a job that waits tells who is ahead of it."""
    text = f"job {started.job_id} waits: {ahead} of "
    started.wait_until(lambda: text in started.log.read_text())


def test_jobs_run_in_the_order_in_which_they_came(fleet: Fleet, line: Line) -> None:
    a = line.start("a")
    b = line.start("b", "1 ahead, the first is a")
    c = line.start("c", "2 ahead, the first is a")
    rows = listed(fleet)
    assert [(name, rows[name]["state"], rows[name]["position"]) for name in rows] == [
        *(("a", "running", 0), ("b", "waiting", 1), ("c", "waiting", 2)),
    ]
    assert {row["owner"] for row in rows.values()} == {owner()}
    assert not b.run_dir.exists() and fleet.alive("b") == []
    line.go("a")
    b.wait_for_output(0, "up")
    tells(c, "1 ahead, the first is b")
    for started in (a, b, c):
        line.go(started.job_id)
        assert started.process.wait(60) == 0, started.log.read_text()
    results = [json.loads((fleet.runs / name / "result.json").read_text()) for name in "abc"]
    assert all(before["ended"] <= after["started"] for before, after in itertools.pairwise(results))
    assert line.tickets == []


def test_who_leaves_is_not_waited_for_and_leaves_nothing(fleet: Fleet, line: Line) -> None:
    a = line.start("a")
    cancelled = line.start("b", "1 ahead, the first is a")
    killed = line.start("c", "2 ahead, the first is a")
    interrupted = line.start("d", "3 ahead, the first is a")
    last = line.start("e", "4 ahead, the first is a")
    told = [jobs(fleet, do="logs", job_id="b").msg, fleet.play("clean.yml", job_id="b").stdout]
    assert "it waits in the queue, place 1" in told[0] and "playbooks/jobs.yml -e do=cancel" in told[1], told
    played = jobs(fleet, do="cancel", job_id="b")
    assert played.rc == 0 and "job b is taken out of the queue of localhost" in played.stdout, played.stdout
    assert cancelled.process.wait(60) != 0
    assert "it was taken out of the queue, by playbooks/jobs.yml -e do=cancel" in cancelled.log.read_text()
    interrupted.process.send_signal(signal.SIGINT)
    interrupted.process.wait(60)
    tells(last, "2 ahead, the first is a")
    assert len(line.tickets) == 2
    for pid in [pid for pid in pids() if parent(pid) == killed.process.pid] + [killed.process.pid]:
        os.kill(pid, signal.SIGKILL)
    killed.process.wait()
    tells(last, "1 ahead, the first is a")
    assert len(line.tickets) == 1
    assert sorted(os.listdir(fleet.home / "jobs")) == ["a"] and sorted(os.listdir(fleet.runs)) == ["a", "latest"]
    for started in (a, last):
        line.go(started.job_id)
        assert started.process.wait(60) == 0, started.log.read_text()
    assert line.tickets == [] and all(not fleet.alive(name) for name in "abcde")


def test_a_detached_job_waits_and_starts_by_itself(fleet: Fleet, line: Line) -> None:
    a = line.start("a")
    for job_id in ("b", "c"):
        played = fleet.play(**line.given(job_id, detach=True))
        assert played.rc == 0 and f"job {job_id} waits in the queue of localhost" in played.stdout, played.stdout
    follower = fleet.start(playbook="playbooks/jobs.yml", do="attach", job_id="b", log_name="follows")
    tells(follower, "1 ahead, the first is a")
    ended = jobs(fleet, do="cancel", job_id="c")
    assert ended.rc == 0 and "job c cancelled" in ended.stdout, ended.stdout
    line.go("a")
    assert a.process.wait(60) == 0
    follower.wait_until(lambda: "[0@localhost] up" in follower.log.read_text())
    line.go("b")
    assert follower.process.wait(60) == 0, follower.log.read_text()
    assert json.loads((fleet.runs / "b" / "result.json").read_text())["state"] == "succeeded"
    assert line.tickets == []


def test_what_a_person_is_told_before_a_job_waits(fleet: Fleet, line: Line) -> None:
    free = fleet.play(check=True, **line.given("b"))
    assert "job b would not wait" in free.stdout
    a = line.start("a")
    looked = fleet.play(check=True, **line.given("b"))
    assert looked.rc == 0 and "job b waits: 1 ahead, the first is a of " in looked.stdout
    refused = fleet.play(**{**line.given("b"), "np": 99})
    assert refused.rc != 0 and "np: got 99" in refused.msg and "waits" not in refused.stdout
    late = fleet.play(**line.given("b", queue_timeout=1))
    assert late.rc != 0 and 'queue: got "b"; it waited for 1 s (queue_timeout): 1 ahead, the first is a' in late.msg
    assert line.tickets == [] and not (fleet.runs / "b").exists()
    line.go("a")
    assert a.process.wait(60) == 0


def test_more_than_the_head_allows_is_refused(fleet: Fleet, line: Line) -> None:
    place = Path(fleet.home, "queue")
    place.mkdir(mode=0o700)
    user = owner().partition("@")[0]
    (place / "limits.json").write_text(json.dumps({"waiting": 9, "users": {user: {"waiting": 0}}}))
    played = fleet.play(**line.given("a"))
    assert played.rc != 0 and f"0 jobs of user {user} are waiting, and {place}/limits.json allows 0" in played.msg


def test_what_is_started_again_keeps_its_nodes_on_the_head_and_waits_anew_with_its_controller(
    fleet: Fleet, line: Line
) -> None:
    script = fleet.root / "again.sh"
    script.write_text(AGAIN)
    script.chmod(0o700)
    again = {"workload": str(script), "max_restarts": 1}
    assert fleet.play(**line.given("a", **again, detach=True)).rc == 0
    b = line.start("b", "1 ahead, the first is a", **again)
    c = line.start("c", "2 ahead, the first is a")
    (fleet.root / "a.go.0").touch()
    b.wait_until((fleet.home / "jobs" / "a" / "attempts" / "0").exists)
    rows = listed(fleet)
    assert [rows[name]["state"] for name in "abc"] == ["running", "waiting", "waiting"]
    assert not b.run_dir.exists()
    (fleet.root / "a.go.1").touch()
    b.wait_for_output(0, "up")
    (fleet.root / "b.go.0").touch()
    c.wait_for_output(0, "up")
    b.wait_until(lambda: "job b-r1 waits: 1 ahead, the first is c of " in b.log.read_text())
    line.go("c")
    (fleet.root / "b.go.1").touch()
    for started in (b, c):
        assert started.process.wait(60) == 0, started.log.read_text()
    assert jobs(fleet, do="wait", job_id="a").rc == 0
    rows = json.loads((fleet.runs / "a" / "attempts.json").read_text())["attempts"]
    assert [row["state"] for row in rows] == ["saved", "succeeded"]
    results = [json.loads((fleet.runs / name / "result.json").read_text()) for name in ("a", "b", "c", "b-r1")]
    assert all(before["ended"] <= after["started"] for before, after in itertools.pairwise(results))
    assert line.tickets == []
