"""However a job ends: within 5 s nothing of it is left, what merely looks like it lives, the result is the truth."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.driver import SCRIPTS, parent, pids, running
from tests.integration.fleet import Fleet, Started

GONE = f"long-gone-{os.getpid()}"
SLEEPER = str(SCRIPTS / "sleeper.py")
Bystander = subprocess.Popen[bytes]


def sleepers(fleet: Fleet, *arguments: str, **given: Any) -> tuple[Started, list[int]]:
    """Start two ranks that sleep and wait until they are up. Return also the pids of children that escaped them."""
    started = fleet.start(workload=SLEEPER, workload_args=list(arguments), **given)
    escaped = []
    for rank in (0, 1):
        started.wait_for_output(rank, "up")
        words = (started.job_dir / "ranks" / str(rank) / "stdout").read_text().split()
        escaped += [int(words[1])] if words[0] == "escaped" else []
    assert all(running(pid) for pid in escaped)
    return started, escaped


def ours(started: Started, what: str) -> int:
    """Return the pid of a part of a running job: supervisor, guard or launcher."""
    if what == "launcher":
        return int(json.loads((started.job_dir / "launcher.json").read_text())["pid"])
    supervisor = int(json.loads((started.job_dir / "supervisor.json").read_text())["pid"])
    if what == "supervisor":
        return supervisor
    return next(pid for pid in pids() if parent(pid) == supervisor)


@pytest.mark.parametrize(
    ("launcher", "number", "state"),
    [
        ("openmpi", "SIGINT", "cancelled"),
        ("openmpi", "SIGTERM", "cancelled"),
        ("openmpi", "SIGKILL", "lost"),
        ("torchrun", "SIGINT", "cancelled"),
        ("torchrun", "SIGKILL", "lost"),
    ],
)
def test_ansible_playbook_is_ended(fleet: Fleet, bystander: Bystander, launcher: str, number: str, state: str) -> None:
    started, escaped = sleepers(fleet, "--escape", "--ignore-term", launcher=launcher)
    started.process.send_signal(signal.Signals[number])
    started.all_gone(*escaped)
    assert started.process.wait(10) != 0
    assert started.result["state"] == state
    assert {row["state"] for row in started.result["ranks"]} == {"ended"}
    assert started.result["first_failure"] is None or state == "lost"


def test_the_whole_controller_is_killed(fleet: Fleet, bystander: Bystander) -> None:
    """Nobody is left to bring the run home: it waits on the head, and clean.yml fetches it."""
    started, escaped = sleepers(fleet, "--escape")
    workers = [pid for pid in pids() if parent(pid) == started.process.pid]
    for pid in (started.process.pid, *workers):
        os.kill(pid, signal.SIGKILL)
    started.process.wait()
    started.all_gone(*escaped)
    assert not (started.run_dir / "result.json").exists()
    started.wait_until((started.job_dir / "result.json").exists)
    told = fleet.play("clean.yml", check=True)
    assert f"job {started.job_id} lost" in told.stdout
    assert not (started.run_dir / "result.json").exists()
    cleaned = fleet.play("clean.yml")
    assert cleaned.rc == 0, cleaned.stdout
    assert f"job {started.job_id} lost" in cleaned.stdout
    assert started.result["state"] == "lost"
    assert started.result["cause"]["id"] == "watcher-gone"
    assert "; cause watcher-gone: " in cleaned.stdout
    assert "up" in (started.run_dir / "ranks" / "1" / "stdout").read_text()


@pytest.mark.parametrize("launcher", ["openmpi", "torchrun"])
@pytest.mark.parametrize("what", ["launcher", "guard", "supervisor"])
def test_a_part_of_the_job_is_killed(fleet: Fleet, bystander: Bystander, what: str, launcher: str) -> None:
    started, escaped = sleepers(fleet, "--escape", launcher=launcher)
    os.kill(ours(started, what), signal.SIGKILL)
    started.all_gone(*escaped)
    assert started.process.wait(10) != 0
    if what == "supervisor":
        assert fleet.play("clean.yml").rc == 0
    result = started.result
    assert result["state"] == ("lost" if what == "supervisor" else "failed")
    assert result["first_failure"]["host"] == "localhost"
    assert {"launcher": "SIGKILL", "guard": "guard", "supervisor": "supervisor"}[what] in result["first_failure"][
        "cause"
    ]


@pytest.mark.parametrize("launcher", ["openmpi", "torchrun"])
def test_a_rank_is_killed(fleet: Fleet, bystander: Bystander, launcher: str) -> None:
    started, escaped = sleepers(fleet, "--escape", launcher=launcher)
    os.kill(started.record(1)["pid"], signal.SIGKILL)
    started.all_gone(*escaped)
    assert started.process.wait(10) != 0
    result = started.result
    assert (result["state"], result["rc"]) == ("failed", 137)
    assert result["first_failure"]["rank"] == 1
    assert result["first_failure"]["cause"] == "killed by SIGKILL"
    assert [row["state"] for row in result["ranks"]] == ["ended", "failed"]
    log = started.log.read_text()
    assert "rank 1 on localhost: killed by SIGKILL" in " ".join(log.split())
    assert "; cause killed: " in " ".join(log.split())
    assert (result["cause"]["id"], result["cause"]["rank"]) == ("killed", 1)


@pytest.mark.parametrize("launcher", ["openmpi", "torchrun"])
def test_a_rank_fails(fleet: Fleet, bystander: Bystander, launcher: str) -> None:
    played = fleet.play(workload=str(SCRIPTS / "fail.py"), workload_args="1 raise", launcher=launcher)
    assert played.rc != 0
    result = played.result
    assert (result["state"], result["rc"]) == ("failed", 1)
    failure = result["first_failure"]
    assert (failure["rank"], failure["host"], failure["cause"]) == (1, "localhost", "exit status 1")
    assert failure["message"] == "ValueError: the loss is not a number"
    assert "Traceback" in Path(failure["log"]).read_text()
    for text in ("rank 1", "localhost", "exit status 1", "ValueError: the loss is not a number", failure["log"]):
        assert text in played.msg
    assert result["seconds"] < 60  # the other rank would sleep for 600


def test_the_exit_status_goes_through(fleet: Fleet) -> None:
    assert fleet.play(workload=str(SCRIPTS / "fail.py"), workload_args="0 7").result["rc"] == 7


def test_job_timeout(fleet: Fleet, bystander: Bystander) -> None:
    started, escaped = sleepers(fleet, "--ignore-term", "--escape", job_timeout=4)
    assert started.process.wait(60) != 0
    started.all_gone(*escaped)
    result = started.result
    assert (result["state"], result["rc"]) == ("timed_out", 124)
    assert "job_timeout of 4 s" in result["first_failure"]["cause"]
    for rank in range(2):  # where each was when its time was over
        told = (started.run_dir / "ranks" / str(rank) / "stderr").read_text()
        assert "most recent call first" in told and "sleeper.py" in told
    assert 4 <= result["seconds"] < 60  # they would sleep for longer


def test_what_outlives_a_good_run_is_ended_and_named(fleet: Fleet, bystander: Bystander) -> None:
    script = fleet.root / "leaves.py"
    script.write_text("import subprocess\nprint(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)\n")
    played = fleet.play(workload=str(script), np=1)
    assert played.rc == 0, played.stdout
    left = played.result["leftovers"]["localhost"]
    assert [(row["pid"], row["command"]) for row in left] == [(int(played.output(0)), "sleep 600")]
    assert not running(left[0]["pid"])
    assert "ended a leftover on localhost" in played.stdout


def test_clean_ends_what_jobs_left_and_nothing_else(fleet: Fleet, bystander: Bystander) -> None:
    """A leftover of a job whose every guardian is gone; beside it a job that runs, and one of another home."""
    env = {**os.environ, "TORCHFLEET_JOB_ID": GONE}
    left = subprocess.Popen(["sleep", "601"], env=env)
    started, _ = sleepers(fleet)
    assert f"pid {left.pid} of {GONE}" in " ".join(fleet.play("clean.yml", check=True).stdout.split())
    assert left.poll() is None
    cleaned = fleet.play("clean.yml")
    assert cleaned.rc == 0, cleaned.stdout
    assert left.wait(5) == -signal.SIGTERM
    assert f"pid {left.pid} of {GONE}, sleep 601" in " ".join(cleaned.stdout.split())
    assert len(fleet.alive(started.job_id)) >= 2
    cleaned = fleet.play("clean.yml", job_id=started.job_id)
    assert cleaned.rc == 0, cleaned.stdout
    started.all_gone()
    assert started.process.wait(10) != 0
    assert started.result["state"] == "cancelled"
    fleet.play("clean.yml")
    assert not list((fleet.home / "jobs").iterdir())


def test_supervisor_and_guard_are_killed_at_once(fleet: Fleet, bystander: Bystander) -> None:
    """Nobody on the node is left to act: clean.yml ends the ranks by their mark and writes the result."""
    started, _ = sleepers(fleet)
    guard, supervisor = ours(started, "guard"), ours(started, "supervisor")
    os.kill(guard, signal.SIGSTOP)  # so that it cannot notice
    os.kill(supervisor, signal.SIGKILL)
    os.kill(guard, signal.SIGKILL)
    assert started.process.wait(10) != 0
    assert len(fleet.alive(started.job_id)) >= 2
    cleaned = fleet.play("clean.yml")
    assert cleaned.rc == 0, cleaned.stdout
    started.all_gone()
    assert started.result["state"] == "lost"


def test_two_jobs_at_once_stay_apart(fleet: Fleet) -> None:
    first, _ = sleepers(fleet)
    second, _ = sleepers(fleet)
    os.kill(first.record(0)["pid"], signal.SIGKILL)
    first.all_gone()
    assert first.result["state"] == "failed"
    assert len(fleet.alive(second.job_id)) >= 2
    second.process.send_signal(signal.SIGTERM)
    second.all_gone()


@pytest.mark.parametrize("name", ["t", "a-name-that-leaves-no-room-for-unix-sockets" * 2])
def test_no_directory_of_the_launcher_stays(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="tf") as short:
        scratch = Path(short) / name
        scratch.mkdir()
        monkeypatch.setenv("TMPDIR", str(scratch))
        assert fleet.play(workload="/bin/true").rc == 0
        assert list(scratch.iterdir()) == []


def test_saving_state_on_sigterm_is_no_success(fleet: Fleet) -> None:
    script = fleet.root / "saves.py"
    script.write_text(
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(0))\nprint(1, flush=True)\ntime.sleep(600)\n"
    )
    played = fleet.play(workload=str(script), job_timeout=2)
    assert played.rc != 0
    assert played.result["state"] == "timed_out"


def shell_script(fleet: Fleet, *lines: str) -> str:
    """Make a workload that starts programs as its children."""
    script = fleet.root / "run.sh"
    script.write_text("\n".join(["#!/bin/bash", *lines, ""]))
    script.chmod(0o700)
    return str(script)


@pytest.mark.parametrize(
    ("launcher", "how", "grace"),
    [("openmpi", "cancel", 10), ("openmpi", "timeout", None), ("torchrun", "cancel", None), ("openmpi", "timeout", 10)],
)
def test_what_a_shell_script_started_has_its_grace_too(
    fleet: Fleet, bystander: Bystander, launcher: str, how: str, grace: float | None
) -> None:
    """The shell dies of SIGTERM at once; the job waits for the program that saves its state."""
    workload = shell_script(fleet, f"python {SCRIPTS}/saver.py", "echo the shell goes on")
    limits = {"grace": grace} if grace else {}
    limits |= {"job_timeout": 15} if how == "timeout" else {}
    started = fleet.start(workload=workload, launcher=launcher, **limits)
    for rank in (0, 1):
        started.wait_for_output(rank, "up")
    if how == "cancel":
        started.process.send_signal(signal.SIGINT)
    assert started.process.wait(40) != 0
    started.all_gone()
    assert started.result["state"] == ("cancelled" if how == "cancel" else "timed_out")
    for rank in (0, 1):
        assert started.brought_home(rank) == ["up", "saving", "SAVED"]
    assert started.result["leftovers"] == {"localhost": []}


def test_a_rank_that_saves_is_waited_for_and_holds_up_no_other(fleet: Fleet) -> None:
    """By default, and though the other rank is long gone: neither that nor the launcher disturbs it."""
    workload = shell_script(
        fleet, f'[ "$RANK" = 0 ] && exec python {SCRIPTS}/saver.py 6', "echo up", "sleep 600 & sleep 600"
    )
    started = fleet.start(workload=workload)
    for rank in (0, 1):
        started.wait_for_output(rank, "up")
    started.process.send_signal(signal.SIGTERM)
    started.wait_for_output(0, "saving")
    started.wait_until(lambda: "rc" in started.record(1), 3)
    assert "SAVED" not in (started.job_dir / "ranks/0/stdout").read_text()
    assert started.process.wait(40) != 0
    assert [row["state"] for row in started.result["ranks"]] == ["ended", "ended"]
    assert started.brought_home(0) == ["up", "saving", "SAVED"]


def test_grace_is_the_limit(fleet: Fleet) -> None:
    started = fleet.start(workload=str(SCRIPTS / "saver.py"), workload_args=["600"], grace=1)
    for rank in (0, 1):
        started.wait_for_output(rank, "up")
    started.process.send_signal(signal.SIGTERM)
    started.all_gone()
    assert started.process.wait(20) != 0
    assert {row["signal"] for row in started.result["ranks"]} == {signal.SIGKILL}


def test_a_rank_that_is_no_python_is_ended_by_sigterm_when_its_time_is_over(fleet: Fleet) -> None:
    """Not by the signal that asks Python where it hangs."""
    played = fleet.play(workload="/bin/sleep", workload_args="600", job_timeout=2)
    assert played.result["state"] == "timed_out"
    assert {row["signal"] for row in played.result["ranks"]} == {signal.SIGTERM}


def test_python_below_a_shell_tells_where_it_hangs(fleet: Fleet) -> None:
    played = fleet.play(workload=shell_script(fleet, f"python {SLEEPER}", "true"), job_timeout=4)
    assert played.result["state"] == "timed_out"
    for rank in (0, 1):
        assert "most recent call first" in played.output(rank, "stderr")
    last = len(Path(SLEEPER).read_text().splitlines())
    assert played.result["first_failure"]["message"] == f'File "{SLEEPER}", line {last} in <module>'


def test_what_a_shell_script_and_the_python_below_it_say_is_told_together(fleet: Fleet) -> None:
    report = "print('torchfleet: loss=0.5', flush=True); time.sleep(1); print('torchfleet: loss=0.25')"
    lines = ["echo torchfleet: begun=1", f'python -c "import time; {report}"', "echo done by $RANK"]
    result = fleet.play(workload=shell_script(fleet, *lines)).result
    assert result["state"] == "succeeded" and result["metrics"] == {"begun": 1, "loss": 0.25}
    assert [row["last_line"] for row in result["ranks"]] == ["done by 0", "done by 1"]
    assert all(1.0 <= row["seconds"] <= result["seconds"] for row in result["ranks"])


@pytest.mark.parametrize("launcher", ["openmpi", "torchrun"])
def test_workers_of_a_rank_are_no_leftovers_of_a_failed_job(fleet: Fleet, launcher: str) -> None:
    """As those of a DataLoader: of the rank that is killed, and of the one that is ended because of it.

    Here they are out of reach of what a launcher does to the group of a process.
    """
    script = fleet.root / "loader.py"
    script.write_text(
        "import multiprocessing, os, signal, time\n"
        "def work():\n    os.setsid()\n    time.sleep(600)\n"
        "workers = [multiprocessing.Process(target=work) for _ in range(3)]\n"
        "[worker.start() for worker in workers]\n"
        "print('up', flush=True)\n"
        "os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(600)\n"
    )
    started = fleet.start(workload=str(script), launcher=launcher)
    assert started.process.wait(40) != 0
    started.all_gone()
    assert started.result["first_failure"]["cause"] == "killed by SIGKILL"
    assert started.result["leftovers"] == {"localhost": []}


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_nobody_reads_the_output(fleet: Fleet, number: str) -> None:
    """A stopped pager, a stuck CI log: the pipe is full, the job must end all the same."""
    script = fleet.root / "talks.py"
    script.write_text("import time\nwhile True:\n    print('x' * 400, flush=True)\n    time.sleep(0.001)\n")
    reader, writer = os.pipe()
    started = fleet.start(stdout=writer, workload=str(script), show_ranks="all")
    os.close(writer)
    first = started.record(0)["pid"]
    output = started.job_dir / "ranks/0/stdout"
    started.wait_until(lambda: output.exists() and output.stat().st_size > 1 << 20)
    workers = [pid for pid in pids() if parent(pid) == started.process.pid]
    assert workers
    started.process.send_signal(signal.Signals[number])
    started.all_gone(first, *workers)
    assert started.result["state"] == ("lost" if number == "SIGKILL" else "cancelled")
    started.process.kill()  # it may wait for its reader for ever: that is its own affair
    os.close(reader)
    started.process.wait()


def test_the_reader_of_the_output_leaves(fleet: Fleet) -> None:
    """`train.yml | head`: the job goes on, and ansible-playbook ends when it does."""
    script = fleet.root / "talks.py"
    script.write_text("import time\nfor n in range(30):\n    print('line', n, flush=True)\n    time.sleep(0.1)\n")
    reader, writer = os.pipe()
    started = fleet.start(stdout=writer, workload=str(script), np=1)
    os.close(writer)
    started.wait_for_output(0, "line")  # before that Ansible itself writes, and does not start what nobody sees
    os.read(reader, 10)
    os.close(reader)
    started.process.wait(60)
    assert started.result["state"] == "succeeded"


def test_a_flood_of_reports_does_not_hold_up_the_end(fleet: Fleet) -> None:
    script = fleet.root / "reports.py"
    script.write_text("n = 0\nwhile True:\n    n += 1\n    print(f'torchfleet: step={n}/1000000000 loss=0.5')\n")
    started = fleet.start(workload=str(script), job_env={"PYTHONUNBUFFERED": ""})
    started.wait_until((started.job_dir / "ranks/0/stdout").exists)
    started.wait_until(lambda: (started.job_dir / "ranks/0/stdout").stat().st_size > 10 << 20)
    started.process.send_signal(signal.SIGINT)
    started.all_gone()


def test_a_launcher_that_stays_is_ended_when_the_guard_is_killed(fleet: Fleet, bystander: Bystander) -> None:
    """As sbatch --wait does: it does not notice that its ranks are gone."""
    real, stays = fleet.home / "openmpi" / "bin" / "mpirun", fleet.root / "mpirun"
    stays.write_text(f'#!/bin/sh\ncase "$*" in *--version*) exec {real} "$@" ;; esac\n{real} "$@"\nexec sleep 600\n')
    stays.chmod(0o700)
    started, escaped = sleepers(fleet, "--escape", "--ignore-term", torchfleet_mpirun=str(stays))
    launcher = ours(started, "launcher")
    os.kill(ours(started, "guard"), signal.SIGKILL)
    started.all_gone(*escaped, launcher)
    assert started.process.wait(30) != 0
    assert not running(launcher)
    assert "guard" in started.result["first_failure"]["cause"]


@pytest.mark.parametrize("what", ["supervisor", "guard"])
def test_a_guardian_is_stopped(fleet: Fleet, bystander: Bystander, what: str) -> None:
    """Its twin takes it for dead after some seconds."""
    started, escaped = sleepers(fleet, "--escape")
    os.kill(ours(started, what), signal.SIGSTOP)
    started.all_gone(*escaped, seconds=15)
    assert started.process.wait(20) != 0
    fleet.play("clean.yml")
    assert started.result["state"] == ("lost" if what == "supervisor" else "failed")


def test_one_run_that_cannot_come_home_does_not_hold_up_the_others(fleet: Fleet) -> None:
    homeless, _ = sleepers(fleet, job_id="homeless", runs_dir=str(fleet.root / "gone"))
    other, _ = sleepers(fleet, job_id="other")
    for started in (homeless, other):
        for pid in [pid for pid in pids() if parent(pid) == started.process.pid] + [started.process.pid]:
            os.kill(pid, signal.SIGKILL)
        started.all_gone()
        started.process.wait()
        started.wait_until((started.job_dir / "result.json").exists)
    shutil.rmtree(fleet.root / "gone")
    (fleet.root / "gone").touch()
    cleaned = fleet.play("clean.yml")
    assert cleaned.rc != 0
    assert str(fleet.root / "gone") in cleaned.msg
    assert other.result["state"] == "lost"


def test_cleaning_a_job_that_is_not_there_says_so(fleet: Fleet) -> None:
    cleaned = fleet.play("clean.yml", job_id="never-was")
    assert cleaned.rc != 0
    assert "never-was" in cleaned.msg
