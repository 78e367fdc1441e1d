"""What ends a job when somebody is silent, and what does not: hanging disks, clocks that are set, frozen nodes."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head import result
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.audience import Audience
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.hang_end import HangEnd
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.head_job import HeadJob
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.rounds import Rounds
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job.guard import Guard
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes import processes
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks import rank_record
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import link as link_module
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import ConnectionLost, RemoteProcess
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import ssh_words
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.order import order_for
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from tests.driver import running, wait_until
from tests.unit.supervisors import PACKAGE, begin, order_of_one, stage, supervisor


def program_of(job: JobDir) -> processes.Process:
    """Return what the guard has started for the job."""
    pid = int(wait_until(lambda: job.launcher().get("pid")))
    process = processes.read(pid)
    assert process is not None
    return process


def is_gone(process: processes.Process) -> bool:
    now = processes.read(process.pid)
    return now is None or now.started != process.started or now.state in "ZX"


def test_a_disk_that_hangs_ends_no_job(tmp_path: Path) -> None:
    """Reproduced before: the thread that read the ranks' files sent the beats as well, so the node was lost."""
    mark = tmp_path / "hangs"
    hook = f"""if True:
        def look(self, *_given, **_options):
            open({str(mark)!r}, "w").close()
            threading.Event().wait()
        output_lines.Follower.look = look"""
    remote, job = supervisor(hook), JobDir(str(tmp_path / "jobs" / "one"))
    begin(remote, order_of_one(tmp_path))
    program = program_of(job)
    wait_until(mark.exists)
    for _beat in range(2):
        frame = remote.channel.receive(60)
        assert frame is not None and frame["kind"] == "beat"
    remote.channel.send({"kind": "end", "reason": "cancelled", "detail": "enough"})  # which it can do as well
    wait_until(lambda: is_gone(program))
    remote.close()
    end = job.end()
    assert end is not None and end["reason"] == "cancelled"


def test_a_supervisor_that_hangs_has_its_part_ended_by_the_guard(tmp_path: Path) -> None:
    """Reproduced before: the head took the node for lost, and on the node the ranks went on."""
    hook = "supervisor.HeadFollower.handle_frames = lambda _follower: threading.Event().wait()"
    remote, job = supervisor(hook), JobDir(str(tmp_path / "jobs" / "one"))
    begin(remote, order_of_one(tmp_path, lease=1.0))
    program = program_of(job)
    wait_until(lambda: is_gone(program))
    end = job.end()
    assert end is not None and (end["reason"], end["detail"]) == ("lost", "the supervisor was silent for 1 s")
    assert remote.process.wait(60) == -signal.SIGKILL  # so that the other end of the wire knows
    remote.close()


def test_a_guard_does_not_take_its_own_sleep_for_silence(tmp_path: Path) -> None:
    order = {"ranks": [], "job_timeout": None, "lease": 5.0, "launcher": {"name": "openmpi"}}
    guard = Guard(JobDir(str(tmp_path)), order, "", from_supervisor=-1, to_supervisor=-1)
    guard.watch.pid = -1  # its supervisor is killed in the end, and that would be who runs the tests

    def look_after(seconds: float, received: bool = False) -> Any:
        guard.watch.last_look = time.monotonic() - seconds
        return guard.check_lease(received)

    assert look_after(3600) is None  # it was frozen, and its supervisor with it
    assert look_after(0.0, received=True) is None and guard.watch.silent_seconds == 0.0
    assert [look_after(2.0) is None for _look in range(3)] == [True, True, False]
    assert look_after(3600, received=True) is None


def test_a_node_that_hears_nothing_of_the_head_ends_its_part(tmp_path: Path) -> None:
    remote, job = supervisor(), JobDir(str(tmp_path / "jobs" / "one"))
    begin(remote, order_of_one(tmp_path, lease=1.0))
    program = program_of(job)
    wait_until(lambda: is_gone(program))
    frame = {"kind": ""}
    while frame["kind"] != "over":
        frame = remote.answer(60)
    remote.close()
    end = job.end()
    assert end is not None and end["detail"] == "the head was silent for 1 s"
    assert not os.path.exists(job.at("ballast"))  # nothing more is to be written there


def test_a_question_that_a_slow_disk_holds_up_is_waited_for(tmp_path: Path) -> None:
    """Reproduced before: a node that hashed 10,000 cold files for 61 s was unreachable."""
    done = tmp_path / "done"
    hook = f"""if True:
        def survey(_request):
            while not os.path.exists({str(done)!r}):
                time.sleep(0.01)
            return {{"home": "/h"}}
        supervisor.survey = survey"""
    remote = supervisor(hook)
    remote.channel.send({"kind": "survey", "request": {"home": "/h"}, "beats": True})
    for _beat in range(2):
        frame = remote.channel.receive(60)
        assert frame is not None and frame["kind"] == "beat"
    done.touch()
    assert remote.answer(60)["facts"] == {"home": "/h"}
    remote.close()


def test_work_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = RemoteProcess(["sh", "-c", """yes '{"kind": "beat"}' | head -100; echo '{"kind": "staged"}'; cat"""])
    assert remote.answer(60)["kind"] == "staged"
    remote.close()
    monkeypatch.setattr(link_module, "WORK_SECONDS", -1.0)
    remote = RemoteProcess(["sh", "-c", """yes '{"kind": "beat"}'"""])
    with pytest.raises(ConnectionLost, match="still at work"):
        remote.answer(60)
    remote.close()


def test_a_node_that_beats_faster_than_any_clock_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep the head busy for as long as work may take."""
    monkeypatch.setattr(link_module, "MOST_BEATS", 50)
    remote = RemoteProcess(["sh", "-c", """yes '{"kind": "beat"}' | head -51; exec sleep 600"""])
    with pytest.raises(ConnectionLost, match="it sent more than 50 heartbeats, but no answer"):
        remote.answer(60)
    remote.close(0)


def test_an_idle_supervisor_hears_a_signal() -> None:
    """Reproduced before: it noted the signal and waited on."""
    remote = supervisor()
    assert remote.ask({"kind": "clock"}, 60)["kind"] == "clock"
    os.kill(remote.process.pid, signal.SIGTERM)
    assert remote.process.wait(60) == 128 + signal.SIGTERM
    remote.close()


def test_a_job_that_is_staged_is_taken_back_at_a_signal(tmp_path: Path) -> None:
    remote = supervisor("supervisor.SIGNAL_SECONDS = 0.1")
    stage(remote, order_of_one(tmp_path))
    assert (tmp_path / "jobs" / "one").exists()
    os.kill(remote.process.pid, signal.SIGTERM)
    assert remote.process.wait(60) == 128 + signal.SIGTERM
    assert not (tmp_path / "jobs" / "one").exists()
    remote.close()


def head_job_of(**order: Any) -> HeadJob:
    """Return a run that has begun just now."""
    head_job = object.__new__(HeadJob)
    head_job.order = {"job_timeout": 100.0, "world_size": 2, "launcher": {"name": "openmpi"}, **order}
    head_job.started = head_job.timeout_start = time.monotonic()
    head_job.unplaced, head_job.rounds = {"n2"}, Rounds(head_job)
    head_job.hangs = HangEnd({"placement": []}, list)  # type: ignore[typeddict-item]
    head_job.controller = SimpleNamespace(signalled="")  # type: ignore[assignment]
    head_job.audience = Audience(Channel(*os.pipe()), detached=False)
    return head_job


@pytest.mark.parametrize("line", [b"[]", b"{}", b'{"host": []}', b"EVIL", b""])
def test_a_program_that_speaks_for_the_launcher_ends_nothing(line: bytes) -> None:
    """Reproduced before: the supervisor of the head died of a KeyError."""
    head_job = head_job_of()
    head_job.peers, ours, theirs = [], *socket.socketpair()
    head_job.shells = {ours: None}
    theirs.sendall(line + b"\n")
    head_job.on_shell(ours)
    assert head_job.shells == {} and theirs.recv(100) == b""


def test_a_clock_that_is_set_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduced before: a step of NTP was a job_timeout, or ranks that did not start."""
    head_job = head_job_of()
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert head_job.reason_to_end() is None
    head_job.timeout_start -= 102
    assert head_job.reason_to_end() == ("timed_out", "job_timeout of 100 s")
    head_job.order["job_timeout"] = None
    assert head_job.reason_to_end() is None
    head_job.timeout_start -= 201
    assert head_job.reason_to_end() == ("not_started", "ranks on n2 not started after 302 s")


@pytest.mark.parametrize("launcher", ["srun", "sbatch"])
def test_ranks_that_slurm_starts_beside_none_are_waited_for_and_others_not(launcher: str) -> None:
    """Reproduced before: a rank whose program Slurm could not start left the others at the gate without end."""
    head_job = head_job_of()
    head_job.order["launcher"] = {"name": launcher}
    head_job.order["job_timeout"] = head_job.timeout_start = None
    head_job.started -= 90_000  # in the queue
    assert head_job.reason_to_end() is None
    head_job.timeout_start = time.monotonic() - 303  # when the first node had its ranks
    assert head_job.reason_to_end() == ("not_started", "ranks on n2 not started after 302 s")


@pytest.mark.parametrize("step", [-3600.0, 0.0, 3600.0])
def test_a_clock_that_is_set_changes_neither_blame_nor_times(step: float) -> None:
    record = {"rank": 0, "started": 100.0, "started_tick": 5.0, "ended": 110.0 + step, "ended_tick": 15.0, "rc": 1}
    assert rank_record.rank_state(record, {"reason": "cancelled", "at": 110.5, "tick": 15.5}) == "failed"
    assert rank_record.rank_state(record, {"reason": "cancelled", "at": 109.5, "tick": 14.5}) == "ended"
    assert result.rank_row({"rank": 0, "host": "n1"}, record, "failed", "")["seconds"] == 10.0
    forged = {**record, "ended": 110.0, "ended_tick": "x"}
    assert rank_record.rank_state(forged, {"reason": "cancelled", "at": 110.5, "tick": 15.5}) == "failed"
    assert result.rank_row({"rank": 0, "host": "n1"}, forged, "failed", "")["seconds"] == 10.0


def test_the_lease_reaches_the_nodes(plan_two: Callable[..., Any]) -> None:
    from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render

    plan = plan_two(lease="20")
    assert order_for(plan, render(plan), "here")["job"]["lease"] == 20.0
    assert parse_request({}).lease == 60.0
    for given in ("4", 3601, True, "soon"):
        with pytest.raises(InputError, match="lease"):
            parse_request({"lease": given})


def test_ssh_gives_the_head_up_when_the_lease_is_over() -> None:
    connection = SimpleNamespace(transport="ssh", get_option=lambda name: 10 if name == "timeout" else None)
    words = ssh_words(connection, Node("n1", "192.0.2.1"), lease=120)
    said = subprocess.run([*words[:-2], "-G", "192.0.2.1"], capture_output=True, text=True, check=True).stdout
    options = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
    assert math.prod(int(options[name]) for name in ("serveraliveinterval", "serveralivecountmax")) == 120


@pytest.mark.parametrize("how", ["threading.Event().wait()", "raise OSError(28, 'No space left on device')"])
@pytest.mark.parametrize("reason", ["cancelled", "launcher_died"])
def test_programs_are_ended_whether_or_not_the_disk_takes_a_write(tmp_path: Path, how: str, reason: str) -> None:
    """Reproduced before: the guard waited for the disk, or died of it, as did its successor, and the rank went on."""
    hook = f"""if True:
        from {PACKAGE}.basics import job_directory
        write = job_directory.JobDir.write
        def write_no_more(job, name, value):
            if name != "order.json" and os.path.exists({str(tmp_path / "program")!r}):
                {how}
            write(job, name, value)
        job_directory.JobDir.write = write_no_more"""
    begun = f"until [ -e {tmp_path}/jobs/one/launcher.json ]; do sleep 0.01; done"  # the last write of a start
    script = f"setsid sleep 600 & echo $! > {tmp_path}/new; {begun}; mv {tmp_path}/new {tmp_path}/program; wait"
    if reason == "launcher_died":
        script = script.replace("; wait", "")
    remote = supervisor(hook)
    begin(remote, order_of_one(tmp_path, ("/bin/sh", "-c", script)))
    wait_until((tmp_path / "program").exists)
    pid = int((tmp_path / "program").read_text())
    if reason == "cancelled":
        remote.channel.send({"kind": "end", "reason": "cancelled", "detail": "enough"})
    wait_until(lambda: not running(pid), 30)
    remote.process.kill()
    remote.close()


@pytest.mark.parametrize("killed", [False, True])
def test_a_part_is_ended_where_no_thread_can_be_started(tmp_path: Path, killed: bool) -> None:
    """As by a job that takes all processes of its container: guard and supervisor died of it, and the job went on."""
    hook = f"""if True:
        from {PACKAGE}.node_job import node_job
        start, be_guard = node_job.NodeJob.start, node_job.NodeJob.be_guard
        def start_no_more(part):
            start(part)
            threading.stack_size(1 << 50)  # more than there is
        def be_guard_without(part, heard, says):
            threading.stack_size(1 << 50)
            be_guard(part, heard, says)
        node_job.NodeJob.start, node_job.NodeJob.be_guard = start_no_more, be_guard_without"""
    script = f"setsid sleep 600 & echo $! $PPID > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/program"
    link = supervisor(hook)
    begin(link, order_of_one(tmp_path, ("/bin/sh", "-c", script + "; wait" * killed)))
    wait_until((tmp_path / "program").exists)
    pid, guard = map(int, (tmp_path / "program").read_text().split())
    if killed:
        os.kill(guard, signal.SIGKILL)
    wait_until(lambda: not running(pid), 30)
    frames = iter(lambda: (link.channel.receive(30) or {"kind": "silence"})["kind"], "over")
    assert "silence" not in frames
    link.close()
