"""When a machine ends itself. tests/cloud does it with machines that run a job, or none."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._cloud import lease
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir

UNTIL, GRACE = 1_800_000_000.0, 7200.0
HOUR, PAUSE = 3600.0, lease.PAUSE


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of a lease, and nothing that runs."""
    monkeypatch.setattr(lease, "LEASE", str(tmp_path / "lease.json"))
    monkeypatch.setattr(lease, "BUSY", str(tmp_path / "busy"))
    monkeypatch.setattr(lease, "PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(lease.subprocess, "run", lambda *_given, **_words: SimpleNamespace(returncode=0, stdout=""))
    assert lease.renew(str(int(UNTIL)), str(int(GRACE))) == {}
    return tmp_path


def job(machine: Path, runs: bool) -> None:
    """Have a job run, as /proc shows the lock that its supervisor holds, or end."""
    link = machine / "proc" / "77" / "fd" / "5"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to("/home/fleet/.torchfleet/jobs/20261126-1/lock" if runs else "/dev/null")


def test_a_lock_of_something_else_is_no_job(machine: Path) -> None:
    """The one of a package manager, which a service may hold for ever: the machine would be billed on."""
    job(machine, runs=False)
    for number, lock in enumerate(("/var/lib/dpkg/lock", "/home/fleet/.torchfleet/jobs/1/lock.old"), 6):
        (machine / f"proc/77/fd/{number}").symlink_to(lock)
    assert lease.is_over(UNTIL + HOUR)


@pytest.mark.parametrize(("after", "over"), [(-HOUR, False), (-1.0, False), (0.0, True), (HOUR, True)])
def test_an_idle_machine_ends_when_its_lease_is_over(machine: Path, after: float, over: bool) -> None:
    assert lease.is_over(UNTIL + after) is over


def test_a_machine_is_not_ended_under_a_job_and_waits_half_an_hour_after_it(machine: Path) -> None:
    job(machine, runs=True)
    assert not lease.is_over(UNTIL + HOUR)
    job(machine, runs=False)
    assert not lease.is_over(UNTIL + HOUR + PAUSE - 60)
    assert lease.is_over(UNTIL + HOUR + PAUSE)


def test_a_job_that_ended_shortly_before_the_lease_has_its_files_fetched(machine: Path) -> None:
    job(machine, runs=True)
    assert not lease.is_over(UNTIL - 60)
    job(machine, runs=False)
    assert not lease.is_over(UNTIL + 60) and lease.is_over(UNTIL - 60 + PAUSE)


def test_a_job_that_never_ends_does_not_keep_a_machine_for_ever(machine: Path) -> None:
    job(machine, runs=True)
    assert not lease.is_over(UNTIL + GRACE - 1) and lease.is_over(UNTIL + GRACE)
    lease.renew(str(int(UNTIL)), "0")
    assert lease.is_over(UNTIL)


def test_a_job_counts_also_when_that_cannot_be_written_down(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job(machine, runs=True)
    monkeypatch.setattr(lease, "BUSY", str(machine / "full" / "busy"))
    assert not lease.is_over(UNTIL + HOUR)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"until": "soon", "grace": 0}', '{"until": NaN, "grace": 0}'])
def test_a_machine_without_a_lease_ends(machine: Path, text: str) -> None:
    """It would be billed for ever."""
    (machine / "lease.json").write_text(text)
    assert lease.is_over(UNTIL - 100 * HOUR)
    (machine / "lease.json").unlink()
    assert lease.is_over(UNTIL - 100 * HOUR)


def test_a_renewed_lease_counts_from_the_next_look_on(machine: Path) -> None:
    assert lease.is_over(UNTIL)
    lease.renew(str(int(UNTIL + HOUR)), "0")
    assert not lease.is_over(UNTIL) and lease.is_over(UNTIL + HOUR)
    assert json.loads((machine / "lease.json").read_text()) == {"until": int(UNTIL + HOUR), "grace": 0}


def test_a_machine_that_would_never_end_says_so(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = SimpleNamespace(returncode=3, stdout="inactive\n")
    monkeypatch.setattr(lease.subprocess, "run", lambda *_given, **_words: dead)
    assert lease.renew("1", "0") == {"error": "torchfleet-lease.timer is inactive: this machine would never end"}


def test_a_job_is_seen_by_the_lock_that_it_holds(tmp_path: Path) -> None:
    """With the real lock, and /proc."""
    directory = tmp_path / "jobs" / "20261126-1"
    directory.mkdir(parents=True)
    held = JobDir(str(directory)).lock()
    try:
        assert lease.LOCK.search(lease.os.readlink(f"/proc/self/fd/{held}")) and lease.has_job()
    finally:
        lease.os.close(held)
