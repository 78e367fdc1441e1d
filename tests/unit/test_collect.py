"""A supervisor tells a controller of the jobs that are over."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from tests.unit.nodes import STAGING
from tests.unit.supervisors import PACKAGE, order_of_one, supervisor


def test_a_directory_that_takes_no_result_hides_no_other_job(tmp_path: Path) -> None:
    """A program may make its job's directory read-only: then clean.yml failed for every run, each time."""
    for name in ("closed", "open"):
        job = JobDir(str(tmp_path / "jobs" / name))
        job.create([0])
        job.write("order.json", order_of_one(tmp_path, job_id=name, head="w1", controller="c"))
        job.write("staging.json", STAGING)
    hook = f"""if True:
        from {PACKAGE}.basics import job_directory
        write = job_directory.JobDir.write
        def write_unless_closed(job, name, value):
            if job.job_id == "closed":
                raise PermissionError(13, "Permission denied")
            write(job, name, value)
        job_directory.JobDir.write = write_unless_closed"""
    remote = supervisor(hook)
    answer = remote.ask(
        {"kind": "collect", "beats": True, "home": str(tmp_path), "controller": "c", "dry_run": False}, 30.0
    )
    assert sorted(row["job_id"] for row in answer["jobs"]) == ["closed", "open"]
    remote.close()
