"""Which environments of programs make room for new ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import old_environments
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.old_environments import remove_old


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Environments a to e, of which a was used longest ago."""
    place = tmp_path / "programs"
    for when, name in enumerate("abcde"):
        (place / name).mkdir(parents=True)
        (place / name / "torchfleet-receipt.json").write_text("{}")
        os.utime(place / name, (when, when))
    (place / "unfinished").mkdir()
    (place / "linked").symlink_to(place / "a")
    return place


def left(programs: Path) -> list[str]:
    return sorted(path.name for path in programs.iterdir())


def test_those_that_were_used_last_stay_and_the_new_one(programs: Path) -> None:
    assert sorted(remove_old(programs / "a", 3, str(programs.parent))) == ["b", "c"]
    assert left(programs) == ["a", "d", "e", "linked", "unfinished"]
    assert remove_old(programs / "a", 3, str(programs.parent)) == []


def test_none_goes_that_a_running_job_uses(programs: Path) -> None:
    home = programs.parent
    job = JobDir(str(home / "jobs" / "one"))
    job.create([0])
    job.write("order.json", {"home": str(home), "path_first": f"{programs}/b/bin:/x", "host": "n1", "placement": []})
    held = job.lock()
    assert sorted(remove_old(programs / "e", 1, str(home))) == ["a", "c", "d"]
    os.close(held)
    assert remove_old(programs / "e", 1, str(home)) == ["b"]


def test_one_that_cannot_be_removed_keeps_nothing_back(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduced before: with two playbooks that made room at once, the environment of one was not used."""
    real = old_environments.remove

    def slow(path: Path) -> None:
        if path.name == "b":
            raise FileNotFoundError(path)
        real(path)

    monkeypatch.setattr(old_environments, "remove", slow)
    assert sorted(remove_old(programs / "e", 1, str(programs.parent))) == ["a", "c", "d"]
    assert old_environments.last_use(programs / "gone") == 0.0


def test_what_lies_elsewhere_is_left_alone(programs: Path) -> None:
    assert remove_old(programs / "e", 1, "/other") == []
    assert remove_old(programs.parent / "pytorch", 1, str(programs.parent)) == []
    assert len(left(programs)) == 7
