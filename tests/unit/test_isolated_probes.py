"""Programs of ours that ask a Python are not answered by modules of the user's that have the names of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.base_python import python_facts
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import (
    environment_copy,
    environment_make,
    environment_proof,
    interpreter,
    library_proof,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software import wheel_download
from tests.unit.test_environment import lay_out
from tests.wheels import request_for


@pytest.fixture
def modules_of_the_user(tmp_path: Path) -> Path:
    """Modules that end any program that imports them."""
    place = tmp_path / "modules of the user"
    place.mkdir()
    for name in ("json", "ctypes", "venv", "argparse"):
        (place / f"{name}.py").write_text("raise SystemExit('this is not the module you look for')\n")
    return place


@pytest.fixture(params=["PYTHONPATH", "directory"])
def _in_the_way(modules_of_the_user: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put them where Python looks for modules."""
    if request.param == "PYTHONPATH":
        monkeypatch.setenv("PYTHONPATH", str(modules_of_the_user))
    else:
        monkeypatch.chdir(modules_of_the_user)


isolated = pytest.mark.usefixtures("_in_the_way")
HERE = "{}.{}".format(*sys.version_info)


@isolated
def test_an_interpreter_says_what_it_is() -> None:
    assert interpreter.probe(sys.executable).version == HERE


@isolated
def test_the_facts_of_another_interpreter(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    assert python_facts(str(python))["version"].startswith(HERE)


@isolated
def test_a_library_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    (libm,) = [path for path in Path("/lib").glob("*-linux-gnu/libm.so.6") if "i386" not in str(path)][:1]
    monkeypatch.setattr(library_proof, "find_files", lambda _prefix, _name: [libm])
    library_proof.load("ucc", Path("/x"))


@isolated
def test_a_receiver_of_an_environment_starts() -> None:
    transfer = environment_copy.Transfer("/x", sys.executable, [], "/ssh/config", [], [])
    (*_ssh, command) = environment_copy.program_on(transfer, "n1")
    argv = ["sh", "-c", command]
    done = subprocess.run(argv, input=environment_copy.order("send", transfer), capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"{}\n", b"")


@isolated
def test_an_environment_is_proven(tmp_path: Path) -> None:
    request = request_for(tmp_path)
    lay_out(request)
    assert environment_proof.prove(request, "import json, sys; open(sys.argv[1], 'w')", []) == (True, "")


@isolated
def test_an_environment_is_made(tmp_path: Path) -> None:
    request = replace(request_for(tmp_path), packages=[])
    assert environment_make.try_to_make(request)["error"] == ""
    assert os.path.exists(f"{request.path}/bin/python")


def test_wheels_are_downloaded_by_the_pip_of_this_python(
    tmp_path: Path, modules_of_the_user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip itself may come from PYTHONPATH, but not from the current directory."""
    monkeypatch.chdir(modules_of_the_user)
    argv = wheel_download.pip_download(str(tmp_path), HERE, "2.36", "x86_64")
    done = subprocess.run([*argv, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
