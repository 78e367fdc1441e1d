"""Who writes reports: where they go, what goes wrong without harm, and which runs are meant."""

from __future__ import annotations

import shutil
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.action import report as action_of_reports
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.run_directory import REPORT
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report import reading, writer
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.choice import find_runs, parse_patterns
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.reading import read_run
from tests.unit.report_pages import RECORDED, checked


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return a copy of the run whose rank 1 failed."""
    return Path(shutil.copytree(RECORDED / "failure", tmp_path / "failure"))


def test_the_page_is_its_owners_alone_and_replaces_a_link(run_dir: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (run_dir / REPORT).symlink_to(victim)
    assert writer.report_of(run_dir) == ""
    path = run_dir / REPORT
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600 and victim.read_text() == "kept"
    assert sorted(found.name for found in run_dir.glob("*report*")) == ["report.html"]


def test_what_goes_wrong_is_a_line(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be written: No such file" in writer.report_of(run_dir / "absent")
    monkeypatch.setattr(reading, "read_run", lambda *_given: 1 / 0)
    assert "cannot be written: ZeroDivisionError" in writer.report_of(run_dir)


def test_a_slow_report_is_not_waited_for(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    monkeypatch.setattr(reading, "read_run", lambda *_given: done.wait(60) and read_run(run_dir))
    line = writer.report_of(run_dir, seconds=0.01)
    done.set()
    assert line.endswith("ansible-playbook playbooks/report.yml -e runs=failure")


def test_runs_are_named_by_ids_and_globs(tmp_path: Path) -> None:
    for name in ("a-mnist", "b-mnist", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest").symlink_to("c")
    (tmp_path / "link").symlink_to("/")
    names = lambda given: [path.name for path in find_runs(str(tmp_path), parse_patterns(given))]  # noqa: E731
    assert names("b-mnist,a-mnist") == ["b-mnist", "a-mnist"]
    assert names(["*mnist", "latest"]) == ["a-mnist", "b-mnist", "c"]
    for wrong in ("../x", "a/b", "", "-x", None, "..", "link", "none*"):
        with pytest.raises(InputError, match="runs: got"):
            names(wrong)
    with pytest.raises(InputError, match="runs_dir"):
        find_runs(str(tmp_path / "absent"), ("a",))


def act(check: bool = False, **given: Any) -> dict[str, Any]:
    """Run the action without Ansible around it."""
    action = object.__new__(action_of_reports.ActionModule)
    action._task = SimpleNamespace(check_mode=check)
    return action.act({"verify_report": "/absent/verify.json", "export": [], **given}, {})


def test_the_playbook_makes_pages_of_old_runs_and_one_of_all(tmp_path: Path) -> None:
    for name in ("failure", "two-nodes"):
        shutil.copytree(RECORDED / name, tmp_path / "runs" / name)
    given = {"runs": "*", "runs_dir": str(tmp_path / "runs"), "comparison": str(tmp_path / "new" / "runs.html")}
    would = act(check=True, **given)
    assert list(tmp_path.rglob("*.html")) == []
    assert act(**given) == {**would, "not_comparable": ["state", "program", "silent"]}
    pages = [*would["reports"], would["comparison"]]
    assert sorted(map(str, tmp_path.rglob("*.html"))) == sorted(pages) and len(pages) == 3
    for page in pages:
        checked(Path(page).read_text())
    assert "comparison" not in act(**{**given, "runs": ["failure"]})
    with pytest.raises(InputError, match="report: got"):
        act(**{**given, "comparison": str(tmp_path / "runs" / "failure" / "plan.json" / "x")})
