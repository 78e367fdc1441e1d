"""What is below a rank's wrapper is that rank's program: who is asked to end, when, and how long each may take."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job.guard import Guard
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes import processes as processes_module
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes.ending import (
    Ending,
    Tree,
    trees_below,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes.processes import Process

RANKS = 8


def process(pid: int, parent: int = 1) -> Process:
    return Process(pid, parent, "S", pid)


def pids(processes: list[Process]) -> list[int]:
    return [process.pid for process in processes]


def test_a_tree_is_the_program_and_what_it_started() -> None:
    """Wrapper 10 has program 11, whose child is 12, and an orphan 13; the program of 20 is not known yet."""
    rows = [process(11, 10), process(13, 10), process(12, 11), process(21, 20), process(30, 1)]
    children: processes_module.Children = {}
    for row in rows:
        children.setdefault(row.parent, []).append(row)
    trees = trees_below({10: 11, 20: None}, children)
    assert {wrapper: (pids(tree.program), pids(tree.rest)) for wrapper, tree in trees.items()} == {
        10: ([11], [13, 12]),
        20: ([21], []),
    }


def followed(
    monkeypatch: pytest.MonkeyPatch, looks: list[dict[int, Tree]], catching: set[int]
) -> list[tuple[str, int]]:
    """End what is seen in these looks; return what was asked and killed. The last look stays."""
    done = list[tuple[str, int]]()
    monkeypatch.setattr(processes_module, "terminate", lambda found: done.extend(("asked", one.pid) for one in found))
    monkeypatch.setattr(
        processes_module, "send", lambda one, number: done.append((signal.Signals(number).name, one.pid))
    )
    monkeypatch.setattr(processes_module, "catches", lambda pid, _number: pid in catching)
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda _seconds: now.__setitem__(0, now[0] + 1.0))
    Ending(lambda: looks.pop(0) if len(looks) > 1 else looks[0], grace=None).run()
    return done


def test_the_rest_of_a_rank_is_asked_when_its_program_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = [process(11), process(12)]
    looks = [{1: Tree([process(10)], rest)}] * 3 + [{1: Tree([], rest)}] * 2 + [{1: Tree([], [])}]
    assert followed(monkeypatch, looks, {10, 11, 12}) == [("asked", 10), ("asked", 11), ("asked", 12)]


def test_one_rank_that_saves_does_not_hold_up_the_end_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    saver, other = process(10), process(20)
    looks = [{1: Tree([saver], []), 2: Tree([other], [])}] * 4 + [{1: Tree([saver], []), 2: Tree([], [])}] * 20
    done = followed(monkeypatch, [*looks, {1: Tree([], []), 2: Tree([], [])}], {10})
    assert done == [("asked", 10), ("asked", 20), ("SIGSTOP", 20), ("SIGKILL", 20)]


def test_what_is_asked_late_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that waits for its child in spite of SIGTERM is killed after 30 s; the child may save as long again."""
    shell, saver = process(10), process(11)
    looks = [{1: Tree([shell], [saver])}] * 32 + [{1: Tree([], [saver])}] * 25 + [{1: Tree([], [])}]
    done = followed(monkeypatch, looks, {10, 11})
    assert done == [("asked", 10), ("SIGSTOP", 10), ("SIGKILL", 10), ("asked", 11)]


def test_what_a_process_does_with_sigterm_says_how_long_it_may_take() -> None:
    own = process(os.getpid())
    assert (processes_module.grace_of(own, None), processes_module.grace_of(own, 7.0)) == (2.0, 7.0)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert (processes_module.grace_of(own, None), processes_module.grace_of(own, 1.0)) == (30.0, 1.0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert processes_module.grace_of(own, None) == 2.0
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("look", ["own", "foreign", "launcher_tree"])
def test_one_look_reads_proc_and_the_records_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str) -> None:
    """However many processes there are: the end of hundreds of ranks with thousands of helpers hangs on it."""
    job = JobDir(str(tmp_path / "job"))
    job.create(list(range(RANKS)))
    order = {"ranks": list(range(RANKS)), "job_timeout": None, "launcher": {"name": "openmpi"}}
    guard = Guard(job, order, str(tmp_path), from_supervisor=-1, to_supervisor=-1)
    read, listed = list[int](), list[int]()
    record, by_parent = JobDir.record, processes_module.by_parent

    def count_record(self: JobDir, rank: int) -> dict[str, Any] | None:
        read.append(rank)
        return record(self, rank)

    def count_listing() -> processes_module.Children:
        listed.append(1)
        return by_parent()

    monkeypatch.setattr(JobDir, "record", count_record)
    monkeypatch.setattr(processes_module, "by_parent", count_listing)
    with subprocess.Popen(
        ["sh", "-c", "for n in 1 2 3 4 5 6 7 8 9; do sleep 60 & done; echo; wait"], stdout=-1
    ) as many:
        assert many.stdout and many.stdout.readline()
        try:
            getattr(guard, look)()
            assert (len(listed), len(read)) == (1, RANKS)
            assert len(guard.foreign()) >= 10
        finally:
            for one in processes_module.descendants(many.pid):
                processes_module.send(one, signal.SIGKILL)
