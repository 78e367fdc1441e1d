"""What a node tells of its ports, and of the jobs that run on it."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime import survey
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.job_directory import JobDir

ME = pwd.getpwuid(os.getuid()).pw_name


def test_the_port_of_the_rendezvous_is_one_of_the_ports() -> None:
    """Reproduced before: with ports=24000-24999 it was 22465, and a firewall stopped every job of several nodes."""
    for _time in range(50):
        port = survey.free_port(None, [24000, 24999])
        assert port and 24499 <= port <= 24999  # launchers take the lower ones first
    assert survey.free_port(None, None) in survey.PORTS


def test_a_range_is_searched_to_its_end() -> None:
    with socket.socket() as one:
        one.bind(("", 0))
        taken = one.getsockname()[1]
        assert survey.free_port(taken, [taken, taken]) is None
    assert survey.free_port(None, [taken, taken]) == taken


def job_of(home: Path, job_id: str, host: str = "n1") -> JobDir:
    """Return a job that has a rank on this host of it, which is n1."""
    job = JobDir(str(home / "jobs" / job_id))
    job.create([0])
    job.write("order.json", {"host": "n1", "placement": [{"rank": 0, "local_rank": 0, "host": host}]})
    return job


def of_home(home: Path) -> list[dict[str, str]]:
    """Return the running jobs of a home that a survey tells of; the machine may have others."""
    told = survey.job_state(str(home))
    return sorted((row for row in told["running"] if row["job_id"] in told["jobs"]), key=str)


def test_jobs_that_run_here_are_told_with_their_owner(tmp_path: Path) -> None:
    job_of(tmp_path, "over")
    runs, staged = job_of(tmp_path, "runs"), JobDir(str(tmp_path / "jobs" / "staged"))
    launches = job_of(tmp_path, "launches", host="n2")  # this machine is the head only
    staged.create([0])
    held = [job.lock() for job in (runs, staged, launches)]
    assert of_home(tmp_path) == [{"job_id": "runs", "owner": ME}, {"job_id": "staged", "owner": ME}]
    for descriptor in held:
        os.close(descriptor)
    assert of_home(tmp_path) == []


def test_a_job_of_another_home_is_known_by_its_mark(tmp_path: Path) -> None:
    far, odd = job_of(tmp_path / "far", "theirs"), job_of(tmp_path / "far", "odd")
    held, held_too = far.lock(), odd.lock()
    sleep = [sys.executable, "-c", "print(flush=True); input()"]
    started = []
    for job_id, job in (("theirs", far), ("bad id\n", odd)):
        marks = {"TORCHFLEET_JOB_ID": job_id, "TORCHFLEET_JOB_DIR": job.path}
        process = subprocess.Popen(
            sleep, env={**os.environ, **marks}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout and process.stdout.readline()
        started.append(process)
    here = survey.running_jobs(str(tmp_path / "near"), [])
    assert {"job_id": "theirs", "owner": ME} in here and all(row["job_id"] != "bad id\n" for row in here)
    assert [row for row in survey.running_jobs(str(tmp_path / "far"), [far]) if row["job_id"] == "theirs"] == [
        {"job_id": "theirs", "owner": ME}
    ]
    os.close(held)
    assert {"job_id": "theirs", "owner": ME} not in survey.running_jobs(str(tmp_path / "near"), [])  # a leftover
    for process in started:
        process.communicate("\n")
    os.close(held_too)


@pytest.mark.parametrize("order", ["[]", "7", '{"host": 3}', '{"host": "n1", "placement": [3, null]}', "{"])
def test_an_odd_order_stops_no_survey(tmp_path: Path, order: str) -> None:
    job = JobDir(str(tmp_path / "jobs" / "odd"))
    job.create([0])
    Path(job.at("order.json")).write_text(order)
    held = job.lock()
    assert {row["job_id"] for row in of_home(tmp_path)} <= {"odd"}
    os.close(held)
