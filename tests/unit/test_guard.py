"""What a guard counts as leftover, and when the time of a job begins."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import (
    JobDir,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job.guard import Guard
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes import processes
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes.job_processes import (
    Snapshot,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import reasons
from tests.driver import wait_until


def test_an_agent_that_dies_after_its_launcher_is_no_leftover(tmp_path: Path) -> None:
    order = {"ranks": [], "job_timeout": None, "launcher": {"name": "openmpi"}}
    guard = Guard(JobDir(str(tmp_path)), order, str(tmp_path), from_supervisor=-1, to_supervisor=-1)
    with subprocess.Popen(["sleep", "60"]) as orphan:
        try:
            assert orphan.pid in [process.pid for process in guard.foreign()]
            started = processes.identity(orphan.pid)["started"]
            (tmp_path / f"shell.{orphan.pid}.{started - 1}").touch()  # of an earlier process with that pid
            guard.launchers = guard.launcher_tree()
            assert orphan.pid in [process.pid for process in guard.foreign()]
            (tmp_path / f"shell.{orphan.pid}.{started}").touch()
            guard.launchers = guard.launcher_tree()
            assert orphan.pid not in [process.pid for process in guard.foreign()]
        finally:
            orphan.kill()


@pytest.mark.parametrize(
    ("launcher", "at_once"), [("openmpi", True), ("torchrun", True), ("srun", False), ("sbatch", False)]
)
def test_job_timeout_begins_when_ranks_are_there(tmp_path: Path, launcher: str, at_once: bool) -> None:
    """Under Slurm a job may wait in the queue for longer than that."""
    job = JobDir(str(tmp_path / "job"))
    job.create([0, 1])
    order = {"ranks": [0, 1], "launcher": {"name": launcher}, "job_timeout": 5.0, "notice": None}
    guard = Guard(job, order, "", from_supervisor=-1, to_supervisor=os.open(os.devnull, os.O_WRONLY))
    assert (guard.deadline is not None) == at_once
    assert guard.check_ranks() is None and (guard.deadline is not None) == at_once
    start = {"rank": 1, "local_rank": 1, "host": "n1", "wrapper_pid": os.getpid(), "cpus": [0], "started": time.time()}
    job.write("ranks/1/record.json", start)  # one of them is enough: the other may never come
    assert guard.check_ranks() is None and guard.deadline is not None
    first = guard.deadline
    assert guard.check_ranks() is None and guard.deadline == first
    assert Guard(job, {**order, "job_timeout": None}, "", from_supervisor=-1, to_supervisor=-1).deadline is None


def test_a_wrapper_that_is_a_zombie_has_died(tmp_path: Path) -> None:
    """Reproduced before, under MPICH and Intel MPI: their daemon does not collect it while its program lives."""
    job = JobDir(str(tmp_path / "job"))
    job.create([0])
    with subprocess.Popen(["sleep", "60"]) as wrapper:
        job.write("ranks/0/record.json", record_of(wrapper, os.getpid()))
        guard = guard_of(job)
        alive = guard.check_ranks()
        wrapper.kill()
        wait_until(lambda: (found := processes.read(wrapper.pid)) and found.state == "Z")
        reason = guard.check_ranks()
    assert alive is None and reason is not None and reason.code == "wrapper_died"


# Its first thread has ended, and the process cannot be collected: so is one that the kernel is taking apart.
EXITING = """import ctypes, os, signal, threading, time
threading.Thread(target=lambda: (time.sleep(0.3), os.kill(os.getpid(), signal.SIGKILL))).start()
ctypes.CDLL(None).syscall(ctypes.c_long({"x86_64": 60}.get(os.uname().machine, 93)), 0)"""


def test_a_launcher_that_is_on_its_way_out_was_not_ended_by_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a rank is blamed whose node heard of the launcher's death before its own guard did."""
    job = JobDir(str(tmp_path / "job"))
    job.create([])
    guard = guard_of(job, command=[], world_size=1)
    monkeypatch.setattr(guard, "snapshot", lambda: Snapshot([], [], {}, set()))  # not what other tests have started
    with subprocess.Popen([sys.executable, "-c", EXITING]) as launcher:
        guard.launcher = launcher.pid
        wait_until(lambda: (found := processes.read(launcher.pid)) and found.state == "Z")
        guard.end_all(reasons.wrapper_died(0))
        launcher.returncode = 0  # the guard has collected it
    assert job.launcher()["unasked"] and job.launcher()["rc"] == 128 + signal.SIGKILL


def test_what_slurm_runs_for_a_batch_file_has_its_time_to_end(tmp_path: Path) -> None:
    """Its srun was ended with the last rank, on a node whose guard has no launcher: for Slurm the job had failed."""
    job = JobDir(str(tmp_path / "job"))
    job.create([])
    given = {"ranks": [], "launcher": {"name": "sbatch"}, "job_timeout": None}
    guard = Guard(job, given, "", from_supervisor=-1, to_supervisor=-1)
    marks = {processes.JOB_VARIABLE: "job", processes.JOB_DIR_VARIABLE: job.path}
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **marks}) as srun:
        try:
            guard.exit_by = time.monotonic() + 60.0
            assert not guard.over()
            guard.exit_by = time.monotonic() - 0.1
            assert guard.over()
        finally:
            srun.kill()
    guard.exit_by = time.monotonic() + 60.0
    assert guard.over()


SLEEPS = "import time; print(flush=True); time.sleep(99)"
CATCHES = f"import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3)); {SLEEPS}"

# A data loader's worker has the handlers of the program that forked it. It would be gone before that can wait for it.
FORKS = f"""import os, signal, sys
def told(*_):
    if os.getpid() != program:
        os._exit(9)
    time.sleep(0.3)
    left = os.waitpid(worker, os.WNOHANG)[0]
    left or os.kill(worker, 9)
    sys.exit(4 if left else 3)
program = os.getpid()
signal.signal(signal.SIGUSR1, told)
worker = os.fork()
if worker == 0:
    import time; time.sleep(99)
{SLEEPS}"""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts a program as that of a rank, whose wrapper is a shell of this process."""
    started = []

    def start(code: str) -> tuple[subprocess.Popen[bytes], int]:
        shell = f"{sys.executable} -c '{code}' & echo $!; wait $!; echo ended $?; sleep 99"
        wrapper = subprocess.Popen(["/bin/sh", "-c", shell], stdout=subprocess.PIPE)
        started.append(wrapper)
        assert wrapper.stdout is not None
        program = int(wrapper.stdout.readline())
        assert wrapper.stdout.readline() == b"\n"
        return wrapper, program

    yield start
    for wrapper in started:
        for process in [*processes.descendants(wrapper.pid), processes.Process(wrapper.pid, 0, "", 0)]:
            with contextlib.suppress(ProcessLookupError):  # the guard may have reaped it, as its child
                os.kill(process.pid, signal.SIGKILL)
        wrapper.wait()


def guard_of(job: JobDir, **order: Any) -> Guard:
    told = {
        "ranks": [0],
        "launcher": {"name": "openmpi"},
        "job_timeout": 600.0,
        "notice": 599.9,
        "grace": None,
        **order,
    }
    return Guard(job, told, "", from_supervisor=-1, to_supervisor=os.open(os.devnull, os.O_WRONLY))


def record_of(wrapper: subprocess.Popen[bytes], program: int, **ended: Any) -> dict[str, Any]:
    whose = {"rank": 0, "local_rank": 0, "host": "n1", "wrapper_pid": wrapper.pid, "cpus": [0], "started": time.time()}
    return {**whose, "pid": program, **ended}


@pytest.mark.parametrize(("code", "told"), [(CATCHES, True), (FORKS, True), (SLEEPS, False)])
def test_a_program_is_told_that_the_end_is_near_if_it_has_a_handler(
    tmp_path: Path, rank: Any, code: str, told: bool
) -> None:
    """It would die of SIGUSR1 without one. Its workers are not told, though they have the same one."""
    wrapper, program = rank(code)
    job = JobDir(str(tmp_path / "job"))
    job.create([0])
    job.write("ranks/0/record.json", record_of(wrapper, program))
    guard = guard_of(job)
    time.sleep(max(0.0, guard.notice_at - time.monotonic()))
    assert guard.reason_to_end() is None
    if told:
        assert wrapper.stdout.readline() == b"ended 3\n"
    assert guard.reason_to_end() is None  # and only once
    assert (processes.read(program) is None) == told


def test_a_rank_that_has_saved_ends_no_job_before_the_others_had_their_time(tmp_path: Path, rank: Any) -> None:
    wrapper, program = rank(SLEEPS)
    job = JobDir(str(tmp_path / "job"))
    job.create([0, 1])
    saved = {"rc": 75, "signal": None, "finished": False, "error_code": "", "error": "", "ended": time.time()}
    job.write("ranks/0/record.json", record_of(wrapper, program, **saved))
    job.write("ranks/1/record.json", {**record_of(wrapper, program), "rank": 1})
    guard = guard_of(job, ranks=[0, 1], notice=None)
    assert guard.reason_to_end() is None and guard.saved is not None and not guard.over()
    guard.saved = (0, guard.saved[1] - 40.0)  # as if that time were over
    reason = guard.reason_to_end()
    assert reason is not None and reason.code == "saved"
    job.write("ranks/1/record.json", {**record_of(wrapper, program, **saved), "rank": 1, "error_code": "disk_full"})
    reason = guard.reason_to_end()
    assert reason is not None and reason.code == "rank_failed"  # nothing was saved where the disk was full


def guard_without_ranks(job: JobDir, command: str) -> Guard:
    """Return the guard of a node without ranks, whose launcher is this command of a shell."""
    given: dict[str, Any] = {"launcher_environment": {}, "launcher_search": [], "cwd": "/", "job_timeout": None}
    job.create([])
    guard = guard_of(job, ranks=[], job_id="j", host="n1", lease=60.0, **given)
    guard.start_launcher(["/bin/sh", "-c", command])
    return guard


def test_a_launcher_that_fails_on_a_head_without_ranks_ends_the_job(tmp_path: Path) -> None:
    """No rank of the head is missed then, and those of the others may never start."""
    guard = guard_without_ranks(JobDir(str(tmp_path / "job")), "exit 3")
    while guard.launcher:
        guard.collect_children()
    assert guard.reason_to_end() is None and not guard.over()  # others may still tell how their ranks ended
    assert guard.launcher_ended
    guard.launcher_ended -= 11.0  # as if that time were over
    reason = guard.reason_to_end()
    assert reason is not None and (reason.code, reason.detail) == ("launcher_died", "openmpi on n1 ended with status 3")
    guard.job.write("launcher.json", {**guard.job.launcher(), "rc": 0})
    assert guard.reason_to_end() is None  # its end was a good one: the link to the others may be lost for a while
    guard.launcher_ended -= 60.0
    assert guard.reason_to_end() is not None
    guard.exit_by = time.monotonic()  # all ranks are done
    assert guard.reason_to_end() is None and guard.over()


def test_a_launcher_that_was_killed_on_a_head_without_ranks_ends_the_job_at_once(tmp_path: Path) -> None:
    """No news is waited for: a killed sbatch leaves its ranks running. Status 137 is also that of a rank's death."""
    for command, at_once in (("kill -9 $$", True), ("exit 137", False)):
        guard = guard_without_ranks(JobDir(str(tmp_path / command)), command)
        while guard.launcher:
            guard.collect_children()
        reason = guard.reason_to_end()
        assert (reason is not None, guard.job.launcher()["rc"]) == (at_once, 137)
        assert reason is None or (reason.code, reason.detail) == (
            "launcher_died",
            "openmpi on n1 was killed by SIGKILL",
        )


@pytest.mark.parametrize(("command", "cancelled"), [("exec sleep 60", True), ("exit 0", False)])
def test_a_launcher_that_stays_after_the_ranks_leaves_no_job_in_slurm(
    tmp_path: Path, command: str, cancelled: bool
) -> None:
    """Reproduced before: srun waits for ever for a slurmstepd that was killed, and its nodes were not free again."""
    for name, line in (("squeue", "echo 4711 RUNNING"), ("scancel", f'echo "$@" > {tmp_path}/cancelled')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    guard = guard_without_ranks(JobDir(str(tmp_path / "job")), command)
    guard.job.write("order.json", {"queue": [[f"{tmp_path}/squeue"], [f"{tmp_path}/scancel"]]})
    while guard.launcher and not cancelled:
        guard.collect_children()
    guard.end_all(None)
    assert (tmp_path / "cancelled").exists() == cancelled


@pytest.mark.parametrize(("command", "noted"), [("kill -9 $$", False), ("exit 137", True)])
def test_slurm_is_not_asked_who_cancelled_a_job_whose_srun_was_killed(
    tmp_path: Path, command: str, noted: bool
) -> None:
    """Reproduced before: Slurm cancels the job of an srun that is gone, and the result said that somebody did."""
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 4711 CANCELLED\n")
    (tmp_path / "squeue").chmod(0o755)
    guard = guard_without_ranks(JobDir(str(tmp_path / "job")), command)
    guard.job.write("order.json", {"queue": [[f"{tmp_path}/squeue"], ["/nowhere/scancel"]]})
    while guard.launcher:
        guard.collect_children()
    guard.order["command"], guard.order["world_size"] = ["srun"], 0
    guard.end_all(reasons.launcher_killed("n1", signal.SIGKILL))
    assert bool(guard.job.read("batch.json")) == noted
