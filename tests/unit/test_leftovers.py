"""What clean.yml takes away on a node: only processes that are still the same, only code that nobody uses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics import bootstrap
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes import leftovers
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes import noted_processes, processes
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes.job_processes import snapshot_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software import batch_system
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.usage import sampler
from ansible_collections.torchfleet.cluster.plugins.modules.reap import tell
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import runtime_archive


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_pid_that_went_to_another_process_is_not_signalled(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reproduced before: the file had a bare pid."""
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([])
    lock = job.lock()
    noted = processes.identity(sleeper.pid)
    monkeypatch.setattr(leftovers, "CANCEL_SECONDS", 0.1)
    for wrong in ({**noted, "started": noted["started"] - 1}, {"pid": sleeper.pid}, {"pid": "1"}, [sleeper.pid], None):
        job.write("supervisor.json", wrong)
        leftovers.cancel(job)
        assert sleeper.poll() is None
    job.write("supervisor.json", noted)
    leftovers.cancel(job)
    assert sleeper.wait(60) == -15
    os.close(lock)


def test_what_has_no_mark_goes_with_its_parent_that_has_one(tmp_path: Path) -> None:
    """Reproduced before: nobody is left to look after the job, and a program's daemon has an environment of its own.

    What a job that runs has below the same process stays.
    """
    running = JobDir(str(tmp_path / "jobs" / "runs"))
    running.create([])
    lock = running.lock()
    nested = [*marks(running), "sh", "-c", "env -i sleep 601 & echo $!; wait"]
    code = f"import subprocess; subprocess.Popen(['sleep', '600'], env={{}}); subprocess.run({nested})"
    gone = [*marks(JobDir(str(tmp_path / "jobs" / "gone"))), sys.executable, "-c", code]
    parent = subprocess.Popen(gone, stdout=subprocess.PIPE)
    assert parent.stdout
    stays = int(parent.stdout.readline())
    try:
        ended = [row for row in leftovers.end_leftovers(str(tmp_path)) if row["job_id"] == "gone"]
        parent.wait()
        assert len(ended) == 2 and "sleep 600" in [row["command"] for row in ended]
        assert all(row["ended"] for row in ended)
        still = processes.read(stays)
        assert still and still.state == "S"
        os.kill(still.parent, signal.SIGKILL)
    finally:
        os.kill(stays, signal.SIGKILL)
        os.close(lock)


@pytest.fixture
def daemon() -> Iterator[int]:
    """The pid of a process whose parent is gone, which nothing marks."""
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 0)  # another test may have made this process one
    start = ["env", "-i", "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"]
    pid = int(subprocess.run(start, stdout=subprocess.PIPE, check=True).stdout)
    yield pid
    if processes.is_running(pid):
        os.kill(pid, signal.SIGKILL)


def gone_with(tmp_path: Path, noted: object) -> tuple[JobDir, list[int]]:
    """Return a job that is over with such a note, and what of it is ended."""
    job = JobDir(str(tmp_path / "jobs" / "gone"))
    if not os.path.isdir(job.path):
        job.create([])
        os.close(job.lock())
    job.write(noted_processes.FILE, noted)
    return job, [row["pid"] for row in leftovers.end_leftovers(str(tmp_path)) if row["job_id"] == "gone"]


def test_what_was_noted_goes_when_nobody_looks_after_the_job(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A daemon with an environment of its own, whose wrapper, guard and supervisor were killed."""
    job, _ended = gone_with(tmp_path, [])  # first: what it leaves is younger
    process = processes.read(request.getfixturevalue("daemon"))
    assert process
    earlier = {"here": noted_processes.here(), "processes": [[process.pid, process.started - 1]]}
    elsewhere = {"here": ["another boot", ""], "processes": [[process.pid, process.started]]}
    odd = {**earlier, "processes": [[1], None, ["1", "2"], [{}, []], [-1, 0], [process.pid, str(process.started)]]}
    for wrong in (earlier, elsewhere, odd, [], {"here": 1, "processes": 1}):
        assert gone_with(tmp_path, wrong)[1] == []
    noted_processes.note(job, [process])
    lock = job.lock()
    assert not [row for row in leftovers.end_leftovers(str(tmp_path)) if row["job_id"] == "gone"]  # it runs
    os.close(lock)
    (row,) = [row for row in leftovers.end_leftovers(str(tmp_path)) if row["job_id"] == "gone"]
    assert (row["pid"], row["ended"]) == (process.pid, "SIGTERM") and not processes.is_running(process.pid)


@pytest.mark.parametrize(
    ("launcher", "lives", "found"), [("srun", False, True), ("srun", True, False), ("openmpi", False, False)]
)
def test_what_was_noted_is_found_when_the_wrapper_is_killed_that_slurm_started(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    sleeper: subprocess.Popen[bytes],
    launcher: str,
    lives: bool,
    found: bool,
) -> None:
    """Nothing of ours is above it then. Other wrappers are below the guard, and so are their daemons."""
    job = JobDir(str(tmp_path / "job"))
    job.create([0])
    os.close(job.lock())  # first: what the job leaves is younger
    process = processes.read(request.getfixturevalue("daemon"))
    assert process
    noted_processes.note(job, [process])
    wrapper = sleeper.pid if lives else 1 << 22
    record = {"rank": 0, "local_rank": 0, "host": "n1", "wrapper_pid": wrapper, "cpus": [0], "started": 1.0}
    job.write("ranks/0/record.json", record)
    seen = snapshot_of(job, {"ranks": [0], "launcher": {"name": launcher}}, (), ())
    assert (process.pid in [row.pid for row in seen.foreign]) == found


@pytest.mark.parametrize("forged", ["has its parent", "is older", "no lock"])
def test_a_note_alone_ends_nothing(
    tmp_path: Path, forged: str, daemon: int, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reproduced before: what a program wrote in the place of the note was ended, whoever's it was."""
    foreign = processes.read(sleeper.pid if forged == "has its parent" else daemon)
    assert foreign
    if forged == "is older":
        monkeypatch.setattr(noted_processes, "began", lambda _job: time.time() + 60)
    if forged == "no lock":
        os.unlink(gone_with(tmp_path, [])[0].at("lock"))
    _job, ended = gone_with(tmp_path, {"here": noted_processes.here(), "processes": [list(foreign.identity)]})
    assert ended == [] and processes.is_running(foreign.pid)


def test_a_program_that_names_another_process_as_its_wrapper_has_nothing_below_it(
    tmp_path: Path,
) -> None:
    """Reproduced before: all that was below any process of the user was noted as the job's, for clean.yml to end."""
    job = JobDir(str(tmp_path / "job"))
    job.create([0])
    order: Any = {"ranks": [0], "nic": "", "sample": True, "launcher": {"name": "openmpi"}}
    record = {"rank": 0, "local_rank": 0, "host": "n1", "wrapper_pid": os.getppid(), "cpus": [0], "started": 1.0}
    job.write("ranks/0/record.json", {**record, "pid": os.getpid()})
    assert sampler.rank_trees(job, order, os.getpid()) == {0: []}
    assert [process.pid for process in sampler.rank_trees(job, order, parent_of(os.getppid()))[0]][:1] == [os.getpid()]


def parent_of(pid: int) -> int:
    process = processes.read(pid)
    assert process
    return process.parent


def test_the_login_that_looks_is_none_of_them(tmp_path: Path) -> None:
    """A program may have started the sshd or the terminal server in which somebody cleans up."""
    code = (
        f"import sys; sys.path[:0] = {sys.path}\n"
        f"from {leftovers.__name__} import leftovers\n"
        "print(*(process.pid for process, _job in leftovers('/nowhere')))"
    )
    login = """env -i sh -c '"$1" -c "$2"; echo $$' sh "$@"; true"""
    gone = marks(JobDir(str(tmp_path / "jobs" / "gone")))
    done = subprocess.run(
        [*gone, "sh", "-c", login, "sh", sys.executable, code], capture_output=True, text=True, check=True
    )
    found, shell = done.stdout.splitlines()
    assert found and shell not in found.split()


def marks(job: JobDir) -> list[str]:
    """Return what starts a program with the marks of a job."""
    return ["env", f"TORCHFLEET_JOB_ID={job.job_id}", f"TORCHFLEET_JOB_DIR={job.path}"]


def test_old_versions_of_our_code_go(tmp_path: Path) -> None:
    """Reproduced before: they stayed for ever, and so did what a start left that was cut off."""
    long_ago = time.time() - (leftovers.KEPT_DAYS + 1) * 86400
    for name in ("aaaa", "bbbb", "bbbb.123", "cccc", "dddd"):
        (tmp_path / "lib" / name).mkdir(parents=True)
        (tmp_path / "lib" / name / "torchfleet.py").touch()
        if name != "cccc":  # which is in use
            os.utime(tmp_path / "lib" / name, (long_ago, long_ago))
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([])
    job.write("order.json", {"programs": {"torchfleet-rank": ["/p", f"{tmp_path}/lib/dddd/torchfleet.py"]}})
    assert leftovers.reap(str(tmp_path), dry_run=True)["runtimes"] == ["aaaa", "bbbb", "bbbb.123"]
    assert len(os.listdir(tmp_path / "lib")) == 5
    assert leftovers.reap(str(tmp_path))["runtimes"] == ["aaaa", "bbbb", "bbbb.123"]
    assert sorted(os.listdir(tmp_path / "lib")) == ["cccc", "dddd"]


def test_a_start_says_that_its_version_is_in_use(tmp_path: Path) -> None:
    command = bootstrap.bootstrap(sys.executable, str(tmp_path), runtime_archive.digest())
    parcel = bootstrap.parcel(runtime_archive.archive())
    subprocess.run(command, input=parcel, capture_output=True, timeout=60, check=True)
    os.utime(tmp_path / "lib" / runtime_archive.digest(), (0, 0))
    subprocess.run(command, input=b"", capture_output=True, timeout=60, check=True)
    assert leftovers.unused_runtimes(str(tmp_path)) == []


def test_first_starts_at_once_leave_one_version(tmp_path: Path) -> None:
    """Reproduced before: parts of most of them stayed beside it."""
    command = bootstrap.bootstrap(sys.executable, str(tmp_path), runtime_archive.digest())
    parcel = bootstrap.parcel(runtime_archive.archive())

    def start(_number: int) -> tuple[int, bytes]:
        done = subprocess.run(command, input=parcel, capture_output=True, timeout=120, check=False)
        return done.returncode, done.stderr

    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(start, range(12))) == {(0, b"")}
    assert os.listdir(tmp_path / "lib") == [runtime_archive.digest()]


@pytest.mark.parametrize("mark", ["fetched", "home"])  # the second is the mark of version 0.4
def test_a_job_that_was_fetched_goes(tmp_path: Path, mark: str) -> None:
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([])
    assert leftovers.reap(str(tmp_path))["waiting"] == ["one"]
    Path(job.at(mark)).touch()
    assert leftovers.reap(str(tmp_path))["removed"] == ["one"]
    assert not os.path.exists(job.path)


def test_a_job_that_is_ended_by_its_name_is_told(tmp_path: Path) -> None:
    """Reproduced before: "ended 0 leftovers", and of one that --check would end: "running"."""
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([])
    lock = job.lock()
    supervisor = subprocess.Popen(["sleep", "600"], pass_fds=[lock])
    os.close(lock)
    try:
        job.write("supervisor.json", processes.identity(supervisor.pid))
        assert leftovers.reap(str(tmp_path))["cancelled"] == []
        would = leftovers.reap(str(tmp_path), "one", dry_run=True)
        assert would["cancelled"] == ["one"] and job.running()
        found = leftovers.reap(str(tmp_path), "one")
        assert found["cancelled"] == ["one"] and not job.running()
    finally:
        supervisor.kill()
        supervisor.wait()
    assert tell(would, dry_run=True).startswith("would end job one; would end 0 leftovers; running: one")
    assert tell(found).startswith("ended job one; ended 0 leftovers; waiting: one")
    assert leftovers.reap(str(tmp_path), "one")["cancelled"] == []


CHANGED = [
    [],
    {"a": 1},
    {"queue": 1, "private_tmp": 1},
    {"queue": [["squeue"], "scancel"], "private_tmp": "PRECIOUS"},
    {"peers": [{"name": "n2"}], "placement": [None], "private_tmp": "PRECIOUS/x/torchfleet-0"},
]


@pytest.mark.parametrize("order", CHANGED)
def test_what_a_program_made_of_its_order_stops_no_clean_and_takes_nothing_else_away(
    tmp_path: Path, order: Any
) -> None:
    """Reproduced before: clean.yml failed at it each time, until somebody removed the job by hand."""
    precious = tmp_path / "precious"
    (precious / "x" / "torchfleet-0").mkdir(parents=True)
    job = JobDir(str(tmp_path / "home" / "jobs" / "one"))
    job.create([])
    job.write("order.json", json.loads(json.dumps(order).replace("PRECIOUS", str(precious))))
    assert job.order() is None
    batch_system.cancel(job)
    leftovers.clear(job, whole=False, waits=True, dry_run=False)
    assert (precious / "x" / "torchfleet-0").exists()
    assert leftovers.reap(str(tmp_path / "home"))["running"] == []
