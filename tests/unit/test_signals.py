"""Which process gets a signal: the very one that was meant, and only one that has a use for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.hooks.exit_note import STACKS_SIGNAL
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes import processes
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes.ending import (
    handles,
    signal_programs,
    trees_below,
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_all_are_stopped_before_the_first_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork bomb that is killed one by one starts more than are killed."""
    sent: list[tuple[int, int]] = []
    found = [[processes.Process(pid, 1, "S", 0) for pid in (10, 11)], []]
    monkeypatch.setattr(processes, "send", lambda process, number: sent.append((number, process.pid)))
    assert processes.kill_all(lambda: found.pop(0)) == []
    stop, kill = signal.SIGSTOP, signal.SIGKILL
    assert sent == [(stop, 10), (stop, 11), (kill, 10), (kill, 11)]


@pytest.mark.parametrize("pidfd", [True, False])
def test_a_later_process_of_the_same_number_is_not_signalled(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, pidfd: bool
) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    now = processes.read(sleeper.pid)
    assert now is not None
    earlier = now._replace(started=now.started - 1)
    assert processes.send(earlier, signal.SIGKILL) is False
    assert sleeper.poll() is None and processes.read(sleeper.pid) is not None
    assert processes.send(now, signal.SIGKILL) is True
    assert sleeper.wait(30) == -signal.SIGKILL


def test_a_process_is_known_again_by_its_start(sleeper: subprocess.Popen[bytes]) -> None:
    noted = processes.identity(sleeper.pid)
    found = processes.identified(noted)
    assert found is not None and found.pid == sleeper.pid
    assert processes.identified({**noted, "started": noted["started"] - 1}) is None
    assert processes.identified({"pid": "1"}) is None and processes.identified(None) is None


def test_only_a_program_that_tells_its_stacks_is_asked_for_them() -> None:
    """It kills what has no handler. Podman and apptainer have one for every signal, and hand it on to such programs."""
    before = {number: signal.getsignal(number) for number in (STACKS_SIGNAL, STACKS_SIGNAL - 1)}
    try:
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        assert not handles(os.getpid(), STACKS_SIGNAL)
        signal.signal(STACKS_SIGNAL, lambda *_: None)
        assert handles(os.getpid(), STACKS_SIGNAL)
        signal.signal(STACKS_SIGNAL - 1, lambda *_: None)
        assert not handles(os.getpid(), STACKS_SIGNAL)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


WRAPPER = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: None)
pid = os.fork()
if pid == 0:
    print("forked", flush=True)
    sys.stdin.readline()
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
os.waitpid(pid, 0)
"""
PROGRAM = """
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"told\\n"))  # print() may be at work when it comes
print("ready", flush=True)
signal.pause()
"""


def test_a_rank_that_is_not_its_program_yet_is_told_of_its_end_later() -> None:
    """Between fork and exec it has the handlers of its wrapper: the signal would kill the program, or be lost."""
    argv = [sys.executable, "-c", WRAPPER, PROGRAM]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as wrapper:
        assert wrapper.stdin and wrapper.stdout

        def told() -> set[int]:
            return signal_programs(trees_below({wrapper.pid: None}, processes.by_parent()), signal.SIGUSR1)

        try:
            assert wrapper.stdout.readline() == "forked\n"
            assert told() == set()
            wrapper.stdin.write("go\n")
            wrapper.stdin.flush()
            assert wrapper.stdout.readline() == "ready\n"
            assert told() == {wrapper.pid}
            assert wrapper.stdout.readline() == "told\n"
        finally:
            processes.kill_all(lambda: processes.descendants(wrapper.pid))
            wrapper.kill()
