"""What a guard counts as leftover, and when the time of a job begins."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime import (
    processes,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.guard import Guard
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.job_directory import (
    JobDir,
)


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
    order = {"ranks": [0, 1], "launcher": {"name": launcher}, "job_timeout": 5.0}
    guard = Guard(job, order, "", from_supervisor=-1, to_supervisor=os.open(os.devnull, os.O_WRONLY))
    assert (guard.deadline is not None) == at_once
    assert guard.check_ranks() is None and (guard.deadline is not None) == at_once
    start = {"rank": 1, "local_rank": 1, "host": "n1", "wrapper_pid": os.getpid(), "cpus": [0], "started": time.time()}
    job.write("ranks/1/record.json", start)  # one of them is enough: the other may never come
    assert guard.check_ranks() is None and guard.deadline is not None
    first = guard.deadline
    assert guard.check_ranks() is None and guard.deadline == first
    assert Guard(job, {**order, "job_timeout": None}, "", from_supervisor=-1, to_supervisor=-1).deadline is None
