"""The changelog: its fragments are valid, its sections are releases, and a release takes the fragments into it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).parents[2]
LINT = [Path(sys.executable).parent / "antsibull-changelog", "lint"]
WRITE = [sys.executable, "docs/changelog.py"]
VERSION = yaml.safe_load((REPO / "galaxy.yml").read_text())["version"]
LONG = "A long line. " + "It has many words, " * 9 + "in all."


def run(argv: list[str | Path], cwd: Path = REPO) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)


def test_fragments_are_valid() -> None:
    done = run(LINT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_section_is_a_release_and_the_newest_is_this_version() -> None:
    """What is not released stands in changelogs/fragments, so that two branches do not change the same lines."""
    sections = re.findall(r"^## (.*)", (REPO / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert [section for section in sections if not re.fullmatch(r"\d+\.\d+\.\d+", section)] == []
    assert sections[0] == VERSION


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what a release reads, with the next version and two fragments."""
    for name in ("CHANGELOG.md", "changelogs/config.yaml", "docs/changelog.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPO / name, tmp_path / name)
    (tmp_path / "galaxy.yml").write_text("version: 99.0.0\n")
    (tmp_path / "changelogs/fragments").mkdir()
    second = ["Option ``one`` (`which <docs/one.md>`__) is new.", LONG]
    for name, changes in {"a": {"bugfixes": ["Repaired."]}, "b": {"minor_changes": second}}.items():
        (tmp_path / f"changelogs/fragments/{name}.yml").write_text(yaml.safe_dump(changes))
    return tmp_path


def test_a_release_takes_the_fragments_into_the_changelog(project: Path) -> None:
    before = (project / "CHANGELOG.md").read_text()
    assert (run(LINT, project).returncode, run(WRITE, project).returncode) == (0, 0)
    text = (project / "CHANGELOG.md").read_text()
    assert list((project / "changelogs/fragments").iterdir()) == []
    intro, _, released = before.partition("\n## ")
    assert text.startswith(f"{intro}\n## 99.0.0\n\n### ") and text.endswith(f"\n\n## {released}")
    new = text.removeprefix(intro).removesuffix(f"\n## {released}")
    assert re.findall("^### (.*)", new, re.MULTILINE) == ["New and changed", "Repaired"]
    items = [" ".join(item.split()) for item in re.split(r"^(?:- |#+ .*\n)", new, flags=re.MULTILINE) if item.strip()]
    assert items == ["Option `one` ([which](docs/one.md)) is new.", LONG, "Repaired."]
    assert max(map(len, new.splitlines())) <= 120


@pytest.mark.parametrize(("change", "refusal"), [("version", f"{VERSION} already"), ("fragments", "no fragment")])
def test_a_release_without_a_new_version_or_a_change_is_refused(project: Path, change: str, refusal: str) -> None:
    if change == "version":
        shutil.copy(REPO / "galaxy.yml", project)
    else:
        shutil.rmtree(project / "changelogs/fragments")
    before = (project / "CHANGELOG.md").read_text()
    done = run(WRITE, project)
    assert done.returncode == 1 and refusal in done.stderr and done.stderr.count("\n") == 1
    assert (project / "CHANGELOG.md").read_text() == before


@pytest.mark.parametrize("text", ["fixes: [Repaired.]", "bugfixes: Repaired.", "bugfixes: ['A [link](docs/x.md).']"])
def test_a_fragment_that_is_not_valid_is_named(project: Path, text: str) -> None:
    (project / "changelogs/fragments/c.yml").write_text(text)
    done = run(LINT, project)
    assert done.returncode == 3 and "changelogs/fragments/c.yml" in done.stdout
