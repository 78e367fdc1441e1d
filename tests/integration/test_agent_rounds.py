"""Jobs whose ranks torchrun's agents start again: no new launch, and the rule and the record of any other restart."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.driver import SCRIPTS, command
from tests.integration.fleet import Fleet, Started
from tests.integration.test_detached import jobs

OPTIONS = {"launcher": "torchrun", "restart_by": "torchrun", "max_restarts": 4, "grace": 1}
# It fails when it is told to, each time in the same way; what it leaves ignores SIGTERM.
FAILS = """
import os, pathlib, signal, sys, time
print("round", os.environ["TORCHFLEET_RESTART_COUNT"], os.getpid(), flush=True)
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
while not pathlib.Path(sys.argv[1] + "-" + os.environ["TORCHFLEET_RESTART_COUNT"]).exists():
    time.sleep(0.05)
raise RuntimeError("as ever")
"""


def attempts(run: Path) -> list[tuple[str, str]]:
    rows = json.loads((run / "attempts.json").read_text())["attempts"]
    return [(row["state"], row["failure"]) for row in rows]


def start(fleet: Fleet, **given: object) -> Started:
    script = fleet.root / "fails.py"
    script.write_text(FAILS)
    started = fleet.start(workload=str(script), workload_args=[str(fleet.root / "go")], **{**OPTIONS, **given})
    for rank in (0, 1):
        started.wait_for_output(rank, "round 0")
    return started


def test_all_ranks_go_on_from_the_checkpoint_under_the_same_agent(fleet: Fleet) -> None:
    """A wrapper that is killed, ranks that save, and the end: each round has its own output and result."""
    words = ["0:wrapper", "save"]
    played = fleet.play(workload=str(SCRIPTS / "rounds.py"), workload_args=words, job_id="one", **OPTIONS)
    assert played.rc == 0, played.stdout
    run = fleet.runs / "one"
    assert attempts(run) == [("failed", "1"), ("saved", ""), ("succeeded", "")]
    places = [run / "attempts" / "0", run / "attempts" / "1", run]
    results = [json.loads((place / "result.json").read_text()) for place in places]
    assert [result["state"] for result in results] == ["failed", "saved", "succeeded"]
    assert (results[0]["first_failure"]["rank"], results[0]["first_failure"]["cause"]) == (0, "its wrapper died")
    ends = [b"\xff\0 no end of line"] * 2 + [b"done 6\n"]
    for rank in ("0", "1"):
        written = [(place / "ranks" / rank / "stdout").read_bytes() for place in places]
        words = [text.decode(errors="replace").split("\n")[0].split() for text in written]
        assert [row[4:] for row in words] == [
            ["round", "0", "None", "at", "0"], ["round", "1", "failed", "at", "2"], ["round", "2", "saved", "at", "3"],
        ]  # fmt: skip
        assert len({row[1] for row in words}) == 1 and len({row[3] for row in words}) == 3
        for text, first, last, end in zip(written, (1, 3, 4), (2, 3, 6), ends, strict=True):
            steps = b"".join(b"torchfleet: step=%d steps=6\n" % step for step in range(first, last + 1))
            assert text.partition(b"\n")[2] == steps + end
    assert "job one failed: restart 1 of at most 4" in played.stdout and not fleet.alive("one")
    assert not (fleet.runs / "one-r1").exists()


def test_the_same_failure_is_not_tried_a_third_time(fleet: Fleet) -> None:
    started = start(fleet)
    before = set(fleet.alive(started.job_id))
    (fleet.root / "go-0").touch()
    for rank in (0, 1):
        started.wait_for_output(rank, "round 1")
    agents = {pid for pid in before if "torch.distributed.run" in command(pid)}
    left = before & set(fleet.alive(started.job_id))
    programs = {pid for pid in left if command(pid)[1:2] == [str(fleet.root / "fails.py")]}
    assert agents <= left and len(agents) == 1 and not programs, "ranks of the round before are left"
    (fleet.root / "go-1").touch()
    assert started.process.wait(60) != 0
    started.all_gone()
    assert attempts(started.run_dir) == [("failed", "1 RuntimeError")] * 2
    assert started.result["state"] == "failed" and started.result["first_failure"]["message"].endswith("as ever")
    first = json.loads((started.run_dir / "attempts" / "0" / "result.json").read_text())
    assert first["first_failure"]["message"].endswith("as ever")


def test_a_round_that_does_not_come_ends_the_job_with_the_failure_before(fleet: Fleet) -> None:
    """Its agent hangs, and is killed."""
    started = start(fleet)
    agent = next(pid for pid in fleet.alive(started.job_id) if "torch.distributed.run" in command(pid))
    os.kill(agent, signal.SIGSTOP)
    (fleet.root / "go-0").touch()
    started.wait_until((started.job_dir / "attempts" / "0" / "ranks").exists)
    os.kill(agent, signal.SIGKILL)
    assert started.process.wait(60) != 0
    started.all_gone()
    result = started.result
    assert result["state"] == "failed" and result["first_failure"]["message"].endswith("RuntimeError: as ever")
    texts = [note["text"] for note in result["notes"] if note["code"] == "not_started_again"]
    assert texts == ["it was not started again: torchrun on localhost was killed by SIGKILL"]
    assert attempts(started.run_dir) == [("failed", "1 RuntimeError")]
    assert (started.run_dir / "ranks" / "0" / "stdout").read_text().startswith("round 0 ")
    assert not (started.run_dir / "attempts").exists()


def test_a_detached_job_is_ended_by_its_name_in_a_later_round(fleet: Fleet) -> None:
    started = start(fleet, detach=True)
    assert started.process.wait(60) == 0
    (fleet.root / "go-0").touch()
    started.wait_for_output(0, "round 1")
    ended = jobs(fleet, do="cancel", job_id=started.job_id)
    assert ended.rc == 0, ended.stdout
    started.all_gone()
    assert attempts(started.run_dir) == [("failed", "1 RuntimeError"), ("cancelled", "")]
