"""Several paths of a node lead to other versions: all or none, and never under a running job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import changed_versions, versions
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.changed_versions import Refused
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment_files import RECEIPT
from tests.unit.test_versions import make

OLD = {"a": "1.0-x", "b": "1.0-x"}
NEW = {"a": "2.0-x", "b": "2.0-x"}


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    """Two paths with two versions each, the older one in use."""
    found = {name: tmp_path / name for name in OLD}
    for path in found.values():
        for name in ("1.0-x", "2.0-x"):
            make(path, name)
        versions.use(path, "1.0-x")
        versions.record(path, "")
    return found


def used(paths: dict[str, Path]) -> dict[str, str]:
    return {name: versions.in_use(path) for name, path in paths.items()}


def test_what_was_in_use_is_told_and_undone(paths: dict[str, Path], tmp_path: Path) -> None:
    assert changed_versions.use(paths, NEW, str(tmp_path), check=True) == OLD and used(paths) == OLD
    assert changed_versions.use(paths, NEW, str(tmp_path)) == OLD and used(paths) == NEW
    assert changed_versions.use(paths, NEW, str(tmp_path)) == {}
    found = changed_versions.look(paths, str(tmp_path))
    assert found["a"] == {"used": "2.0-x", "before": "1.0-x", "job": ""}
    changed_versions.settle(paths, OLD, 1, str(tmp_path))
    assert changed_versions.look(paths, str(tmp_path)) == found
    changed_versions.undo(paths, OLD)
    assert used(paths) == OLD


def test_a_version_that_is_damaged_is_none_to_go_back_to(paths: dict[str, Path], tmp_path: Path) -> None:
    changed_versions.use(paths, NEW, str(tmp_path))
    for name, text in (("a", "{"), ("b", "[]")):
        (versions.store_of(paths[name]) / "1.0-x" / RECEIPT).write_text(text)
    assert [each["before"] for each in changed_versions.look(paths, str(tmp_path)).values()] == ["", ""]


def test_one_that_cannot_be_changed_leaves_the_other(paths: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"9\.9-x is not there"):
        changed_versions.use(paths, {"a": "2.0-x", "b": "9.9-x"}, str(tmp_path))
    assert used(paths) == OLD


def test_a_first_use_is_undone_too(paths: dict[str, Path], tmp_path: Path) -> None:
    make(tmp_path / "c", "1.0-x")
    fresh = {"c": tmp_path / "c"}
    assert changed_versions.use(fresh, {"c": "1.0-x"}, str(tmp_path)) == {"c": ""}
    changed_versions.undo(fresh, {"c": ""})
    assert used(fresh) == {"c": ""}


def test_where_nothing_of_ours_lies_nothing_is_written(paths: dict[str, Path], tmp_path: Path) -> None:
    """A lock beside a directory would say that we made it, and that it may be removed."""
    more = {**paths, "mine": tmp_path / "mine"}
    more["mine"].mkdir()
    changed_versions.use(more, NEW, str(tmp_path))
    changed_versions.settle(more, {}, 1, str(tmp_path))
    assert changed_versions.look(more, str(tmp_path))["mine"] == {"used": "", "before": "", "job": ""}
    assert sorted(path.name for path in tmp_path.glob("mine*")) == ["mine"]


def test_nothing_is_changed_or_removed_under_a_running_job(paths: dict[str, Path], tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([])
    held = job.lock()
    with pytest.raises(Refused, match=r"job one runs here, .* ansible-playbook clean\.yml -e job_id=one"):
        changed_versions.use(paths, NEW, str(tmp_path))
    assert used(paths) == OLD and changed_versions.look(paths, str(tmp_path))["b"]["job"] == "one"
    assert changed_versions.settle(paths, {}, 0, str(tmp_path)) == []
    os.close(held)
    changed_versions.use(paths, NEW, str(tmp_path))
    assert changed_versions.settle(paths, OLD, 1, str(tmp_path)) == []
    assert changed_versions.settle(paths, {}, 0, str(tmp_path)) == ["a 1.0-x", "b 1.0-x"]


def test_a_package_that_is_gone_is_nothing_to_go_back_to(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = versions.store_of(paths["a"]) / "1.0-x" / versions.RECEIPT
    receipt.write_text(json.dumps({"package": "openmpi-bin", "version": "4.1"}))
    changed_versions.use(paths, NEW, str(tmp_path))
    for there, before in (("4.1", "1.0-x"), ("4.2", ""), ("", "")):
        monkeypatch.setattr(changed_versions, "installed_version", lambda _package, found=there: found)
        assert changed_versions.look(paths, str(tmp_path))["a"]["before"] == before
