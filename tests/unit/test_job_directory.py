"""The directory of a job: what is in it, and whether the job runs, beside jobs that come and go."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics import job_directory
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.bounded_write import (
    write_in_thread,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import (
    BALLAST_BYTES,
    JobDir,
    jobs,
    remove,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.leftovers import reap
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.metrics import final_metrics
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.output_lines import Follower, last_line
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software import batch_system
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.job_files import outputs, remove_tree
from tests.unit.nodes import STAGING, nested, order_of_a_job


@contextmanager
def meanwhile(*churn: Callable[[int], object]) -> Iterator[None]:
    """Call functions over and over, each in a thread of its own, with a number that grows."""
    over = threading.Event()
    failed: list[BaseException] = []

    def again(do: Callable[[int], object]) -> None:
        number = 0
        while not over.is_set() and not failed:
            number += 1
            try:
                do(number)
            except BaseException as error:
                failed.append(error)

    threads = [threading.Thread(target=again, args=[do]) for do in churn]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failed


def made(path: Path) -> JobDir:
    job = JobDir(str(path))
    job.create([])
    return job


def test_two_that_ask_do_not_take_each_other_for_the_job(tmp_path: Path) -> None:
    job = made(tmp_path / "jobs" / "over")
    os.close(job.lock())
    code = f"import sys; from {JobDir.__module__} import JobDir\n"
    code += "job = JobDir(sys.argv[1]); print(sum(job.running() for _ in range(20000)))"
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", code, job.path]
    others = [subprocess.Popen(words, stdout=subprocess.PIPE, env=path) for _ in range(3)]
    assert [int(other.communicate(timeout=120)[0]) for other in others] == [0, 0, 0]


def test_a_job_takes_its_lock_although_others_ask_for_it(tmp_path: Path) -> None:
    job = made(tmp_path / "jobs" / "new")
    with meanwhile(lambda _number: job.running(), lambda _number: job.running()):
        for _again in range(200):
            lock = job.lock()
            assert job.running()
            os.close(lock)


def test_the_lock_of_a_job_that_runs_is_not_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory.LOCK_SECONDS", 0.05
    )
    job = made(tmp_path / "jobs" / "one")
    lock = job.lock()
    with pytest.raises(BlockingIOError):
        job.lock()
    os.close(lock)


def test_jobs_that_come_and_go_do_not_disturb_a_look(tmp_path: Path) -> None:
    made(tmp_path / "jobs" / "stays")

    def churn(number: int) -> None:
        job = made(tmp_path / "jobs" / f"{threading.get_ident()}-{number}")
        remove(job.path)

    with meanwhile(churn, churn):
        for _look in range(400):
            assert "stays" in [job.job_id for job in jobs(str(tmp_path))]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ESTALE, errno.EACCES])
def test_what_cannot_be_told_is_never_not_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    job = made(tmp_path / "jobs" / "unknown")
    os.close(job.lock())

    def fail(*_arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fail)
        assert job.running()
    with monkeypatch.context() as patched:
        patched.setattr("fcntl.flock", fail)
        assert job.running()
    assert not job.running()
    remove(job.path)
    assert not job.running()


def test_the_lock_of_a_job_is_no_link(tmp_path: Path) -> None:
    """As root this looks at the marks of every user's processes: none chooses which device is opened."""
    job = made(tmp_path / "jobs" / "one")
    (tmp_path / "device").touch()
    os.symlink(tmp_path / "device", job.at("lock"))
    assert job.running()  # what cannot be told


def test_nothing_is_ended_without_descriptors(tmp_path: Path) -> None:
    """Out of descriptors nothing can be told of any job: its processes must live."""
    job = made(tmp_path / "jobs" / "one")
    lock = job.lock()
    mark = {**os.environ, "TORCHFLEET_JOB_ID": "one", "TORCHFLEET_JOB_DIR": job.path}
    with subprocess.Popen(["sleep", "60"], env=mark) as rank:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            assert reap(str(tmp_path))["ended"] == []
            here = len(os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (here - 1, hard))
            assert job.running()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            rank.kill()
    os.close(lock)


QUEUE = """#!/bin/sh
# A batch system with three jobs; what is cancelled is noted.
case "$0" in
    *squeue) for word; do case "$word" in --name=torchfleet-train-77) echo 4711; echo "4712 --user=root";; esac; done;;
    *scancel) echo "$@" >> "${0%/*}/cancelled";;
esac
"""


def test_only_what_has_the_jobs_own_name_is_cancelled_and_by_number(tmp_path: Path) -> None:
    for name in ("squeue", "scancel"):
        (tmp_path / name).write_text(QUEUE)
        (tmp_path / name).chmod(0o755)
    job = made(tmp_path / "jobs" / "train")
    for token in ("78", "77"):
        find = [str(tmp_path / "squeue"), f"--name=torchfleet-train-{token}"]
        job.write("order.json", {"queue": [find, [str(tmp_path / "scancel"), "--quiet"]]})
        batch_system.cancel(job)
    assert (tmp_path / "cancelled").read_text() == "--quiet 4711 4712\n"


STATES = """#!/bin/sh
# A batch system whose job ends: each question takes a state from the list.
read -r state < "${0%/*}/states" || exit 1
sed -i 1d "${0%/*}/states"
echo "4711 $state"
"""


@pytest.mark.parametrize(
    ("states", "noted"),
    [
        (["COMPLETING", "COMPLETING", "TIMEOUT"], "TIMEOUT"),
        (["CANCELLED"], "CANCELLED"),
        (["COMPLETING", "FAILED"], None),  # its ranks did that
        (["RUNNING", "CANCELLED"], None),  # we did: it ran when it was asked first
        (["COMPLETING"], None),  # and then it does not answer
        (["COMPLETING", "CANCELLED 4712"], None),
        ([], None),
    ],
)
def test_what_slurm_had_ended_before_we_took_it_back(tmp_path: Path, states: list[str], noted: str | None) -> None:
    (tmp_path / "squeue").write_text(STATES)
    (tmp_path / "squeue").chmod(0o755)
    (tmp_path / "states").write_text("".join(f"{state}\n" for state in states))
    job = made(tmp_path / "jobs" / "train")
    job.write("order.json", {"queue": [[str(tmp_path / "squeue")], ["/nowhere/scancel"]]})
    batch_system.note_end(job, batch_system.state_of(job))
    assert batch_system.noted_end(job) == noted


def test_a_job_of_no_batch_system_has_no_state_there(tmp_path: Path) -> None:
    job = made(tmp_path / "jobs" / "train")
    job.write("order.json", {"queue": []})
    assert batch_system.state_of(job) == ""
    job.write("batch.json", {"state": ["CANCELLED"]})  # a program of the job may write there
    assert batch_system.noted_end(job) is None


def test_a_batch_system_that_is_gone_stops_no_clean(tmp_path: Path) -> None:
    job = made(tmp_path / "jobs" / "train")
    job.write("order.json", {"queue": [["/nowhere/squeue"], ["/nowhere/scancel"]]})
    batch_system.cancel(job)


RECORD = {"rank": 0, "local_rank": 0, "host": "n1", "wrapper_pid": 7, "cpus": [0], "started": 1.0}
TIMES = ("started", "started_tick", "ended", "ended_tick")
OVER = {"rc": 1, "signal": None, "finished": False, "error": "", "ended": 2.0}


@pytest.mark.parametrize("whole", [RECORD, {**RECORD, "pid": 8}, {**RECORD, **OVER}, {**RECORD, **OVER, "signal": 9}])
def test_the_record_of_a_rank(tmp_path: Path, whole: dict[str, Any]) -> None:
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([0])
    job.write("ranks/0/record.json", whole)
    assert job.record(0) == whole


@pytest.mark.parametrize(
    "lie",
    [[], 7, {}, {**RECORD, "wrapper_pid": "7"}, {**RECORD, "rank": 1}, {**RECORD, "rank": True}, {**RECORD, "rc": 0}]
    + [{**RECORD, "error_code": "wrapper_died"}]
    + [{**RECORD, **OVER, name: odd} for name in OVER for odd in ([], "x") if (name, odd) != ("error", "x")]
    + [{**RECORD, **OVER, name: odd} for name in TIMES for odd in (math.nan, math.inf, -1.0, 10**400, "x")]
    + [{**RECORD, **OVER, "peak_bytes": odd} for odd in (-1, 10**19, 10**400, 1.0, True)]
    + [
        {**RECORD, **OVER, name: odd}
        for name in ("rc", "wrapper_pid", "local_rank", "pid")
        for odd in (-1, 1 << 40, True)
    ]
    + [{**RECORD, **OVER, "signal": odd} for odd in (0, -9, 65, True, "9")],
)
def test_a_record_that_no_wrapper_wrote_is_none(tmp_path: Path, lie: Any) -> None:
    """Reproduced before: the guard and its twin died of it, and processes of the job lived on.

    Of odd times the head's supervisor died, or the controller refused the result as none.
    """
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([0])
    job.write("ranks/0/record.json", lie)
    assert job.record(0) is None


def test_what_a_program_put_in_place_of_our_files_is_not_believed(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([0])
    job.write("end.json", {"reason": 7})
    job.write("launcher.json", [7])
    job.write("leftovers.json", [7, {"pid": 1, "command": "sleep", "ended": "SIGTERM"}, {"pid": "1"}])
    assert (job.end(), job.launcher()) == (None, {})
    assert job.leftovers() == [{"pid": 1, "command": "sleep", "ended": "SIGTERM"}]


def test_a_pipe_a_link_a_device_or_a_deep_file_is_not_read(tmp_path: Path) -> None:
    """Reproduced before: whoever opened a pipe in place of a file waited for ever."""
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([0, 1])
    secret = tmp_path / "secret"
    secret.write_text('{"a": 1}')
    os.symlink(secret, job.at("link.json"))
    os.symlink("/dev/zero", job.at("zero.json"))
    os.mkfifo(job.at("pipe.json"))
    Path(job.at("deep.json")).write_text("[" * 100_000)
    assert [job.read(f"{name}.json") for name in ("link", "zero", "pipe", "deep")] == [None] * 4
    os.mkfifo(job.rank(0, "stdout"))
    os.symlink(secret, job.rank(1, "stdout"))
    assert [last_line(job.rank(rank, "stdout")) for rank in (0, 1)] == ["", ""]
    lines: list[object] = []
    for rank in (0, 1):
        follower = Follower(job.rank(rank, "stdout"), rank, "stdout", True, lines.append, lambda *_: None)
        follower.look(last=True)
    assert lines == []


@pytest.mark.parametrize("what", ["link", "hard link", "pipe", "directory", "nothing"])
def test_metrics_are_written_anew_whatever_a_rank_put_in_their_place(tmp_path: Path, what: str) -> None:
    """Reproduced before: the file that a link led to was emptied, and a pipe held up clean.yml."""
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([0])
    Path(job.rank(0, "stdout")).write_text("torchfleet: loss=0.5\n")
    mine, place = tmp_path / "mine", Path(job.at("metrics.jsonl"))
    mine.write_text("years of work")
    plant: dict[str, Callable[[], object]] = {
        "link": lambda: place.symlink_to(mine),
        "hard link": lambda: place.hardlink_to(mine),
        "pipe": lambda: os.mkfifo(place),
        "directory": lambda: (place / "below").mkdir(parents=True),
        "nothing": int,
    }
    plant[what]()
    assert final_metrics(job, {"ranks": [0]}).last == {"loss": 0.5}
    assert mine.read_text() == "years of work"
    assert place.is_file() and not place.is_symlink() and json.loads(place.read_text())["loss"] == 0.5


def test_a_directory_in_place_of_a_file_of_ours_is_no_hindrance(tmp_path: Path) -> None:
    """Reproduced before: the head died of it at the end of the job, and of every clean.yml after that."""
    job = made(tmp_path / "jobs" / "one")
    os.makedirs(job.at("result.json", "below"))
    job.write("result.json", {"state": "failed"})
    assert job.read("result.json") == {"state": "failed"}
    assert not [name for name in os.listdir(job.path) if name.endswith(".tmp")]


def test_a_pipe_in_place_of_a_lock_is_not_waited_for(tmp_path: Path) -> None:
    """Anybody's process may name a directory of its own as that of its job."""
    os.mkfifo(tmp_path / "lock")
    assert not JobDir(str(tmp_path)).running()


def test_why_a_job_was_ended_is_what_was_noted_first(tmp_path: Path) -> None:
    """What follows the cause (ranks that hang up, a launcher that leaves) would be blamed for it."""
    job = made(tmp_path / "one")
    assert job.end() is None
    job.claim_end("timed_out", "job_timeout of 5 s")
    job.claim_end("cancelled", "SIGINT to ansible-playbook", "n2")
    end = job.end()
    assert end is not None and (end["reason"], end["detail"], end["host"]) == ("timed_out", "job_timeout of 5 s", "")
    assert [name for name in os.listdir(job.path) if name.startswith("end.")] == ["end.json"]


@pytest.mark.parametrize("planted", [{"reason": "so", "detail": "", "at": 1.0}, [7], "directory"])
def test_what_is_no_reason_does_not_stand_in_the_place_of_one(tmp_path: Path, planted: Any) -> None:
    job = made(tmp_path / "one")
    if planted == "directory":
        os.mkdir(job.at("end.json"))
    else:
        job.write("end.json", planted)
    job.claim_end("timed_out", "job_timeout of 5 s")
    assert (job.end() or {}).get("reason") == "timed_out"


def test_where_a_job_ended_is_a_name(tmp_path: Path) -> None:
    """Reproduced before: a list in its place ended the supervisor, and every clean.yml after that."""
    job = made(tmp_path / "one")
    job.write("end.json", {"reason": "lost", "detail": "", "at": 1.0, "host": ["x"], "tick": "y", "more": 1})
    assert job.end() == {"reason": "lost", "detail": "", "at": 1.0}


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    """Reproduced before: a guard died whose memory was limited, as each look at a record took 64 MiB."""
    job = made(tmp_path / "one")
    job.write("small.json", [1])
    tracemalloc.start()
    try:
        assert job.read("small.json") == [1]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_on_a_full_disk_what_was_kept_free_takes_what_is_said_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = made(tmp_path / "one")
    ballast = tmp_path / "one" / "ballast"
    assert ballast.stat().st_blocks * 512 >= 1 << 20  # a file with a hole in it keeps nothing free
    write = job_directory.write_json

    def full(path: str, value: Any) -> None:
        if ballast.exists():
            raise OSError(errno.ENOSPC, "no space left")
        write(path, value)

    monkeypatch.setattr(job_directory, "write_json", full)
    job.write("result.json", {"state": "failed"})
    assert job.read("result.json") == {"state": "failed"} and not ballast.exists()

    def failing(_path: str, _value: Any) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    made(tmp_path / "two")
    monkeypatch.setattr(job_directory, "write_json", failing)
    with pytest.raises(OSError, match="the disk is broken"):
        JobDir(str(tmp_path / "two")).write("result.json", {})
    assert (tmp_path / "two" / "ballast").exists()


def test_what_is_written_aside_is_written_where_no_thread_can_be_started(tmp_path: Path) -> None:
    """Of a job that takes all processes that its container or user may have: the guard died before any signal."""
    job = made(tmp_path / "jobs" / "one")
    before = threading.stack_size(1 << 50)  # more than there is: no thread starts
    try:
        with pytest.raises(RuntimeError, match="start new thread"):
            threading.Thread(target=int).start()
        write_in_thread(lambda: job.claim_end("rank_failed", "rank 0 failed"))
    finally:
        threading.stack_size(before)
    assert (job.end() or {})["reason"] == "rank_failed"


def test_job_directory(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([0, 1])
    assert (tmp_path / "jobs" / "one" / "ballast").stat().st_size == BALLAST_BYTES
    with pytest.raises(FileExistsError):
        JobDir(job.path).create([0])
    job.claim_end("rank_failed", "first")
    job.claim_end("cancelled", "second")
    assert job.read("end.json")["detail"] == "first"
    assert not job.running()
    lock = job.lock()
    assert job.running()
    os.close(lock)
    assert [found.job_id for found in jobs(str(tmp_path))] == ["one"]
    assert jobs(str(tmp_path / "none")) == []


def test_two_threads_may_both_end_a_job(tmp_path: Path) -> None:
    """The supervisor does while it buries a dead guard beside: neither may trip over the other's note."""
    for number in range(50):
        job = JobDir(str(tmp_path / str(number)))
        job.create([])
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda reason, job=job: job.claim_end(reason), "abcd"))
        assert job.read("end.json")["reason"] in "abcd"


def of_0_4(**changed: Any) -> dict[str, Any]:
    """Return order.json as version 0.4 wrote it: what the node had added was in it, too."""
    peer = {"name": "n2", "home": "/h", "interpreter": "/usr/bin/python3", "address": "192.0.2.2"}
    place = {"rank": 0, "local_rank": 0, "host": "n1"}
    old = {**order_of_a_job(placement=[place, {**place, "rank": 1, "host": "n2"}]), **STAGING, "peers": [peer]}
    return {name: value for name, value in {**old, **changed}.items() if name not in ("ranks", "head")}


def test_a_job_that_version_0_4_left_is_still_known(tmp_path: Path) -> None:
    """For clean.yml: it brings the run home, or drops it, and takes the files away."""
    job = JobDir(str(tmp_path / "one"))
    job.create([0, 1])
    job.write("order.json", of_0_4())
    order, (route,) = job.order(), job.routes()
    assert order is not None and (order["ranks"], order["head"]) == ([0], "n1")
    assert (route["host"], route["interpreter"], job.staging()) == ("n2", "/usr/bin/python3", STAGING)
    job.write("order.json", of_0_4(host="n2", peers=None))
    order = job.order()
    assert order is not None and (order["ranks"], order["head"], job.routes()) == ([1], "", [])


def test_a_tree_of_any_depth_is_counted_and_removed(tmp_path: Path) -> None:
    """Reproduced before: a program that made 1,200 directories in each other was the end of every clean.yml there."""
    job = JobDir(str(tmp_path / "one"))
    job.create([0])
    os.mkdir(job.at("src"))
    with nested(Path(job.at("src")), 1200, "model.pt"):
        assert outputs(job) == (1, 0)
        remove_tree(job)
        assert not os.path.exists(job.at("src"))
