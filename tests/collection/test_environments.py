"""Python environments that are really made, with pip: once, whole, from what is locked, and from sources."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._software import environment, environment_files
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import interpreter as interpreters
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment import Request
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment_make import make, try_to_make
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software import wheelhouse
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.environment_request import files_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.wheelhouse import (
    Machine,
    NotBroughtError,
    Order,
)
from tests.wheels import EVERYTHING, add_wheel, digest, index_of, lock, locked_to, request_for

HERE = Machine(".".join(map(str, sys.version_info[:2])), "2.36", "x86_64")
PROGRAM = Path(__file__).parents[2] / "roles/ucc/molecule/default/source.py"


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    """What a role would ask for: here pip finds its wheels as it does an index."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    add_wheel(wheels, "tiny", "1.0+cpu")
    add_wheel(wheels, "tiny", "2.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return request_for(tmp_path)


def version_in(path: str) -> str:
    argv = [f"{path}/bin/python", "-c", "import tiny; print(tiny.version)"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def made(request: Request) -> dict[str, Any]:
    """Make what must be made. Return its receipt."""
    answer = try_to_make(request)
    assert answer["error"] == ""
    receipt: dict[str, Any] = answer["receipt"]
    return receipt


def error_of(request: Request) -> str:
    error = str(try_to_make(request)["error"])
    assert "\n" not in error
    return error


def test_an_environment_is_made_once(wanted: Request) -> None:
    answer = try_to_make(wanted)
    assert (answer["changed"], answer["error"], answer["receipt"]["installed"]["tiny"]) == (True, "", "1.0+cpu")
    assert version_in(wanted.path) == "1.0+cpu"
    seen = environment.look(wanted)
    assert (seen["refusals"], seen["ready"], seen["receipt"]) == ([], True, answer["receipt"])
    assert try_to_make(wanted) == {"changed": False, "error": "", "receipt": answer["receipt"]}
    assert sorted(os.listdir(wanted.place.parent)) == ["venv", "venv.lock"]
    # No description of a library names the machine it was made on: libtool would look for it there.
    assert list(wanted.place.rglob("libtiny/lib")) != [] and list(wanted.place.rglob("*.la")) == []


def test_other_packages_make_it_anew(wanted: Request) -> None:
    made(wanted)
    assert make(replace(wanted, packages=["tiny==2.0"]))
    assert version_in(wanted.path) == "2.0"
    assert len(list(wanted.place.glob("lib/python*/site-packages/tiny-*"))) == 1


def test_what_was_interrupted_or_lost_files_is_made_anew(wanted: Request) -> None:
    """Without a receipt nothing is trusted, although pip takes the package for installed."""
    made(wanted)
    (wanted.place / environment.RECEIPT).unlink()
    next(wanted.place.glob("lib/python*/site-packages/tiny.py")).unlink()
    assert make(wanted) and version_in(wanted.path) == "1.0+cpu"
    next(wanted.place.glob("lib/python*/site-packages/tiny.py")).unlink()  # as systemd-tmpfiles leaves it
    assert make(wanted) and version_in(wanted.path) == "1.0+cpu"


def test_a_failure_is_one_line_and_leaves_what_was_there(wanted: Request) -> None:
    other = replace(wanted, packages=["tiny==3.0"])
    assert error_of(other).startswith("some: pip could not install tiny==3.0: ERROR: ")
    assert os.listdir(wanted.place.parent) == ["venv.lock"]
    made(wanted)
    assert error_of(other)
    assert environment.look(wanted)["ready"] and version_in(wanted.path) == "1.0+cpu"


def test_two_at_a_time_make_it_once(wanted: Request) -> None:
    """As on machines that share a home, or after the playbook was killed and started again."""
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(try_to_make, [wanted, wanted]))
    assert sorted(answer["changed"] for answer in answers) == [False, True]
    assert [answer["error"] for answer in answers] == ["", ""]


def test_a_lock_is_not_waited_for_without_end(wanted: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_files, "LOCK_SECONDS", 0)
    wanted.place.parent.mkdir()
    with wanted.place.with_name("venv.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert "another installation has held" in error_of(wanted)
    assert os.listdir(wanted.place.parent) == ["venv.lock"]


def test_pip_is_brought_where_it_lacks(wanted: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order("some", replace(HERE, needs_pip=True), tmp_path / "into", wanted.packages)
    pack = tmp_path / "brought.tar"
    pack.write_bytes(wheelhouse.pack(order).read_bytes())
    monkeypatch.setattr(interpreters, "SYSTEM_WHEELS", tmp_path / "none")
    bare = replace(wanted, interpreter=wanted.interpreter._replace(ensurepip=""), brought=str(pack))
    bare.place.parent.mkdir()
    made(bare)
    assert version_in(wanted.path) == "1.0+cpu"


def test_wheels_that_were_brought_are_the_only_source_and_go(wanted: Request, tmp_path: Path) -> None:
    pack = tmp_path / "pack.tar"
    with tarfile.open(pack, "w") as content:
        content.add(tmp_path / "wheels/tiny-1.0+cpu-py3-none-any.whl", "tiny-1.0+cpu-py3-none-any.whl")
    brought = replace(wanted, wheelhouse="/on/the/controller", brought=str(pack))
    made(brought)
    assert version_in(wanted.path) == "1.0+cpu"
    assert not pack.exists() and not environment.is_ready(wanted)  # which comes from an index
    assert error_of(replace(brought, packages=["tiny==2.0"]))


# --- locks and indexes ------------------------------------------------------------------------------------------------


@pytest.fixture
def two_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One index has builds and what they need; on the other somebody gave those names higher versions."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    builds = index_of(tmp_path / "builds", ("fast", "1.0+gpu", "Requires-Dist: helper\n"), ("helper", "1.0", ""))
    public = index_of(tmp_path / "public", ("fast", "1.0+zzz", ""), ("helper", "99", ""), ("plain", "2.0", ""))
    monkeypatch.setenv("PIP_INDEX_URL", public)
    return builds


def test_a_name_of_one_index_is_not_taken_from_another(wanted: Request, two_indexes: str) -> None:
    there = made(replace(wanted, index_url=two_indexes, packages=["fast==1.0", "plain==2.0"]))["installed"]
    assert (there["fast"], there["helper"], there["plain"]) == ("1.0+gpu", "1.0", "2.0")


@pytest.fixture
def beside_torch(tmp_path: Path, wanted: Request, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Request]:
    """Make a request for packages beside a proven torch, of a build and listed under a version.

    Two indexes have torchvision, each for another build of torch: on PyPI's it has a plain version.
    """
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    needs = "Requires-Dist: torch==2.13.0\nRequires-Dist: helper\n"
    public = index_of(tmp_path / "public", ("torchvision", "0.28.0", needs), ("helper", "1.0", ""), ("torch", "9", ""))
    index_of(tmp_path / "cpu", ("torchvision", "0.28.0+cpu", needs), ("helper", "99", ""))
    for place, build in (("public", "cu130"), ("cpu", "cpu")):
        for wheel in (tmp_path / place / "torchvision").glob("*.whl"):
            with zipfile.ZipFile(wheel, "a") as content:
                content.writestr(
                    "torchvision/__init__.py", f"import torch\nassert torch.build == {build!r}, 'no nms'\n"
                )
    torches = index_of(tmp_path / "torches", ("torch", "2.13.0+cpu", ""), ("torch", "2.13.0", ""))
    monkeypatch.setenv("PIP_INDEX_URL", public)

    def request(build: str, listed: str, **change: Any) -> Request:
        proven = str(tmp_path / "proven")
        made(replace(wanted, path=proven, packages=[f"torch==={listed}"], index_url=torches))
        (module,) = Path(proven).glob("lib/*/*/torch.py")
        module.write_text(f"build = {build!r}\n")
        return replace(wanted, linked_environment=proven, kept=[f"torch==2.13.0+{build}"], **change)

    return request


def test_what_is_compiled_for_torch_comes_from_the_index_of_its_build(tmp_path: Path, beside_torch: Any) -> None:
    """Reproduced before: a torchvision for CUDA was installed beside a torch for CPUs, and failed when imported."""
    url, names = (tmp_path / "cpu").as_uri(), ["torchvision==0.28.0", "helper"]
    request = beside_torch("cpu", "2.13.0+cpu", packages=names, torch_packages=names[:1], torch_index_url=url)
    there = made(request)["installed"]
    assert (there["torchvision"], there["helper"], "torch" in there) == ("0.28.0+cpu", "1.0", False)
    # The checksum is that of the file on PyPI.
    hashed = locked_to(request, lock(tmp_path / "public", "torchvision==0.28.0", "helper==1.0"))
    receipt = made(hashed)
    assert (receipt["installed"]["torchvision"], receipt["unlocked"]) == ("0.28.0+cpu", ["torchvision"])


def test_torchvision_for_another_build_of_torch_is_refused(beside_torch: Any) -> None:
    error = error_of(beside_torch("cpu", "2.13.0+cpu", packages=["torchvision"]))
    assert "torchvision 0.28.0 cannot be used with torch==2.13.0+cpu; name torchvision itself" in error
    assert "no nms" in error


def test_the_torch_of_the_public_index_is_listed_without_its_build(beside_torch: Any) -> None:
    """Reproduced before: no program could have packages of its own on a cluster with PyPI's torch, for CUDA."""
    there = made(beside_torch("cu130", "2.13.0", packages=["torchvision"]))["installed"]
    assert (there["torchvision"], "torch" in there) == ("0.28.0", False)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index with a package, what it requires everywhere, and what only this build of it requires."""
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    needs = "Requires-Dist: helper>=1\nRequires-Dist: gpu\n"
    url = index_of(tmp_path / "public", ("tiny", "1.0", needs), ("helper", "1.0", ""), ("gpu", "1.0", ""))
    monkeypatch.setenv("PIP_INDEX_URL", url)
    return tmp_path / "public"


@pytest.fixture
def plain(tmp_path: Path, published: Path) -> Request:
    """A request that finds its packages in that index."""
    return request_for(tmp_path)


def test_what_is_locked_is_installed_and_its_checksums_are_kept(plain: Request, published: Path) -> None:
    request = locked_to(plain, lock(published, *EVERYTHING))
    index_of(published, ("helper", "1.1", ""))  # a release of the day after
    receipt = made(request)
    assert {name: receipt["installed"][name] for name in ("tiny", "helper", "gpu")} == dict.fromkeys(
        ("tiny", "helper", "gpu"), "1.0"
    )
    assert receipt["digests"]["tiny"] == digest(published / "tiny/tiny-1.0-py3-none-any.whl")
    assert receipt["unlocked"] == []
    assert environment.is_ready(request) and not environment.is_ready(replace(request, lock="another"))


def test_what_is_required_with_an_extra_is_found_in_the_lock(plain: Request, published: Path) -> None:
    """As PyTorch requires cuda-toolkit[cublas,...]: a lock has the package and what the extra brings, but no extras."""
    kit = "Provides-Extra: part\nRequires-Dist: leaf==1.0 ; extra == 'part'\n"
    index_of(published, ("tiny", "1.0", "Requires-Dist: kit[part]==1.0\n"), ("kit", "1.0", kit), ("leaf", "1.0", ""))
    receipt = made(locked_to(plain, lock(published, "tiny==1.0", "kit==1.0", "leaf==1.0")))
    assert receipt["installed"]["leaf"] == "1.0"


def test_a_wheel_that_changed_is_refused(plain: Request, published: Path) -> None:
    locked = lock(published, *EVERYTHING)
    (known,) = [line.rpartition(":")[2] for line in locked["lines"] if line.startswith("helper")]
    index_of(published, ("helper", "1.0", "Summary: with a gift\n"))
    came = digest(published / "helper/helper-1.0-py3-none-any.whl")
    error = error_of(locked_to(plain, locked))
    assert (
        f"helper==1.0: the lock has the sha256 {known}, and the file has {came}: if you trust that file, add -e"
        in error
    )
    assert not plain.place.exists()


@pytest.mark.parametrize("needs", ["stranger", "stranger==3.0"])
def test_a_package_that_the_lock_does_not_know_is_refused(plain: Request, published: Path, needs: str) -> None:
    """As after a release that requires more, in place of one of the same number."""
    index_of(published, ("helper", "1.0", f"Requires-Dist: {needs}\n"), ("stranger", "3.0", ""))
    error = error_of(locked_to(plain, lock(published, *EVERYTHING)))
    assert "stranger" in error and "the lock has no such package" in error
    assert "-e torchfleet_locked=false" in error


def test_without_a_lock_versions_count_alone(plain: Request, published: Path) -> None:
    index_of(published, ("helper", "1.1", ""))
    assert made(plain)["installed"]["helper"] == "1.1"


def own_wheels(place: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lay a build of one's own into a directory that pip is told of, as whoever sets a machine up does."""
    place.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    return add_wheel(place, "tiny", version, needs="Requires-Dist: helper>=1\n")


def test_a_build_of_ones_own_takes_the_place_of_the_indexes(
    plain: Request, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a version of its own. What only the index's build requires stays away; all else has its checksum."""
    wheel = own_wheels(tmp_path / "own", "1.0+mine", monkeypatch)
    request = locked_to(plain, lock(published, *EVERYTHING, only_build=("gpu",)))
    receipt = made(request)
    there = receipt["installed"]
    assert (there["tiny"], there["helper"], "gpu" in there) == ("1.0+mine", "1.0", False)
    assert (receipt["digests"]["tiny"], receipt["unlocked"]) == (digest(wheel), ["tiny"])
    index_of(published, ("helper", "1.0", "Summary: with a gift\n"))
    assert "helper==1.0: the lock has" in error_of(replace(request, path=f"{request.path}-2"))


def test_a_wheel_that_poses_as_the_published_one_is_not_installed(
    plain: Request, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = locked_to(plain, lock(published, *EVERYTHING))
    came = digest(own_wheels(tmp_path / "own", "1.0", monkeypatch))
    receipt = made(request)  # of two equal ones pip takes the index's
    assert receipt["digests"]["tiny"] == digest(published / "tiny/tiny-1.0-py3-none-any.whl") != came
    (published / "tiny/index.html").write_text("")
    error = error_of(replace(request, path=f"{request.path}-2"))
    assert "tiny==1.0: the lock has the sha256" in error and came in error


def test_what_the_user_adds_changes_nothing_that_is_locked(plain: Request, published: Path) -> None:
    index_of(published, ("helper", "1.1", ""), ("mine", "5", "Requires-Dist: helper\n"))
    locked = lock(published, *EVERYTHING, more=("mine==5",))
    there = made(locked_to(replace(plain, packages=["tiny==1.0", "mine==5"]), locked))["installed"]
    assert (there["mine"], there["helper"]) == ("5", "1.0")


# --- what is built ----------------------------------------------------------------------------------------------------

BUILDER = """
import os, sys, zipfile
def build_wheel(wheels, *_more):
    sys.exit("error: there is no compiler") if os.environ["WORD"] == "none" else None
    import tiny
    about, name = "made-1.dist-info", "made-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{wheels}/{name}", "w") as wheel:
        wheel.writestr("made.py", f"word = {os.environ['WORD'] + tiny.version!r}")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\\nName: made\\nVersion: 1\\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{about}/RECORD", "")
    return name
"""


@dataclass(frozen=True)
class Build:
    """A request for what is built, and what the controller brings for it."""

    request: Request
    order: Order

    def run(self, **change: Any) -> dict[str, Any]:
        """Bring and build it, as the controller and the module do."""
        request = replace(self.request, **change)
        order = replace(self.order, programs=request.programs)
        pack = Path(f"{request.path}.brought.tar")
        pack.parent.mkdir(exist_ok=True)
        pack.write_bytes(wheelhouse.pack(order).read_bytes())
        return try_to_make(replace(request, brought=str(pack)))


@pytest.fixture
def source(wanted: Request, tmp_path: Path) -> Build:
    """What is built from a source, beside an environment whose packages it takes."""
    made(wanted)
    place = tmp_path / "source"
    place.mkdir()
    (place / "builder.py").write_text(BUILDER)
    (place / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'builder'\nbackend-path = ['.']\n"
        "[project]\nname = 'made'\nversion = '1'\n"
    )
    files = files_of(str(place))
    request = replace(wanted, path=str(tmp_path / "home/built"), packages=[], linked_environment=wanted.path)
    request = replace(request, sources={"source": files}, build_environment={"WORD": "as "})
    return Build(request, Order("some", HERE, tmp_path / "into", sources={str(place): files}))


def test_a_source_is_built_with_what_lies_beside_and_its_wheel_is_kept(source: Build) -> None:
    assert source.run()["error"] == ""
    argv = [f"{source.request.path}/bin/python", "-c", "import made; print(made.word)"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "as 1.0+cpu\n"
    assert [wheel.name for wheel in (source.request.place / "wheels").iterdir()] == ["made-1-py3-none-any.whl"]
    assert environment.look(source.request)["ready"] and not source.run()["changed"]
    assert source.run(build_environment={"WORD": "or "})["changed"]
    assert source.run(sources={"source": {**source.request.sources["source"], "more.py": "0"}})["changed"]


def test_what_a_build_says_is_told(source: Build) -> None:
    error = source.run(build_environment={"WORD": "none"})["error"]
    assert error == "some: source could not be built: there is no compiler"
    assert not source.request.place.exists()


@pytest.fixture
def tarball(wanted: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """What is built from a tarball, and nothing else."""
    monkeypatch.setenv("HOME", str(tmp_path))
    there = tmp_path / "there/some.tar"
    there.parent.mkdir()
    done = subprocess.run([sys.executable, PROGRAM, there], capture_output=True, text=True, check=True)
    program = {"name": "some 1.4", "url": there.as_uri(), "sha256": done.stdout.strip(), "file": "some-1.4.tar"}
    programs = [{**program, "configure": ["./configure", "--with-ucx"]}]
    return Build(replace(wanted, packages=[], programs=programs), Order("some", HERE, tmp_path / "into"))


def with_program(build: Build, **change: Any) -> dict[str, Any]:
    return build.run(programs=[{**build.request.programs[0], **change}])


def test_a_program_is_built_from_its_tarball(tarball: Build) -> None:
    place = tarball.request.place
    place.with_name(".venv.build-interrupted").mkdir(parents=True)
    assert tarball.run()["changed"]
    assert (place / "lib/ucc/libucc_tl_ucp.so.1").exists()
    assert [entry.name for entry in place.parent.iterdir() if "build" in entry.name] == []
    Path(tarball.request.programs[0]["url"].removeprefix("file://")).unlink()  # it is on the shelf
    assert not with_program(tarball, url="https://mirror.example/some.tar")["changed"]
    failed = with_program(tarball, configure=["./nothing"])
    assert "./nothing" in failed["error"] and not failed["changed"]
    assert (place / "lib/ucc/libucc_tl_ucp.so.1").exists()  # what was there
    assert with_program(tarball, configure=["./configure", "--with-cuda"])["changed"]
    assert (place / "lib/ucc/libucc_tl_cuda.so.1").exists()


# --- filling a wheelhouse ---------------------------------------------------------------------------------------------


@pytest.fixture
def to_fill(published: Path, tmp_path: Path) -> Order:
    """What is brought for a machine into a wheelhouse that is empty yet."""
    locked = lock(published, *EVERYTHING, only_build=("gpu",))
    into = tmp_path / "into"
    return Order("some", HERE, into, ["tiny==1.0"], str(tmp_path / "empty"), fill=True, locked=locked)


def filled(order: Order) -> list[str]:
    wheelhouse.pack(order)
    return sorted(path.name.rpartition("-py3")[0] for path in Path(order.wheelhouse).iterdir())


def refusal(order: Order) -> str:
    with pytest.raises(NotBroughtError) as caught:
        wheelhouse.pack(order)
    return str(caught.value)


def test_a_wheelhouse_is_filled_with_what_is_locked(to_fill: Order, published: Path) -> None:
    index_of(published, ("helper", "1.1", ""))
    assert filled(to_fill) == ["gpu-1.0", "helper-1.0", "tiny-1.0"]


def test_a_wheelhouse_is_not_filled_with_what_changed(to_fill: Order, published: Path) -> None:
    index_of(published, ("helper", "1.0", "Summary: with a gift\n"))
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in refusal(to_fill)
    assert not Path(to_fill.wheelhouse, "helper-1.0-py3-none-any.whl").exists()


def test_a_wheelhouse_is_filled_with_a_build_of_ones_own(
    to_fill: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_wheels(tmp_path / "own", "1.0+mine", monkeypatch)
    assert filled(to_fill) == ["helper-1.0", "tiny-1.0+mine"]


def test_two_indexes_are_not_asked_together(tmp_path: Path, two_indexes: str) -> None:
    house = str(tmp_path / "empty")
    order = Order("some", HERE, tmp_path / "into", ["fast==1.0", "plain==2.0"], house, True, two_indexes)
    assert filled(order) == ["fast-1.0+gpu", "helper-1.0", "plain-2.0"]


def test_what_is_there_is_not_downloaded(to_fill: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a download that fails is told in pip's words."""
    wheelhouse.pack(to_fill)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    wheelhouse.pack(to_fill)
    error = refusal(replace(to_fill, packages=["tiny==3.0"], locked={}))
    assert error.startswith(f"no wheels for {HERE.label} could be downloaded to {to_fill.wheelhouse}: ")
    assert "No matching distribution found for tiny==3.0" in error


def test_the_markers_of_the_machine_count(to_fill: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of the Python here: other is needed from 3.14 on, and is not there."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    Path(to_fill.wheelhouse).mkdir()
    add_wheel(Path(to_fill.wheelhouse), "tiny", "1.0", needs="Requires-Dist: other ; python_version >= '3.14'\n")
    bare = replace(to_fill, locked={})
    wheelhouse.pack(bare)
    assert "other" in refusal(replace(bare, machine=replace(HERE, python="3.14")))


def test_a_wheel_of_a_wheelhouse_that_changed_is_refused_on_the_machine(plain: Request, to_fill: Order) -> None:
    wheelhouse.pack(to_fill)
    add_wheel(Path(to_fill.wheelhouse), "helper", "1.0", needs="Summary: with a gift\n")
    pack = Path(f"{plain.path}.tar")
    pack.parent.mkdir()
    pack.write_bytes(wheelhouse.pack(replace(to_fill, fill=False)).read_bytes())
    request = replace(locked_to(plain, dict(to_fill.locked)), wheelhouse=to_fill.wheelhouse, brought=str(pack))
    assert "helper==1.0: the lock has the sha256" in error_of(request)
