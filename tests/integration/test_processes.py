"""Finding and ending processes, on real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.leftovers import leftovers
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes import processes

JOB = f"unit-{os.getpid()}"  # these tests may run twice at once on a machine


def sleeper(**env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env=env)


def test_processes_are_found_by_their_mark_only() -> None:
    marked, plain = (
        sleeper(TORCHFLEET_JOB_ID="unit", TORCHFLEET_JOB_DIR="/d/unit"),
        sleeper(OTHER_TORCHFLEET_JOB_ID="x"),
    )
    try:
        found = {process.pid: mark for process, mark in processes.marked()}
        assert found[marked.pid] == ("unit", "/d/unit")
        assert plain.pid not in found
    finally:
        for process in (marked, plain):
            process.kill()
            process.wait()


def test_a_job_that_runs_has_no_leftovers_wherever_its_home_is(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "other" / "jobs" / "unit"))
    job.create([0])
    process = sleeper(TORCHFLEET_JOB_ID="unit", TORCHFLEET_JOB_DIR=job.path)

    def left() -> list[int]:
        return [found.pid for found, _job in leftovers(str(tmp_path / "home"))]

    try:
        lock = job.lock()
        assert process.pid not in left()
        os.close(lock)
        assert process.pid in left()
    finally:
        process.kill()
        process.wait()


def test_a_reused_pid_is_not_signalled() -> None:
    process = sleeper()
    try:
        now = processes.read(process.pid)
        assert now is not None
        assert not processes.send(now._replace(started=now.started - 1), signal.SIGKILL)
        assert process.poll() is None
        assert processes.send(now, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()


def test_end_all_asks_first_and_says_what_it_took() -> None:
    stubborn = [
        sys.executable,
        "-c",
        "import signal,time;signal.signal(15,signal.SIG_IGN);print(1,flush=True);time.sleep(60)",
    ]
    deaf = subprocess.Popen(stubborn, stdout=subprocess.PIPE, env={"TORCHFLEET_JOB_ID": JOB})
    assert deaf.stdout and deaf.stdout.readline()
    polite = sleeper(TORCHFLEET_JOB_ID=JOB)

    def marked_here() -> list[processes.Process]:
        return [process for process, mark in processes.marked() if mark.job_id == JOB]

    polite.send_signal(signal.SIGSTOP)
    rows = processes.end_all(marked_here, grace=0.3)
    assert {row["pid"]: row["ended"] for row in rows} == {deaf.pid: "SIGKILL", polite.pid: "SIGTERM"}
    assert marked_here() == []
