"""Hangs that were made on purpose: one sentence names the rank and the place, and nobody who is not to blame."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.hang import Verdict, VerdictCode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.autopsy import judged
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session
from tests.driver import SCRIPTS, wait_until
from tests.integration.fleet import Fleet, Started
from tests.integration.terminal import Terminal

SCRIPT = SCRIPTS / "hangs.py"
ROWS = SCRIPT.read_text().splitlines()
THREE = """all:
  vars: {ansible_connection: local}
  children: {head: {hosts: {localhost: }}, workers: {hosts: {localhost: {slots: 3}}}}
"""


def place(text: str) -> str:
    """Return where the last row of the script is that begins with this text."""
    return f"hangs.py:{max(number for number, row in enumerate(ROWS, 1) if row.strip().startswith(text))}"


ASLEEP = "rank 1 on localhost is sleeping or waiting at"
WAIT = f"; ranks 0,2 wait for it in all_reduce #N at {place('dist.all_reduce(values)')}"
SIDES = "ranks wait for each other in different calls: rank 1 on localhost in"
# What is said of each case; #N stands for a number, P for a process, and ... for the rest.
SAID = {
    "own_code": f"{ASLEEP} {place('time.sleep(1000)')} in own_code{WAIT}",
    "takes_a_lock": f"{ASLEEP} {place('lock.acquire()')} in takes_a_lock{WAIT}",
    "reads_a_queue": f"{ASLEEP} threading.py:N in wait ({place('queue.Queue()')}){WAIT}",
    "loads": "rank 1 on localhost is waiting for its data loader, whose worker N is at "
    f"{place('threading.Event().wait()')} ({place('for batch in')}){WAIT}",
    "is_stopped": f"rank 1 on localhost is stopped by a signal (state T){WAIT}",
    "holds_the_gil": f"rank 1 on localhost is computing at __init__.py:N in match ({place('re.match')}){WAIT}",
    "becomes_another_program": "rank 1 on localhost is running `sleep 1000`, which has no Python stack to read, in "
    f"hrtimer_nanosleep{WAIT}",
    "broadcasts": f"{SIDES} broadcast #N at {place('dist.broadcast(values, 0)')}; "
    f"ranks 0,2 on localhost in barrier #N at {place('dist.barrier()')}",
    "receives": f"{SIDES} recv at {place('dist.recv')}; ranks 0,2 on localhost in all_reduce #N at "
    f"{place('dist.all_reduce(values)')}",
    "work": f"ranks 0,2 on localhost are sleeping or waiting at {place('time.sleep(1000)')} in own_code; "
    f"rank 1 waits for them in all_reduce #N at {place('dist.all_reduce(values, async_op=True)')}",
    "steps": "slow, not hung: ranks went from collective #N to #N in N s",
}
CODES = {"steps": VerdictCode.SLOW, "broadcasts": VerdictCode.MISMATCH, "receives": VerdictCode.MISMATCH}


def general(sentence: str) -> str:
    """Return a sentence without the numbers that may differ; those of places in the script stay."""
    return re.sub(r"(?<!hangs\.py:)(?<=[:# ])\d+(\.\d)?(?= s$|[ ;]|$)(?! wait)|(?<=threading\.py:)\d+", "N", sentence)


def hang(fleet: Fleet, cases: list[str], **given: object) -> Started:
    """Start a job of three ranks that hangs in these ways, one after the other."""
    inventory = fleet.root / "three.yml"
    inventory.write_text(THREE)
    given = {"np": 3, "backend": "gloo", "show_ranks": "all", **given}
    return fleet.start(inventory=inventory, workload=str(SCRIPT), workload_args=cases, **given)


def look(fleet: Fleet, job: Started) -> Verdict:
    """Look at a job as the playbook does."""
    here = Node("localhost", "localhost", interpreter=sys.executable, home=str(fleet.home), local=True)
    with Session(here, ()) as session:
        return judged(job.job_id, session.look(job.job_id)).verdict


def verdict_on(fleet: Fleet, job: Started, case: str) -> Verdict:
    """Return the verdict when the job hangs in this way: its ranks may still be on their way when it is first asked."""
    job.wait_for_output(1, case)

    def settled() -> Verdict | None:
        found = look(fleet, job)
        return found if found.code == CODES.get(case, VerdictCode.BLAMED) else None

    found: Verdict = job.wait_until(settled, 60)
    return found


def let_go_on(job: Started, case: str) -> None:
    """End what a case waits for: the job goes on as if nobody had looked."""
    for rank in (0, 2) if case == "work" else (1,):
        os.kill(job.record(rank)["pid"], signal.SIGCONT if case == "is_stopped" else signal.SIGUSR1)


def end(job: Started) -> None:
    """End a job as a person does; nothing of it is left."""
    job.process.send_signal(signal.SIGINT)
    job.process.wait(60)
    job.all_gone()


@pytest.mark.parametrize(
    ("launcher", "cases"),
    [
        ("openmpi", ["own_code", "is_stopped", "steps", "work", "broadcasts"]),
        ("torchrun", ["reads_a_queue", "takes_a_lock", "loads", "becomes_another_program"]),
        ("torchrun", ["receives"]),
    ],
    ids=["asleep, stopped, slow, mismatched", "queue, lock, loader, no Python", "no sender"],
)
def test_the_culprit_is_named_and_the_job_goes_on(fleet: Fleet, launcher: str, cases: list[str]) -> None:
    job = hang(fleet, cases, launcher=launcher, hang_look=0)
    for case in cases:
        found = verdict_on(fleet, job, case)
        assert general(found.sentence) == general(SAID[case]), found
        assert found.ranks == ({"steps": [], "work": [0, 2]}.get(case, [1]))
        if case != cases[-1]:
            let_go_on(job, case)
    end(job)
    text = job.log.read_text()
    assert f"warning: job {job.job_id}: " not in text and "Interrupted" not in text, text


def test_a_job_that_is_silent_is_looked_at_by_itself_and_by_the_playbook(fleet: Fleet) -> None:
    """One rank computes in C and holds the GIL, so it runs no Python; the job is neither ended nor held up."""
    job = hang(fleet, ["holds_the_gil"], launcher="openmpi", hang_look=1)
    said = "rank 1 on localhost is computing at"
    job.wait_until(lambda: f"warning: job {job.job_id}: {said}" in job.log.read_text(), 90)
    played = fleet.play("playbooks/look.yml")  # the only job that runs
    assert played.rc == 0, played.stdout
    (told,) = [found for event in played.events if "sentence" in (found := event["event_data"].get("res", {}))]
    assert general(told["sentence"]) == general(SAID["holds_the_gil"])
    assert (told["verdict"], told["ranks"], told["changed"]) == (VerdictCode.BLAMED, [1], False)
    assert f"job {job.job_id}: {said}" in played.stdout
    assert "  ranks 0,2: <module>" in played.stdout or "ranks 0,2: <module>" in played.stdout
    kept = Path(told["diagnosis"])
    assert kept == job.run_dir / "diagnosis"
    assert json.loads((kept / "look.json").read_text())["verdict"]["ranks"] == [1]
    assert said in (kept / "look.txt").read_text()
    assert {path.stat().st_mode & 0o777 for path in kept.iterdir()} == {0o600}
    end(job)


WAITER = """
import os, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "site-packages", "torch", "distributed"))
import distributed_c10d
if os.environ["RANK"] == "1":
    time.sleep(600)
distributed_c10d.all_reduce()
"""


def play_pytorch(fleet: Fleet, all_reduce: str) -> None:
    """Write a module that looks like PyTorch's, with an all_reduce: PyTorch itself needs some seconds to start."""
    library = fleet.root / "site-packages" / "torch" / "distributed"
    library.mkdir(parents=True)
    text = f"import os\nimport time\n\ndef all_reduce():\n    {all_reduce}\n"
    (library / "distributed_c10d.py").write_text(text)


def waiter(fleet: Fleet) -> str:
    """Return a program of two ranks that hangs without PyTorch: rank 1 sleeps, the other waits for it."""
    play_pytorch(fleet, "time.sleep(600)")
    (fleet.root / "waiter.py").write_text(WAITER)
    return str(fleet.root / "waiter.py")


RANK_1_SLEEPS = (
    "rank 1 on localhost is sleeping or waiting at waiter.py:6 in <module>; rank 0 waits for it in all_reduce "
    "at waiter.py:7"
)


def test_job_timeout_names_the_culprit(fleet: Fleet) -> None:
    """What looks like PyTorch's all_reduce is enough here: PyTorch itself needs longer to start than the job has."""
    played = fleet.play(workload=waiter(fleet), np=2, job_timeout=4)
    failure = played.result["first_failure"]
    assert (played.result["state"], failure["rank"]) == ("timed_out", 1)
    assert failure["cause"] == f"job_timeout of 4 s: {RANK_1_SLEEPS}"
    assert failure["log"].endswith("ranks/1/stderr")
    assert f": {RANK_1_SLEEPS}\n" in (played.run_dir / "diagnosis" / "look.txt").read_text()
    assert not (played.run_dir / "last_look.json").exists()


def test_a_detached_job_that_hangs_is_ended_by_its_head_and_started_again(fleet: Fleet) -> None:
    """Nobody follows it. The second attempt hangs as well, and is the last."""
    given = {"hang_look": 1, "hang_end": True, "max_restarts": 1, "job_id": "away"}
    played = fleet.play(workload=waiter(fleet), np=2, detach=True, **given)
    assert played.rc == 0, played.stdout
    kept = fleet.home / "jobs" / "away" / "result.json"
    wait_until(kept.exists, 180)
    result = json.loads(kept.read_text())
    failure = result["first_failure"]
    assert (result["state"], failure["rank"]) == ("failed", 1)
    why = r"two looks found the same hang, \d+ s without a sign of life \(hang_end\)"
    assert re.fullmatch(f"{why}: {re.escape(RANK_1_SLEEPS)}", failure["cause"]), failure
    ended = json.loads((kept.parent / "attempts.json").read_text())["attempts"]
    assert [(row["state"], row["node"]) for row in ended] == [("failed", ""), ("failed", "")]
    assert fleet.alive("away") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_hangs_is_looked_at_before_a_person_ends_it(fleet: Fleet, number: signal.Signals) -> None:
    job = fleet.start(workload=waiter(fleet), np=2, hang_look=1)
    job.wait_until(lambda: f"warning: job {job.job_id}: rank 1" in job.log.read_text(), 90)
    job.process.send_signal(number)
    job.process.wait(60)
    job.all_gone()
    assert job.result["state"] == "cancelled" and job.result["first_failure"] is None
    assert job.result["notes"] == [{"code": "hung", "text": f"it hung: {RANK_1_SLEEPS}"}]
    assert RANK_1_SLEEPS in (job.run_dir / "diagnosis" / "look.txt").read_text()


def test_a_second_ctrl_c_ends_the_look_and_leaves_the_run_to_clean(fleet: Fleet) -> None:
    terminal = Terminal(fleet, workload=waiter(fleet), np=2, hang_look=1)
    try:
        terminal.shows("warning: job typed: rank 1")
        terminal.type("\x03")
        terminal.shows("interrupt again to leave that to")
        terminal.type("\x03")
        assert terminal.started.process.wait(30) != 0
        assert not (terminal.started.run_dir / "result.json").exists()
        terminal.started.all_gone()
        assert fleet.play("clean.yml").rc == 0
        assert terminal.started.result["state"] == "cancelled"
    finally:
        terminal.started.process.kill()
        terminal.started.process.wait()


def test_a_detached_job_that_hangs_is_looked_at_before_it_is_ended_by_its_name(fleet: Fleet) -> None:
    played = fleet.play(workload=waiter(fleet), np=2, detach=True, hang_look=1, job_id="away")
    assert played.rc == 0, played.stdout
    outputs = [fleet.home / "jobs" / "away" / "ranks" / rank / "stdout" for rank in "01"]
    wait_until(lambda: all(path.exists() and time.time() - path.stat().st_mtime > 2 for path in outputs), 60)
    ended = fleet.play("playbooks/jobs.yml", do="cancel", job_id="away")
    assert "job away cancelled in" in ended.stdout and fleet.alive("away") == []
    run = fleet.runs / "away"
    result = json.loads((run / "result.json").read_text())
    assert result["notes"] == [{"code": "hung", "text": f"it hung: {RANK_1_SLEEPS}"}]
    assert RANK_1_SLEEPS in (run / "diagnosis" / "look.txt").read_text()


GOES_ON = """
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "site-packages", "torch", "distributed"))
import distributed_c10d
print("up", flush=True)
if os.environ["RANK"] == "1":
    os.open(sys.argv[1], os.O_RDONLY)
distributed_c10d.all_reduce()
"""


def test_enter_on_the_terminal_looks_at_once_and_the_job_goes_on(fleet: Fleet) -> None:
    """Ansible's worker has another session, and its stdin is /dev/null: what is typed reaches it all the same."""
    go_on, inventory = fleet.root / "go on", fleet.root / "three.yml"
    os.mkfifo(go_on)  # whoever opens it for reading stays in this call, until somebody can write to it
    play_pytorch(fleet, f"os.open({str(go_on)!r}, os.O_RDONLY)")
    inventory.write_text(THREE)
    (fleet.root / "goes_on.py").write_text(GOES_ON)
    given = {"workload": str(fleet.root / "goes_on.py"), "workload_args": [str(go_on)], "np": 3, "hang_look": 0}
    said = f"{ASLEEP} goes_on.py:7 in <module>; ranks 0,2 wait for it in all_reduce at goes_on.py:8"
    terminals = [Terminal(fleet, "-i", str(inventory), **given)]
    try:
        for rank in range(3):
            terminals[0].started.wait_for_output(rank, "up")
        terminals.append(Terminal(fleet, playbook="playbooks/jobs.yml", do="attach"))
        for terminal in terminals:
            terminal.shows("Enter shows what the ranks do")
            terminal.type("\n")
            terminal.shows("looking at job typed ...")
            terminal.shows(f"job typed: {said} ranks 0,2: <module> goes_on.py:8 > all_reduce distributed_c10d.py:")
            terminal.shows(f"evidence: {terminal.started.run_dir / 'diagnosis'}")
        assert said in (terminals[0].started.run_dir / "diagnosis" / "look.txt").read_text()
        with go_on.open("r+b", buffering=0):
            for terminal in terminals:
                assert terminal.started.process.wait(60) == 0
                assert terminal.text.count(b"Enter shows") == terminal.text.count(b"looking at job typed") == 1
        assert terminals[0].started.result["state"] == "succeeded"
    finally:
        for terminal in terminals:
            terminal.started.process.kill()
            terminal.started.process.wait()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "job_id: got null; no job runs"),
        ({"job_id": "gone"}, 'job_id: got "gone"; no such job runs; ansible-playbook playbooks/jobs.yml lists them'),
        ({"job_id": "../x"}, 'job_id: got "../x"; use letters'),
    ],
)
def test_what_does_not_run_is_refused(fleet: Fleet, given: dict[str, str], said: str) -> None:
    played = fleet.play("playbooks/look.yml", **given)
    assert played.rc != 0 and said in played.msg, played.stdout
