"""The wrapper of a rank: how it waits to begin, and how output gets from pipes to files."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import PIPES, JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes.processes import listen_for_children
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks import rank
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.rank import RankWrapper
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.rank_output import Stream
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import reasons


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    made = JobDir(str(tmp_path / "jobs" / "unit"))
    made.create([0])
    return made


@pytest.fixture
def wrapper(job: JobDir) -> Iterator[RankWrapper]:
    """One that hears signals, as in run(). What it changed of this process is put back."""
    made = RankWrapper(job, {"host": "n1", "placement": [], "launcher": {"name": "openmpi"}}, (0, 1, 0, 1))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCHLD)}
    signal.signal(signal.SIGTERM, made.forward)
    made.wakeup = listen_for_children()
    made.poll.register(made.wakeup)
    yield made
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("happens", "begins"),
    [
        (lambda job: (job.write("begin.json", {"at": 1.0}), job.open_gate()), True),
        (lambda job: (job.claim_end("cancelled"), job.open_gate()), False),
        (lambda _job: os.kill(os.getpid(), signal.SIGTERM), False),
    ],
    ids=["begin", "end", "signal"],
)
def test_a_rank_that_waits_to_begin_is_woken(
    monkeypatch: pytest.MonkeyPatch, job: JobDir, wrapper: RankWrapper, happens: Callable[[JobDir], Any], begins: bool
) -> None:
    """It looks once, before; then it sleeps until something happens."""
    monkeypatch.setattr(rank, "LOOK_SECONDS", 60.0)
    start = time.monotonic()
    looks = list[int]()
    threads = list[threading.Thread]()

    def running(_job: JobDir) -> bool:
        looks.append(1)
        if not threads:
            threads.append(threading.Timer(0.2, happens, args=(job,)))
            threads[0].start()
        return True

    monkeypatch.setattr(JobDir, "running", running)
    assert wrapper.may_begin() == begins
    threads[0].join()
    assert len(looks) == 1
    assert time.monotonic() - start < 50


def test_a_status_that_is_no_signal_is_told_as_a_status() -> None:
    assert reasons.launcher_ended("openmpi", "n2", 213).detail == "openmpi on n2 ended with status 213"
    assert reasons.launcher_ended("openmpi", "n2", 137).detail == "openmpi on n2 was killed by SIGKILL"


def test_a_rank_does_not_begin_in_a_job_that_nobody_looks_after(job: JobDir, wrapper: RankWrapper) -> None:
    assert not wrapper.may_begin()


def test_a_rank_that_is_started_twice_ends_the_job(job: JobDir) -> None:
    """Both have the place of the plan: the second wrote over the record of the first, and nobody knew."""
    place = {"rank": 0, "local_rank": 0, "host": "n1"}
    order = {"host": "n1", "ranks": [0], "placement": [place], "launcher": {"name": "openmpi"}, "world_size": 1}
    first, second = (RankWrapper(job, order, (0, 1, 0, 1)) for _time in range(2))
    assert first.started_before() == ""
    first.save()
    kept = job.record(0)
    assert second.run() == rank.EXIT_PLACEMENT
    end = job.end()
    assert end is not None and end["detail"] == "placement: rank 0 was started twice"
    assert job.record(0) == kept


def writer(stream: Stream) -> int:
    """Return a descriptor that a program would have as its stdout."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    stream.become(descriptor)
    return descriptor


def test_a_stream_opened_anew_goes_on(job: JobDir) -> None:
    stream = Stream(job, 0, "stdout")
    program = writer(stream)
    os.write(program, b"first\n")
    anew = os.open(f"/proc/self/fd/{program}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(anew, b"second\n")
    assert stream.copy() == 13
    assert stream.copy() == 0
    os.close(program)
    os.close(anew)
    assert stream.copy() == -1
    assert Path(job.rank(0, "stdout")).read_bytes() == b"first\nsecond\n"


def test_what_is_in_the_pipe_is_copied_and_a_writer_without_end_not_waited_for(job: JobDir) -> None:
    stream = Stream(job, 0, "stdout")
    program = writer(stream)
    data = os.urandom(50000)
    os.write(program, data)
    copy = stream.copy
    stream.copy = lambda limit: (os.write(program, b"more"), copy(limit))[1]  # type: ignore[method-assign]
    stream.copy_all()
    assert Path(job.rank(0, "stdout")).read_bytes() == data


@pytest.mark.parametrize("what", ["link", "directory", "pipe"])
def test_a_file_that_cannot_be_written_is_an_error_and_the_pipe_goes_on(job: JobDir, tmp_path: Path, what: str) -> None:
    path = Path(job.rank(0, "stderr"))
    {"link": lambda: path.symlink_to(tmp_path / "x"), "directory": path.mkdir, "pipe": lambda: os.mkfifo(path)}[what]()
    stream = Stream(job, 0, "stderr")
    program = writer(stream)
    for _time in range(2):
        os.write(program, b"x" * 100)
        assert stream.copy() == 100
    assert stream.error.startswith("its stderr could not be written: ")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("what", ["link", "file"])
def test_only_a_pipe_is_read(job: JobDir, what: str) -> None:
    path = Path(job.rank(0, PIPES["stdout"]))
    path.unlink()
    {"link": lambda: path.symlink_to(job.at("events")), "file": path.touch}[what]()
    with pytest.raises(OSError):
        Stream(job, 0, "stdout")


def test_a_program_whose_output_cannot_be_written_has_failed(
    monkeypatch: pytest.MonkeyPatch, job: JobDir, wrapper: RankWrapper
) -> None:
    """Whatever its exit status."""
    stream = Stream(job, 0, "stdout")
    stream.error = "its stdout could not be written: no space left on device"
    wrapper.streams = {stream.pipe: stream}
    monkeypatch.setattr(wrapper, "wait_for_end", lambda: None)
    assert wrapper.close(0) == 74
    record = job.record(0)
    assert record and (record["rc"], record["error"]) == (74, stream.error)


def test_a_little_output_is_gathered(monkeypatch: pytest.MonkeyPatch, job: JobDir, wrapper: RankWrapper) -> None:
    """After a line the wrapper waits for more to come, after a full pipe it does not."""
    slept = list[float]()
    monkeypatch.setattr(time, "sleep", slept.append)
    stream = Stream(job, 0, "stdout")
    wrapper.streams = {stream.pipe: stream}
    wrapper.poll.register(stream.pipe)
    program = writer(stream)
    os.write(program, b"x" * 60000)
    wrapper.pause(1.0)
    assert slept == []
    os.write(program, b"a line\n")
    wrapper.pause(1.0)
    assert len(slept) == 1
