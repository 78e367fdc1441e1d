"""A program with packages of its own: its environment is made from a directory of wheels, once."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fleet import Fleet, Played
from tests.wheels import add_wheel, digest

SCRIPT = """
import json, os, shutil, sys, helper, tiny, torch
print(json.dumps([helper.version, tiny.version, torch.__version__, sys.prefix, shutil.which("python")]))
"""


LOCK = """
version = 1
[[package]]
name = "mine"
version = "0.1.0"
source = {{ virtual = "." }}
dependencies = [{{ name = "tiny" }}]
[[package]]
name = "tiny"
version = "1.0"
source = {{ registry = "https://index.example/simple" }}
wheels = [{{ url = "https://index.example/tiny-1.0-py3-none-any.whl", hash = "sha256:{}" }}]
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what is fetched in a home that goes with the test."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / "user").mkdir()


@pytest.fixture
def wheelhouse(fleet: Fleet) -> Path:
    place = fleet.root / "wheels"
    place.mkdir()
    add_wheel(place, "tiny", "1.0")
    add_wheel(place, "helper", "1.0", needs="Requires-Dist: tiny>=1.0\nRequires-Dist: torch>=2\n")
    add_wheel(place, "rival", "1.0", needs="Requires-Dist: torch<2\n")
    return place


def train(fleet: Fleet, wheelhouse: Path, requirements: str, **given: Any) -> Played:
    folder = fleet.root / "project"
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "requirements.txt").write_text(requirements)
    return fleet.play(workload=str(folder / "train.py"), program_wheelhouse=str(wheelhouse), **given)


def said(played: Played) -> str:
    """Return what was printed, white space folded."""
    return " ".join(played.stdout.split())


def tasks(played: Played) -> set[str]:
    return {event["event_data"]["task"] for event in played.events}


def test_it_is_made_once_and_used_again(fleet: Fleet, wheelhouse: Path) -> None:
    shown = train(fleet, wheelhouse, "helper\n", check=True)
    assert shown.rc == 0, shown.stdout
    assert "would be made: localhost" in shown.stdout
    assert not (fleet.home / "programs").exists()
    first = train(fleet, wheelhouse, "helper\n")
    assert first.rc == 0, first.stdout
    made = [path for path in (fleet.home / "programs").iterdir() if path.is_dir()]
    assert len(made) == 1
    helper, tiny, torch, prefix, python = json.loads(first.output(1))
    assert (helper, tiny, prefix, python) == ("1.0", "1.0", str(made[0]), f"{made[0]}/bin/python")
    assert not list(made[0].glob("lib/*/*/torch"))
    again = train(fleet, wheelhouse, "# the same\nhelper\n")
    assert (again.rc, json.loads(again.output(0))[2:4]) == (0, [torch, prefix]), again.stdout
    assert "Run the job in that environment" in tasks(first)
    assert tasks(first) > tasks(again)
    assert "Run the job in that environment" not in tasks(again)


def test_each_wheel_is_held_to_its_checksum(fleet: Fleet, wheelhouse: Path) -> None:
    wheels = {path.name.partition("-")[0]: path for path in wheelhouse.glob("*.whl")}
    lines = [f"{name}==1.0 --hash=sha256:{digest(wheels[name])}" for name in ("helper", "tiny")]
    played = train(fleet, wheelhouse, "\n".join(lines))
    assert played.rc == 0, played.stdout
    wrong = train(fleet, wheelhouse, "\n".join([lines[0], f"tiny==1.0 --hash=sha256:{'0' * 64}"]))
    assert wrong.rc != 0
    assert "tiny==1.0: the lock has the sha256 " in said(wrong)
    assert "if you trust that file, write its checksum into the program's requirements" in said(wrong)
    assert "torchfleet_locked" not in said(wrong)  # that is for what setup.yml installs


def test_torch_is_not_exchanged_and_what_is_missing_is_named(fleet: Fleet, wheelhouse: Path) -> None:
    refused = train(fleet, wheelhouse, "rival\n")
    assert refused.rc != 0
    assert "program: pip could not install rival: rival 1.0 depends on torch<2; " in said(refused)
    missing = train(fleet, wheelhouse, "nowhere==1.0\n")
    assert missing.rc != 0
    assert f"{wheelhouse} has no wheel of nowhere==1.0" in said(missing)
    other = train(fleet, wheelhouse, "torch==1.13.1\n")
    assert "torch==1.13.1 (requirements.txt line 1)" in said(other)
    assert "is proven on localhost" in said(other)
    assert not fleet.runs.exists()


@pytest.mark.usefixtures("home")
def test_a_commit_of_a_repository_with_a_lock_of_uv(fleet: Fleet, wheelhouse: Path) -> None:
    place = fleet.root / "repository"
    place.mkdir()
    (place / "train.py").write_text("import tiny\nprint(tiny.__file__)\n")
    (place / "uv.lock").write_text(LOCK.format(digest(next(wheelhouse.glob("tiny-*.whl")))))
    git = functools.partial(subprocess.run, cwd=place, check=True, capture_output=True, text=True)
    git(["git", "init", "--quiet"])
    git(["git", "add", "."])
    git(["git", "-c", "user.name=x", "-c", "user.email=x@y", "commit", "--quiet", "--message", "x"])
    commit = git(["git", "rev-parse", "HEAD"]).stdout.strip()
    (place / "train.py").write_text("of after the commit")
    address = f"git+file://{place}@{commit}#train.py"
    played = fleet.play(workload=address, program_wheelhouse=str(wheelhouse))
    assert played.rc == 0, played.stdout
    assert played.output(0).startswith(str(fleet.home / "programs"))


def test_a_module_in_a_folder_with_a_pyproject(fleet: Fleet, wheelhouse: Path) -> None:
    folder = fleet.root / "project"
    (folder / "package").mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\ndependencies = ["tiny"]\n')
    (folder / "package" / "other.py").write_text("import tiny\nplace = tiny.__file__\n")
    (folder / "package" / "train.py").write_text("import os\nfrom .other import place\nprint(os.getcwd(), place)\n")
    played = fleet.play(workload=str(folder), module="package.train", program_wheelhouse=str(wheelhouse))
    assert played.rc == 0, played.stdout
    cwd, place = played.output(1).split()
    assert cwd == str(folder) and place.startswith(str(fleet.home / "programs"))


def test_a_module_in_an_environment_of_ones_own(fleet: Fleet) -> None:
    package = fleet.root / "package"
    package.mkdir()
    (package / "train.py").write_text("import os, sys\nprint(os.environ['VIRTUAL_ENV'], sys.prefix, sys.argv[1:])\n")
    own = fleet.home / "pytorch"
    given = {"module": "package.train", "workload_args": "--lr 1", "python": str(own)}
    played = fleet.play(**given, job_env={"PYTHONPATH": str(fleet.root)})
    assert played.rc == 0, played.stdout
    assert played.output(0).split()[0] == str(own)
    assert played.output(0).endswith("['--lr', '1']\n")
