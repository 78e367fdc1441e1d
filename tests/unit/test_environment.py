"""What is seen of a machine before a Python environment is made on it, and what is refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.rank_variables import (
    RENDEZVOUS,
    VARIABLES,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import (
    build_errors,
    environment,
    environment_files,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import interpreter as interpreters
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment import Request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.environment import PLACE
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from tests.unit.nodes import facts_of_a_node, launcher
from tests.wheels import request_for


@pytest.fixture
def wanted(tmp_path: Path) -> Request:
    return request_for(tmp_path)


def refusal(request: Request) -> str:
    (only,) = environment.look(request)["refusals"]
    return str(only)


def lay_out(request: Request) -> Path:
    """Lay out an environment as it is after it was made, without making it. Return the directory of its packages."""
    packages = request.place / request.interpreter.packages
    about = packages / "tiny-1.0.dist-info"
    about.mkdir(parents=True)
    (packages / "tiny.py").write_text("version = '1.0'\n")
    (about / "RECORD").write_text("tiny.py,,\ntiny-1.0.dist-info/RECORD,,\n")
    (request.place / "bin").mkdir()
    (request.place / "bin/python").symlink_to(sys.executable)
    environment.write_receipt(request.place, environment.make_receipt(request, {"tiny": "0" * 64}, set()))
    return packages


def test_a_fresh_machine_is_accepted(wanted: Request) -> None:
    seen = environment.look(wanted)
    assert (seen["refusals"], seen["ready"], seen["receipt"], seen["mesh"]) == ([], False, None, False)
    assert not wanted.place.parent.exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"path": "~/venv"}, "some: some_venv must be an absolute path, not ~/venv"),
        ({"python_min": "9.9"}, "is not supported by tiny==1.0 (9.9 to newer is): set some_python"),
        ({"python_max": "3.1"}, "is not supported by tiny==1.0 (3.8 to 3.1 is): set some_python"),
        ({"disk_mb": 10**12}, "some: tiny==1.0 needs 1000000000000 MB in "),
        ({"path": "/usr/lib"}, "some: /usr/lib exists and is no Python environment, so it is left alone"),
        ({"path": "/etc/passwd"}, "some: /etc/passwd exists and is no Python environment, so it is left alone"),
    ],
)
def test_a_refusal_names_the_variable(wanted: Request, change: dict[str, Any], says: str) -> None:
    line = refusal(replace(wanted, **change))
    assert says in line
    assert "\n" not in line


@pytest.mark.parametrize("python", ["/bin/false", "/bin/echo", "/no/such/python"])
def test_what_is_no_interpreter_is_refused(wanted: Request, python: str) -> None:
    request = replace(wanted, python=python, interpreter=interpreters.probe(python))
    assert refusal(request) == f"some: {python} is no Python 3 interpreter: set some_python to one"
    assert environment.look(request)["kind"] == ""


def test_the_interpreter_is_asked_itself(tmp_path: Path) -> None:
    """Not the one that runs the module: they may be two."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"version": "3.6", "real": "/r", "include": "/i", "has_venv": true}\'\n')
    python.chmod(0o755)
    found = interpreters.probe(str(python))
    assert (found.version, found.include, str(found.packages)) == ("3.6", "/i", "lib/python3.6/site-packages")
    assert "Python 3.6 at " in refusal(request_for(tmp_path, python=str(python), interpreter=found))


def test_a_python_without_venv_is_refused(wanted: Request) -> None:
    without = wanted.interpreter._replace(has_venv=False)
    assert "has no module venv" in refusal(replace(wanted, interpreter=without))


def test_pip_is_asked_for_where_it_lacks(wanted: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Debian without python3-venv: it has no ensurepip, and no wheel of pip."""
    assert not environment.look(wanted)["needs_pip"]
    monkeypatch.setattr(interpreters, "SYSTEM_WHEELS", tmp_path)
    bare = replace(wanted, interpreter=wanted.interpreter._replace(ensurepip=""))
    seen = environment.look(bare)
    assert (seen["refusals"], seen["needs_pip"]) == ([], True)
    assert not environment.look(replace(bare, packages=[]))["needs_pip"]  # nothing that pip installs
    (tmp_path / "other" / bare.interpreter.packages / "pip").mkdir(parents=True)
    assert not environment.look(replace(bare, linked_environment=str(tmp_path / "other")))["needs_pip"]


def test_a_header_is_a_tool(wanted: Request, tmp_path: Path) -> None:
    request = replace(
        wanted, interpreter=wanted.interpreter._replace(include=str(tmp_path)), tools=["Python.h", "sh", "no-such"]
    )
    assert environment.look(request)["missing_tools"] == ["Python.h", "no-such"]
    (tmp_path / "Python.h").touch()
    assert environment.look(request)["missing_tools"] == ["no-such"]


def test_a_directory_without_permission_is_refused(wanted: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.os, "access", lambda *args: False)
    assert refusal(wanted).startswith("some: no permission to write in ")


def test_an_environment_that_was_hardly_begun_is_no_stranger(wanted: Request) -> None:
    (wanted.place / "lib/python").mkdir(parents=True)
    assert environment.look(wanted)["refusals"] == []


def test_a_link_to_elsewhere_is_refused(wanted: Request, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    wanted.place.symlink_to(tmp_path / "elsewhere")
    assert refusal(wanted) == f"some: {wanted.path} is a symbolic link: set some_venv to where it leads"


def test_machines_of_a_kind_have_the_same_of_everything(wanted: Request) -> None:
    kind = environment.look(wanted)["kind"]
    assert kind and environment.look(replace(wanted, role="other", disk_mb=2))["kind"] == kind
    for change in ({"path": "/other"}, {"packages": []}, {"wheelhouse": "/w"}, {"index_url": "https://example.org"}):
        assert environment.look(replace(wanted, **change))["kind"] not in ("", kind)


def test_what_is_there_is_compared_with_what_is_wanted(wanted: Request) -> None:
    """Whatever it is made from, and whatever it holds."""
    packages = lay_out(wanted)
    seen = environment.look(wanted)
    assert (seen["refusals"], seen["ready"], seen["proven"]) == ([], True, False)
    assert seen["receipt"] == environment.read_receipt(wanted.place)
    for change in ({"packages": ["tiny==2.0"]}, {"index_url": "https://example.org"}, {"lock": "another"}):
        assert not environment.is_ready(replace(wanted, **change))
    (packages / "tiny-1.0.dist-info").rename(packages / "tiny-2.0.dist-info")
    assert not environment.is_ready(wanted)


def test_an_environment_without_a_receipt_or_a_file_is_not_ready(wanted: Request) -> None:
    packages = lay_out(wanted)
    (packages / "tiny.py").unlink()  # as systemd-tmpfiles leaves it: the names of all packages are there
    assert not environment.is_ready(wanted)
    (packages / "tiny.py").touch()
    assert environment.is_ready(wanted)
    (wanted.place / environment.RECEIPT).unlink()
    assert environment.look(wanted)["receipt"] is None and not environment.is_ready(wanted)


def test_a_receipt_from_before_a_key_was_known_is_good(wanted: Request) -> None:
    lay_out(wanted)
    receipt = environment.read_receipt(wanted.place) or {}
    environment.write_receipt(wanted.place, {key: value for key, value in receipt.items() if key not in ("lock",)})
    assert environment.is_ready(wanted)


def test_a_receipt_with_the_old_name_of_a_key_is_good(wanted: Request) -> None:
    """Version 0.4.0 wrote it. Otherwise PyTorch would be installed again without need."""
    linked = replace(wanted, linked_environment="/h/backends")
    lay_out(linked)
    receipt = environment.read_receipt(linked.place) or {}
    environment.write_receipt(linked.place, {**receipt, "beside": receipt.pop("linked_environment")})
    assert environment.is_ready(linked) and not environment.is_ready(wanted)


def test_where_make_stopped_is_told() -> None:
    said = ["make: Making all in config", "perl: not found", "make[1]: *** [all] Error 127", "make: *** [all] 2"]
    assert build_errors.errors_in(said) == said[:3]
    assert build_errors.errors_in(["more"] * 5 + said) == said[:3]


def test_a_look_writes_nothing(wanted: Request, tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    environment.look(wanted)
    assert sorted(os.listdir(tmp_path)) == before


Planner = Callable[..., LaunchPlan]


def test_environment_of_the_ranks(plan: Planner) -> None:
    made = plan(job_env={"OMP_NUM_THREADS": "7", "MINE": "a b"})
    settings = {setting.name: setting for setting in made.head.environment}
    assert {name: setting.value for name, setting in settings.items()} == {
        "ACCELERATE_USE_CPU": "true",
        "GLOO_SOCKET_IFNAME": "lo",
        "MINE": "a b",
        "OMP_NUM_THREADS": "7",
        "PYTHONUNBUFFERED": "1",
        "TORCHFLEET_BACKEND": "gloo",
        "TORCHFLEET_JOB_ID": "job",
        "TORCHFLEET_RESTART_COUNT": "0",
    }
    assert settings["OMP_NUM_THREADS"].source == "user"
    assert settings["GLOO_SOCKET_IFNAME"].source == "measured"


def test_mpi4py_is_told_where_the_launchers_mpi_is(plan_two: Planner) -> None:
    """Open MPI tells it itself; under torchrun there is none."""

    def told(**given: Any) -> list[str | None]:
        found = [{item.name: item for item in node.environment} for node in plan_two(**given).nodes]
        return [values["MPI4PY_LIBMPI"].value if "MPI4PY_LIBMPI" in values else None for values in found]

    assert told() == told(launcher="torchrun") == [None, None]
    programs = {n: {"launcher": launcher(f"/{n}/mpich/bin/mpiexec", "5.0.2")} for n in ("n1", "n2")}
    assert told(launcher="mpich", **programs) == ["/n1/mpich/lib:", "/n2/mpich/lib:"]
    assert told(launcher="mpich", job_env={"MPI4PY_LIBMPI": "/mine"}, **programs) == ["/mine", "/mine"]


def test_accelerate_is_told_where_there_is_no_gpu(plan_two: Planner) -> None:
    """By what each node has, not by the backend: with GPUs and gloo it would move the work to the processor."""

    def told(**given: Any) -> list[tuple[str, str] | None]:
        made = plan_two(**given)
        found = [{item.name: item for item in node.environment} for node in made.nodes]
        settings = [values.get("ACCELERATE_USE_CPU") for values in found]
        return [(setting.value, setting.source) if setting else None for setting in settings]

    none, cpu = None, ("true", "measured")
    gpus = {"accelerators": {"nvidia": 2, "amd": 0}}
    assert told(backend="gloo", n2=gpus) == [cpu, none]
    xpu = {"accelerators": {"intel": 2}, "torch": {"version": "2.13.0", "xpu": "1"}, "backends": ["xccl"]}
    assert told(backend="xccl", n1=xpu, n2=xpu) == [none, none]
    assert told(job_env={"ACCELERATE_USE_CPU": "false"}) == [("false", "user")] * 2
    own = {"n1": {"ACCELERATE_USE_CPU": "0"}}
    assert told(env=own) == [("0", "inventory"), cpu]


def test_people_are_shown_every_variable_of_a_ranks_place() -> None:
    shown = []
    for word in PLACE.split():
        before, _brace, rest = word.partition("{")
        names, _brace, after = rest.partition("}")
        shown += [f"{before}{name}{after}" for name in names.split(",")]
    assert sorted(shown) == sorted(set(VARIABLES) - set(RENDEZVOUS))


def test_nccl_gets_an_exact_interface(plan: Planner) -> None:
    gpu = {"accelerators": {"nvidia": 2, "amd": 0}, "torch": {"version": "2.13.0", "cuda": "13.0", "hip": ""}}
    made = plan(facts=facts_of_a_node(**gpu))
    settings = {item.name: item.value for item in made.head.environment}
    assert settings["NCCL_SOCKET_IFNAME"] == "=lo"  # a bare name would be a prefix (NCCL docs)
    assert "GLOO_SOCKET_IFNAME" not in settings


def test_what_lies_aside_of_a_killed_installation_is_the_good_one(tmp_path: Path) -> None:
    """And it is back where it was if the next installation fails too."""
    path, aside = tmp_path / "venv", tmp_path / "venv.old"
    for place in (path, aside):
        place.mkdir()
    (aside / environment.RECEIPT).write_text("{}")
    (path / "half").write_text("made")
    with pytest.raises(ValueError, match="the index is away"), environment_files.replaced(path):
        path.mkdir()
        raise ValueError("the index is away")
    assert [entry.name for entry in path.iterdir()] == [environment.RECEIPT] and not aside.exists()
    with environment_files.replaced(path):
        path.mkdir()
    assert list(path.iterdir()) == [] and not aside.exists()


def test_a_path_below_a_directory_that_may_not_be_entered_is_no_error(tmp_path: Path) -> None:
    def denied(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    place = tmp_path / "not/entered"
    assert environment_files.nearest_directory(place) == tmp_path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "is_dir", denied)
        patch.setattr(Path, "exists", denied)
        assert environment_files.nearest_directory(place) == tmp_path
        assert environment.is_foreign(place) is False
