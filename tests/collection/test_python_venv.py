"""The program behind the role python_venv: what it refuses, and that an environment is made once and whole."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "roles/python_venv/files/environment.py"
SPEC = importlib.util.spec_from_file_location("environment", PROGRAM)
assert SPEC is not None and SPEC.loader is not None
environment = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(environment)


def add_wheel(wheelhouse: Path, name: str, version: str) -> None:
    """Write the smallest wheel that pip installs."""
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(wheelhouse / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


@pytest.fixture
def request_(tmp_path: Path) -> dict[str, Any]:
    """What the role would ask for."""
    wheelhouse = tmp_path / "wheels"
    wheelhouse.mkdir()
    add_wheel(wheelhouse, "tiny", "1.0+cpu")
    add_wheel(wheelhouse, "tiny", "2.0")
    return {
        "role": "some",
        "path": str(tmp_path / "home/venv"),
        "python": sys.executable,
        "packages": ["tiny==1.0"],
        "python_min": "3.8",
        "python_max": "",
        "disk_mb": 1,
        "index_url": "",
        "wheelhouse": str(wheelhouse),
    }


def version_in(path: str) -> str:
    argv = [f"{path}/bin/python", "-c", "import tiny; print(tiny.version)"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def refusal(request: dict[str, Any]) -> str:
    (only,) = environment.look(request)["refusals"]
    return str(only)


# --- look ----------------------------------------------------------------------------------------------------------


def test_a_fresh_machine_is_accepted(request_: dict[str, Any]) -> None:
    assert environment.look(request_) == {"refusals": [], "ready": False}
    assert not Path(request_["path"]).parent.exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"path": "~/venv"}, "some: some_venv must be an absolute path, not ~/venv"),
        ({"wheelhouse": "/no/such"}, "some: some_wheelhouse is no directory on this machine: /no/such"),
        ({"python_min": "9.9"}, "is not supported by tiny==1.0 (9.9 to newer is): set some_python"),
        ({"python_max": "3.1"}, "is not supported by tiny==1.0 (3.8 to 3.1 is): set some_python"),
        ({"disk_mb": 10**12}, "some: tiny==1.0 needs 1000000000000 MB in "),
        ({"path": "/usr/lib"}, "some: /usr/lib exists and is no Python environment, so it is left alone"),
        ({"path": "/etc/passwd"}, "some: /etc/passwd exists and is no Python environment, so it is left alone"),
    ],
)
def test_a_refusal_names_the_variable(request_: dict[str, Any], change: dict[str, Any], says: str) -> None:
    line = refusal({**request_, **change})
    assert says in line
    assert "\n" not in line


def test_a_python_without_venv_is_refused(request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's without python3-venv has no ensurepip."""
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else SPEC)
    assert "apt install python3-venv" in refusal(request_)


def test_a_directory_without_permission_is_refused(request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.os, "access", lambda *args: False)
    assert refusal(request_).startswith("some: no permission to write in ")


def test_an_environment_that_was_hardly_begun_is_no_stranger(request_: dict[str, Any]) -> None:
    (Path(request_["path"]) / "lib/python").mkdir(parents=True)
    assert environment.look(request_)["refusals"] == []


# --- make ----------------------------------------------------------------------------------------------------------


def test_an_environment_is_made_once(request_: dict[str, Any]) -> None:
    assert environment.try_to_make(request_) == {"changed": True, "error": ""}
    assert version_in(request_["path"]) == "1.0+cpu"
    assert environment.look(request_) == {"refusals": [], "ready": True}
    assert environment.try_to_make(request_) == {"changed": False, "error": ""}
    # Whatever it is made from, and whatever it holds, is compared with what is asked for.
    assert not environment.is_ready({**request_, "packages": ["tiny==2.0"]})
    assert not environment.is_ready({**request_, "index_url": "https://example.org"})
    site = next(Path(request_["path"]).glob("lib/python*/site-packages"))
    (site / "tiny-1.0+cpu.dist-info").rename(site / "tiny-2.0.dist-info")
    assert not environment.is_ready(request_)


def test_other_packages_make_it_anew(request_: dict[str, Any]) -> None:
    environment.make(request_)
    assert environment.make({**request_, "packages": ["tiny==2.0"]})
    assert version_in(request_["path"]) == "2.0"
    assert len(list(Path(request_["path"]).glob("lib/python*/site-packages/tiny-*"))) == 1


def test_what_was_interrupted_is_made_anew(request_: dict[str, Any]) -> None:
    """Without a receipt nothing is trusted, although pip takes the package for installed."""
    environment.make(request_)
    (Path(request_["path"]) / environment.RECEIPT).unlink()
    next(Path(request_["path"]).glob("lib/python*/site-packages/tiny.py")).unlink()
    assert environment.make(request_)
    assert version_in(request_["path"]) == "1.0+cpu"


def test_a_failure_is_one_line_and_leaves_no_receipt(request_: dict[str, Any]) -> None:
    answer = environment.try_to_make({**request_, "packages": ["tiny==3.0"]})
    assert answer["error"].startswith("some: pip could not install tiny==3.0: ERROR: ")
    assert "\n" not in answer["error"]
    assert not (Path(request_["path"]) / environment.RECEIPT).exists()


def test_two_at_a_time_make_it_once(request_: dict[str, Any]) -> None:
    """As on machines that share a home, or after the playbook was killed and started again."""
    argv = [sys.executable, str(PROGRAM), "make", json.dumps(request_)]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE), subprocess.Popen(argv, stdout=subprocess.PIPE)]
    answers = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert sorted(answer["changed"] for answer in answers) == [False, True]
    assert [answer["error"] for answer in answers] == ["", ""]


def test_a_lock_is_not_waited_for_without_end(request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "LOCK_SECONDS", 0)
    path = Path(request_["path"])
    path.parent.mkdir()
    with path.with_name("venv.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert "another installation has held" in environment.try_to_make(request_)["error"]
    assert os.listdir(path.parent) == ["venv.lock"]
