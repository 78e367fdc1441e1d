"""The programs behind the role python_venv: what they refuse, and that an environment is made once and whole."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.filter.files_of import files_of
from tests.programs import load

FILES = Path(__file__).parents[2] / "roles/python_venv/files"
PROGRAM = FILES / "environment.py"


environment, wheels = load(FILES / "environment.py"), load(FILES / "wheels.py")


def add_wheel(wheelhouse: Path, name: str, version: str, tag: str = "py3-none-any", needs: str = "") -> None:
    """Write the smallest wheel that pip installs, with a library as UCX's has it. `needs` are lines of metadata."""
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"lib{name}/lib/lib{name}.la": "libdir='/where/it/was/made'\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(wheelhouse / f"{name}-{version}-{tag}.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the role would ask for: here pip finds its wheels as it does an index."""
    wheelhouse = tmp_path / "wheels"
    wheelhouse.mkdir()
    add_wheel(wheelhouse, "tiny", "1.0+cpu")
    add_wheel(wheelhouse, "tiny", "2.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheelhouse))
    return {
        "role": "some",
        "setting": "some_venv",
        "path": str(tmp_path / "home/venv"),
        "python": sys.executable,
        "packages": ["tiny==1.0"],
        "python_min": "3.8",
        "python_max": "",
        "disk_mb": 1,
        "index_url": "",
        "wheelhouse": "",
        "sources": {},
        "programs": [],
        "tools": [],
        "build_environment": {},
        "beside": "",
        "lock": "",
        "mesh": str(tmp_path / "ssh/config"),
    }


UNLOCKED = {"locked": {"lines": [], "of_the_build": [], "more": []}}


def version_in(path: str) -> str:
    argv = [f"{path}/bin/python", "-c", "import tiny; print(tiny.version)"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def refusal(request: dict[str, Any]) -> str:
    (only,) = environment.look(request)["refusals"]
    return str(only)


# --- look ----------------------------------------------------------------------------------------------------------


def test_a_fresh_machine_is_accepted(request_: dict[str, Any]) -> None:
    seen = environment.look(request_)
    assert (seen["refusals"], seen["ready"], seen["receipt"], seen["mesh"]) == ([], False, None, False)
    assert not Path(request_["path"]).parent.exists()


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
def test_a_refusal_names_the_variable(request_: dict[str, Any], change: dict[str, Any], says: str) -> None:
    line = refusal({**request_, **change})
    assert says in line
    assert "\n" not in line


def test_a_python_without_venv_is_refused(request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None)
    assert "has no module venv" in refusal(request_)


def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a Debian without python3-venv: it has no ensurepip, and no wheel of pip."""
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else name)
    monkeypatch.setattr(environment, "bundled_pip", list)


def test_pip_is_brought_where_it_lacks(
    request_: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not environment.look(request_)["lacks_pip"]
    without_pip(monkeypatch)
    seen = environment.look(request_)
    assert (seen["refusals"], seen["lacks_pip"]) == ([], True)
    assert not environment.look({**request_, "packages": []})["lacks_pip"]  # nothing that pip installs
    into = tmp_path / "into"
    into.mkdir()
    given = {**request_, **UNLOCKED, **seen, "into": str(into), "fill": False, "directories": {}, "shelf": str(into)}
    packed = wheels.answer(given)
    assert packed["error"] == ""
    Path(request_["path"]).parent.mkdir()
    made = environment.try_to_make({**request_, "brought": packed["pack"]})
    assert made["error"] == ""
    assert version_in(request_["path"]) == "1.0+cpu"


def test_a_wheel_is_made_of_the_pip_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment made by a tool that leaves ensurepip out."""
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheels, "SYSTEM_WHEELS", tmp_path)
    with zipfile.ZipFile(wheels.own_pip(tmp_path)) as wheel:
        names = wheel.namelist()
    assert "pip/__main__.py" in names
    assert not [name for name in names if ".." in name or name.startswith("/")]


def test_a_header_is_a_tool(request_: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.sysconfig, "get_path", lambda name: str(tmp_path))
    assert environment.look({**request_, "tools": ["Python.h", "sh"]})["lacks"] == ["Python.h"]
    (tmp_path / "Python.h").touch()
    assert environment.look({**request_, "tools": ["Python.h", "sh"]})["lacks"] == []


def test_a_directory_without_permission_is_refused(request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.os, "access", lambda *args: False)
    assert refusal(request_).startswith("some: no permission to write in ")


def test_an_environment_that_was_hardly_begun_is_no_stranger(request_: dict[str, Any]) -> None:
    (Path(request_["path"]) / "lib/python").mkdir(parents=True)
    assert environment.look(request_)["refusals"] == []


def test_a_link_to_elsewhere_is_refused(request_: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    Path(request_["path"]).symlink_to(tmp_path / "elsewhere")
    assert refusal(request_) == f"some: {request_['path']} is a symbolic link: set some_venv to where it leads"


def test_machines_of_a_kind_have_the_same_of_everything(request_: dict[str, Any]) -> None:
    kind = environment.look(request_)["kind"]
    assert kind and environment.look({**request_, "role": "other", "disk_mb": 2})["kind"] == kind
    for change in ({"path": "/other"}, {"packages": []}, {"wheelhouse": "/w"}, {"index_url": "https://example.org"}):
        assert environment.look({**request_, **change})["kind"] not in ("", kind)


# --- make ----------------------------------------------------------------------------------------------------------


def test_an_environment_is_made_once(request_: dict[str, Any]) -> None:
    made = environment.try_to_make(request_)
    assert (made["changed"], made["error"], made["receipt"]["installed"]["tiny"]) == (True, "", "1.0+cpu")
    assert version_in(request_["path"]) == "1.0+cpu"
    seen = environment.look(request_)
    assert (seen["refusals"], seen["ready"], seen["receipt"]) == ([], True, made["receipt"])
    assert environment.try_to_make(request_) == {"changed": False, "error": "", "receipt": made["receipt"]}
    assert sorted(os.listdir(Path(request_["path"]).parent)) == ["venv", "venv.lock"]
    # Whatever it is made from, and whatever it holds, is compared with what is asked for.
    assert not environment.is_ready({**request_, "packages": ["tiny==2.0"]})
    assert not environment.is_ready({**request_, "index_url": "https://example.org"})
    site = next(Path(request_["path"]).glob("lib/python*/site-packages"))
    (site / "tiny-1.0+cpu.dist-info").rename(site / "tiny-2.0.dist-info")
    assert not environment.is_ready(request_)


def test_no_description_of_a_library_names_another_machine(request_: dict[str, Any]) -> None:
    """Libtool would look for the library where the wheel was made, and Open MPI could not be built with UCX's."""
    assert environment.try_to_make(request_)["error"] == ""
    assert list(Path(request_["path"]).rglob("libtiny/lib")) != []
    assert list(Path(request_["path"]).rglob("*.la")) == []


def test_other_packages_make_it_anew(request_: dict[str, Any]) -> None:
    environment.make(request_)
    assert environment.make({**request_, "packages": ["tiny==2.0"]})
    assert version_in(request_["path"]) == "2.0"
    assert len(list(Path(request_["path"]).glob("lib/python*/site-packages/tiny-*"))) == 1


def index_of(place: Path, *wheels_: tuple[str, str, str]) -> str:
    """Return the address of a package index with some wheels (name, version, what each needs)."""
    for name, version, needs in wheels_:
        (place / name).mkdir(parents=True, exist_ok=True)
        add_wheel(place / name, name, version, needs=needs)
        links = [f'<a href="{path.name}">{path.name}</a>' for path in (place / name).glob("*.whl")]
        (place / name / "index.html").write_text("\n".join(links))
    return place.as_uri()


@pytest.fixture
def two_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """One index has builds and what they need; on the other somebody gave those names higher versions."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    builds = index_of(tmp_path / "builds", ("fast", "1.0+gpu", "Requires-Dist: helper\n"), ("helper", "1.0", ""))
    public = index_of(tmp_path / "public", ("fast", "1.0+zzz", ""), ("helper", "99", ""), ("plain", "2.0", ""))
    monkeypatch.setenv("PIP_INDEX_URL", public)
    return {"index_url": builds}


def test_a_name_of_one_index_is_not_taken_from_another(request_: dict[str, Any], two_indexes: dict[str, str]) -> None:
    environment.make({**request_, **two_indexes, "packages": ["fast==1.0", "plain==2.0"]})
    there = environment.installed(Path(request_["path"]))
    assert {name: there[name] for name in ("fast", "helper", "plain")} == {
        "fast": "1.0+gpu",
        "helper": "1.0",
        "plain": "2.0",
    }


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lock(place: Path, *packages: str, only_build: tuple[str, ...] = (), more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what is asked of an environment that is locked to some packages of an index, as they are now."""
    lines = []
    for package in packages:
        name, _sep, version = package.partition("==")
        digests = [digest(path) for path in sorted((place / name).glob(f"{name}-{version}-*.whl"))]
        lines.append(" ".join([package, *[f"--hash=sha256:{each}" for each in digests]]))
    locked = {"lines": lines, "of_the_build": [packages[0].partition("==")[0], *only_build], "more": list(more)}
    return {"lock": hashlib.sha256("".join(lines).encode()).hexdigest(), "locked": locked}


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


EVERYTHING = ("tiny==1.0", "helper==1.0", "gpu==1.0")


def test_what_is_locked_is_installed_and_its_checksums_are_kept(request_: dict[str, Any], published: Path) -> None:
    wanted = {**request_, **lock(published, *EVERYTHING)}
    index_of(published, ("helper", "1.1", ""))  # a release of the day after
    made = environment.try_to_make(wanted)
    assert made["error"] == ""
    there = {name: made["receipt"]["installed"][name] for name in ("tiny", "helper", "gpu")}
    assert there == {"tiny": "1.0", "helper": "1.0", "gpu": "1.0"}
    wheel = published / "tiny/tiny-1.0-py3-none-any.whl"
    assert made["receipt"]["digests"]["tiny"] == digest(wheel)
    assert made["receipt"]["unlocked"] == []
    assert environment.is_ready(wanted) and not environment.is_ready({**wanted, "lock": "another"})


def test_what_is_required_with_an_extra_is_found_in_the_lock(request_: dict[str, Any], published: Path) -> None:
    """As PyTorch requires cuda-toolkit[cublas,...]: a lock has the package and what the extra brings, but no extras."""
    kit = "Provides-Extra: part\nRequires-Dist: leaf==1.0 ; extra == 'part'\n"
    index_of(published, ("tiny", "1.0", "Requires-Dist: kit[part]==1.0\n"), ("kit", "1.0", kit), ("leaf", "1.0", ""))
    made = environment.try_to_make({**request_, **lock(published, "tiny==1.0", "kit==1.0", "leaf==1.0")})
    assert made["error"] == ""
    assert made["receipt"]["installed"]["leaf"] == "1.0"


def test_a_wheel_that_changed_is_refused(request_: dict[str, Any], published: Path) -> None:
    wanted = {**request_, **lock(published, *EVERYTHING)}
    (known,) = [line.rpartition(":")[2] for line in wanted["locked"]["lines"] if line.startswith("helper")]
    index_of(published, ("helper", "1.0", "Summary: with a gift\n"))
    came = digest(published / "helper/helper-1.0-py3-none-any.whl")
    error = environment.try_to_make(wanted)["error"]
    assert "\n" not in error
    assert f"helper==1.0: the lock has the sha256 {known}, and what came has {came}: if you know why, say -e" in error
    assert not Path(request_["path"]).exists()


@pytest.mark.parametrize("needs", ["stranger", "stranger==3.0"])
def test_a_package_that_the_lock_does_not_know_is_refused(
    request_: dict[str, Any], published: Path, needs: str
) -> None:
    """As after a release that requires more, in place of one of the same number."""
    index_of(published, ("helper", "1.0", f"Requires-Dist: {needs}\n"), ("stranger", "3.0", ""))
    error = environment.try_to_make({**request_, **lock(published, *EVERYTHING)})["error"]
    assert "\n" not in error and "stranger" in error and "the lock has no such package" in error
    assert "-e torchfleet_locked=false" in error


def test_without_a_lock_versions_count_alone(request_: dict[str, Any], published: Path) -> None:
    index_of(published, ("helper", "1.1", ""))
    made = environment.try_to_make(request_)
    assert (made["error"], made["receipt"]["installed"]["helper"]) == ("", "1.1")


def own_wheels(place: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lay a build of one's own into a directory that pip is told of, as whoever sets a machine up does."""
    place.mkdir()
    add_wheel(place, "tiny", version, needs="Requires-Dist: helper>=1\n")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    return next(place.iterdir())


def test_a_build_of_ones_own_takes_the_place_of_the_indexes(
    request_: dict[str, Any], published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a version of its own. What only the index's build requires stays away; all else has its checksum."""
    wheel = own_wheels(tmp_path / "own", "1.0+mine", monkeypatch)
    wanted = {**request_, **lock(published, *EVERYTHING, only_build=("gpu",))}
    made = environment.try_to_make(wanted)
    assert made["error"] == ""
    there = made["receipt"]["installed"]
    assert (there["tiny"], there["helper"], "gpu" in there) == ("1.0+mine", "1.0", False)
    assert made["receipt"]["digests"]["tiny"] == digest(wheel)
    assert made["receipt"]["unlocked"] == ["tiny"]
    index_of(published, ("helper", "1.0", "Summary: with a gift\n"))
    assert "helper==1.0: the lock has" in environment.try_to_make({**wanted, "path": f"{wanted['path']}-2"})["error"]


def test_a_wheel_that_poses_as_the_published_one_is_not_installed(
    request_: dict[str, Any], published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {**request_, **lock(published, *EVERYTHING)}
    came = digest(own_wheels(tmp_path / "own", "1.0", monkeypatch))
    made = environment.try_to_make(wanted)  # of two equal ones pip takes the index's
    assert made["receipt"]["digests"]["tiny"] == digest(published / "tiny/tiny-1.0-py3-none-any.whl") != came
    (published / "tiny/index.html").write_text("")
    error = environment.try_to_make({**wanted, "path": f"{wanted['path']}-2"})["error"]
    assert "tiny==1.0: the lock has the sha256" in error and came in error


def test_what_the_user_adds_changes_nothing_that_is_locked(request_: dict[str, Any], published: Path) -> None:
    index_of(published, ("helper", "1.1", ""), ("mine", "5", "Requires-Dist: helper\n"))
    wanted = {**request_, "packages": ["tiny==1.0", "mine==5"], **lock(published, *EVERYTHING, more=("mine==5",))}
    made = environment.try_to_make(wanted)
    assert made["error"] == ""
    assert (made["receipt"]["installed"]["mine"], made["receipt"]["installed"]["helper"]) == ("5", "1.0")


def test_what_was_interrupted_is_made_anew(request_: dict[str, Any]) -> None:
    """Without a receipt nothing is trusted, although pip takes the package for installed."""
    environment.make(request_)
    (Path(request_["path"]) / environment.RECEIPT).unlink()
    next(Path(request_["path"]).glob("lib/python*/site-packages/tiny.py")).unlink()
    assert environment.make(request_)
    assert version_in(request_["path"]) == "1.0+cpu"


def test_what_lost_files_since_is_made_anew(request_: dict[str, Any]) -> None:
    """As systemd-tmpfiles leaves it: the receipt and the names of all packages are there, some files are not."""
    environment.make(request_)
    next(Path(request_["path"]).glob("lib/python*/site-packages/tiny.py")).unlink()
    assert not environment.look(request_)["ready"]
    assert environment.make(request_)
    assert version_in(request_["path"]) == "1.0+cpu"


def test_a_failure_is_one_line_and_leaves_nothing(request_: dict[str, Any]) -> None:
    answer = environment.try_to_make({**request_, "packages": ["tiny==3.0"]})
    assert answer["error"].startswith("some: pip could not install tiny==3.0: ERROR: ")
    assert "\n" not in answer["error"]
    assert os.listdir(Path(request_["path"]).parent) == ["venv.lock"]


def test_a_failure_leaves_what_was_there(request_: dict[str, Any]) -> None:
    environment.make(request_)
    assert environment.try_to_make({**request_, "packages": ["tiny==3.0"]})["error"]
    assert environment.look(request_)["ready"]
    assert version_in(request_["path"]) == "1.0+cpu"


def test_wheels_that_were_brought_are_the_only_source_and_go(request_: dict[str, Any], tmp_path: Path) -> None:
    brought = {**request_, "wheelhouse": "/on/the/controller", "brought": str(tmp_path / "pack.tar")}
    with tarfile.open(brought["brought"], "w") as pack:
        pack.add(tmp_path / "wheels/tiny-1.0+cpu-py3-none-any.whl", "tiny-1.0+cpu-py3-none-any.whl")
    assert environment.try_to_make(brought)["error"] == ""
    assert version_in(request_["path"]) == "1.0+cpu"
    assert not Path(brought["brought"]).exists()
    assert not environment.is_ready(request_)  # which comes from an index
    assert environment.try_to_make({**brought, "packages": ["tiny==2.0"]})["error"]


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


@pytest.fixture
def to_build(request_: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """A request for what is built from a source, beside an environment whose packages it takes."""
    environment.make(request_)
    source = tmp_path / "source"
    source.mkdir()
    (source / "builder.py").write_text(BUILDER)
    (source / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'builder'\nbackend-path = ['.']\n"
        "[project]\nname = 'made'\nversion = '1'\n"
    )
    change = {"path": str(tmp_path / "home/built"), "packages": [], "beside": request_["path"]}
    change |= {"sources": {"source": files_of(str(source))}, "build_environment": {"WORD": "as "}}
    return {**request_, **change, "directories": {"source": str(source)}, "into": str(tmp_path), "fill": False}


def built(request_: dict[str, Any]) -> dict[str, Any]:
    """Bring the sources as the controller does, and build them."""
    pack = wheels.answer(
        {**request_, **UNLOCKED, "python": "3.11", "libc": "2.36", "machine": "x86_64", "lacks_pip": False}
    )
    assert pack["error"] == ""
    answer: dict[str, Any] = environment.try_to_make({**request_, "brought": pack["pack"]})
    return answer


def test_a_source_is_built_with_what_lies_beside_and_its_wheel_is_kept(to_build: dict[str, Any]) -> None:
    assert built(to_build)["error"] == ""
    argv = [f"{to_build['path']}/bin/python", "-c", "import made; print(made.word)"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "as 1.0+cpu\n"
    assert [wheel.name for wheel in Path(to_build["path"], "wheels").iterdir()] == ["made-1-py3-none-any.whl"]
    assert environment.look(to_build)["ready"]


def test_another_source_or_build_makes_it_anew(to_build: dict[str, Any]) -> None:
    assert built(to_build)["changed"]
    assert not built(to_build)["changed"]
    assert built({**to_build, "build_environment": {"WORD": "or "}})["changed"]
    Path(to_build["directories"]["source"], "more.py").write_text("")
    changed = {**to_build, "sources": {"source": files_of(to_build["directories"]["source"])}}
    assert built(changed)["changed"]


def test_what_a_build_says_is_told(to_build: dict[str, Any]) -> None:
    answer = built({**to_build, "build_environment": {"WORD": "none"}})
    assert answer["error"] == "some: source could not be built: there is no compiler"
    assert not Path(to_build["path"]).exists()


@pytest.fixture
def from_tarball(request_: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """What is built from a tarball, and nothing else: the one of role ucc's scenario."""
    tarball = tmp_path / "there" / "some.tar"
    tarball.parent.mkdir()
    program = Path(__file__).parents[2] / "roles/ucc/molecule/default/source.py"
    digest = subprocess.run(
        [sys.executable, program, tarball], capture_output=True, text=True, check=True
    ).stdout.strip()
    source = {"name": "some 1.4", "url": tarball.as_uri(), "sha256": digest, "file": "some-1.4.tar"}
    programs = [{**source, "configure": ["./configure", "--with-ucx"]}]
    wanted = {"packages": [], "programs": programs, "tools": ["make"], "shelf": str(tmp_path / "shelf")}
    return {**request_, **wanted, "directories": {}, "into": str(tmp_path), "fill": False}


def with_program(request: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {**request, "programs": [{**request["programs"][0], **change}]}


def test_a_program_is_built_from_its_tarball(from_tarball: dict[str, Any]) -> None:
    assert environment.look(from_tarball)["lacks"] == []
    Path(from_tarball["path"]).with_name(".build-venv-interrupted").mkdir(parents=True)
    assert built(from_tarball)["changed"]
    assert Path(from_tarball["path"], "lib/ucc/libucc_tl_ucp.so.1").exists()
    assert [entry.name for entry in Path(from_tarball["path"]).parent.iterdir() if "build" in entry.name] == []
    Path(from_tarball["programs"][0]["url"].removeprefix("file://")).unlink()  # it is on the shelf
    assert not built(with_program(from_tarball, url="https://mirror.example/some.tar"))["changed"]
    assert built(with_program(from_tarball, configure=["./configure", "--with-cuda"]))["changed"]
    assert Path(from_tarball["path"], "lib/ucc/libucc_tl_cuda.so.1").exists()


def test_a_program_that_cannot_be_built_leaves_what_was_there(from_tarball: dict[str, Any]) -> None:
    built(from_tarball)
    answer = built(with_program(from_tarball, configure=["./nothing"]))
    assert "./nothing" in answer["error"] and not answer["changed"]
    assert Path(from_tarball["path"], "lib/ucc/libucc_tl_ucp.so.1").exists()
    assert environment.look({**from_tarball, "tools": ["make", "no-such-compiler"]})["lacks"] == ["no-such-compiler"]


def test_where_make_stopped_is_told() -> None:
    said = ["make: Making all in config", "perl: not found", "make[1]: *** [all] Error 127", "make: *** [all] 2"]
    assert environment.errors_in(said) == said[:3]
    assert environment.errors_in(["more"] * 5 + said) == said[:3]


def test_a_tarball_that_is_not_what_it_should_be_is_refused(from_tarball: dict[str, Any], tmp_path: Path) -> None:
    machine = {"python": "3.11", "libc": "2.36", "machine": "x86_64", "lacks_pip": False}
    digest = from_tarball["programs"][0]["sha256"]
    answer = wheels.answer({**with_program(from_tarball, sha256="0" * 64), **machine})
    assert f"should have the checksum {'0' * 64}, but has {digest}" in answer["error"]
    assert list((tmp_path / "shelf").iterdir()) == []
    answer = wheels.answer({**with_program(from_tarball, url="file:///nowhere/some.tar"), **machine})
    assert (
        "could not be fetched" in answer["error"]
        and f"lay it in {tmp_path / 'shelf'} as some-1.4.tar" in answer["error"]
    )
    answer = wheels.answer({**from_tarball, **machine, "wheelhouse": str(tmp_path / "shelf")})
    assert (
        "has no some-1.4.tar with the checksum" in answer["error"] and "-e some_wheelhouse_fill=true" in answer["error"]
    )


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


# --- send and receive -----------------------------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return (from, to) of every sending; "" is this machine. Nobody is reached really (tests/lab does that)."""
    log: list[tuple[str, str]] = []

    def on(sender: str) -> Any:
        def send_to(request: dict[str, Any], host: str) -> str:
            log.append((sender, host))
            return "down" if host in request["down"] else ""

        return send_to

    def send_on(request: dict[str, Any], host: str, others: list[str]) -> Any:
        there = load(FILES / "environment.py")
        monkeypatch.setattr(there, "send_to", on(host))
        monkeypatch.setattr(there, "send_on", send_on)
        return there.send({**request, "to": others})

    monkeypatch.setattr(environment, "send_to", on(""))
    monkeypatch.setattr(environment, "send_on", send_on)
    return log


HOSTS = [f"n{number}" for number in range(31)]


def test_those_who_have_it_send_it_on(sent: list[tuple[str, str]]) -> None:
    answer = environment.send({"to": HOSTS, "senders": HOSTS, "down": []})
    assert answer == dict.fromkeys(HOSTS, "")
    assert sorted(host for _sender, host in sent) == sorted(HOSTS)
    busiest = max(sum(sender == other for other, _host in sent) for sender, _host in sent)
    assert busiest == environment.SENT_AT_A_TIME
    received = [""]
    for sender, host in sent:  # nobody sends what he has not got
        assert sender in received
        received.append(host)


def test_without_any_to_any_one_sends_to_all(sent: list[tuple[str, str]]) -> None:
    assert environment.send({"to": HOSTS, "senders": [], "down": ["n4"]}) == {**dict.fromkeys(HOSTS, ""), "n4": "down"}
    assert sorted(sent) == sorted(("", host) for host in HOSTS)


def test_a_dead_sender_takes_nobody_with_him(sent: list[tuple[str, str]]) -> None:
    answer = environment.send({"to": HOSTS, "senders": HOSTS, "down": ["n0"]})
    assert answer == {**dict.fromkeys(HOSTS, ""), "n0": "down"}
    assert ("", "n4") in sent


def receive(request: dict[str, Any], stream: bytes) -> list[str]:
    """Start the receiver as a sender does. Return the lines it prints."""
    argv = [sys.executable, "-c", environment.START]
    order = environment.order("receive", {**request, "program": PROGRAM.read_text()})
    done = subprocess.run(argv, input=order + stream, capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout.decode().splitlines()


def test_it_arrives_whole_or_not_at_all(request_: dict[str, Any]) -> None:
    environment.make(request_)
    path = Path(request_["path"])
    (path / environment.PROOF).write_text("of this machine\n")
    wanted = {**request_, "receipt": environment.read_receipt(path), "source": ""}
    tar = subprocess.run(environment.tar_of(wanted), stdout=subprocess.PIPE, check=True).stdout
    assert receive(wanted, b"") == ['{"error": ""}']  # it is there, as on a home that machines share
    (path / environment.RECEIPT).unlink()
    first, error = receive(wanted, tar[: len(tar) // 2])
    assert first == "send" and "it arrived in part: tar: Unexpected EOF" in error
    assert (path / environment.PROOF).exists()  # what was there before
    assert receive(wanted, tar) == ["send", '{"error": ""}']
    assert environment.look(request_)["receipt"] == wanted["receipt"]
    assert not (path / environment.PROOF).exists()
    assert version_in(request_["path"]) == "1.0+cpu"
    assert sorted(os.listdir(path.parent)) == ["venv", "venv.lock"]


# --- choosing wheels on the controller ------------------------------------------------------------------------------


@pytest.fixture
def order(tmp_path: Path) -> dict[str, Any]:
    """A wheelhouse for two kinds of machines, and what one of them needs."""
    house = tmp_path / "house"
    house.mkdir()
    tags = ("cp311-cp311-manylinux_2_28_x86_64", "cp313-cp313-manylinux_2_28_x86_64", "cp311-cp311-win_amd64")
    needs = "Requires-Dist: Other_One>=1 ; python_version >= '3.12'\nRequires-Dist: extra ; extra == 'more'\n"
    for tag in tags:
        add_wheel(house, "big", "1.0+cpu", tag, needs)
    add_wheel(house, "big", "2.0", tags[0])
    add_wheel(house, "other_one", "1.5", needs="Requires-Dist: third\n")
    add_wheel(house, "third", "3", "cp38-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64")
    add_wheel(house, "extra", "1")
    add_wheel(house, "unasked", "1")
    return {
        **UNLOCKED,
        **{"role": "some", "wheelhouse": str(house), "packages": ["big==1.0"], "index_url": "", "fill": False},
        **{
            "sources": {},
            "programs": [],
            "directories": {},
            "into": str(tmp_path),
            "python": "3.11",
            "libc": "2.36",
            "lacks_pip": False,
            "machine": "x86_64",
        },
    }


def test_only_what_the_machine_can_use_is_brought(order: dict[str, Any]) -> None:
    answer = wheels.answer(order)
    assert answer["error"] == ""
    with tarfile.open(answer["pack"]) as pack:
        assert sorted(name.split("-")[0] for name in pack.getnames()) == ["big", "other_one", "third"]
        assert "big-1.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl" in pack.getnames()
    other = wheels.answer({**order, "python": "3.13"})["pack"]
    assert other != answer["pack"] == wheels.answer(order)["pack"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"packages": ["big==3.0"]}, "has no wheel of big==3.0 for Python 3.11 on x86_64: download it with"),
        ({"python": "3.12"}, "has no wheel of big==1.0 for Python 3.12 on x86_64"),
        ({"machine": "aarch64"}, "has no wheel of big==1.0 for Python 3.11 on aarch64"),
        ({"wheelhouse": "/no/such"}, "some: /no/such has no wheel of big==1.0"),
    ],
)
def test_what_is_not_there_is_named(order: dict[str, Any], change: dict[str, Any], says: str) -> None:
    answer = wheels.answer({**order, **change})
    assert says in answer["error"]
    assert "\n" not in answer["error"]


def test_what_is_there_is_not_downloaded(order: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """And a download that fails is told in pip's words."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, "")
    assert wheels.answer({**order, "fill": True})["error"] == ""
    error = wheels.answer({**order, "fill": True, "packages": ["big==3.0"]})["error"]
    assert error.startswith("some: no wheels for Python 3.11 on x86_64 could be brought to ")
    assert "No matching distribution found for big==3.0" in error


def test_two_indexes_are_not_asked_together(order: dict[str, Any], two_indexes: dict[str, str], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    wanted = {**two_indexes, "packages": ["fast==1.0", "plain==2.0"], "wheelhouse": str(empty), "fill": True}
    assert wheels.answer({**order, **wanted})["error"] == ""
    assert sorted(path.name.rpartition("-py3")[0] for path in empty.iterdir()) == [
        "fast-1.0+gpu",
        "helper-1.0",
        "plain-2.0",
    ]


def test_a_wheel_that_changed_is_packed_anew(order: dict[str, Any]) -> None:
    first = wheels.answer(order)["pack"]
    add_wheel(Path(order["wheelhouse"]), "other_one", "1.5", needs="Requires-Dist: third\nSummary: another\n")
    assert wheels.answer(order)["pack"] != first


def test_the_markers_of_the_machine_count(order: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of the Python here: other-one is needed from 3.12 on, and is not there."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    Path(order["wheelhouse"], "other_one-1.5-py3-none-any.whl").unlink()
    assert wheels.answer({**order, "fill": True})["error"] == ""
    assert "other-one" in wheels.answer({**order, "fill": True, "python": "3.13"})["error"].lower().replace("_", "-")


# --- wheelhouses and the lock -----------------------------------------------------------------------------------------


@pytest.fixture
def to_fill(order: dict[str, Any], published: Path, tmp_path: Path) -> dict[str, Any]:
    """What is brought for a machine into a wheelhouse that is empty yet."""
    wanted = lock(published, *EVERYTHING, only_build=("gpu",))
    return {**order, **wanted, "packages": ["tiny==1.0"], "wheelhouse": str(tmp_path / "empty"), "fill": True}


def filled(request: dict[str, Any]) -> list[str]:
    return sorted(path.name.rpartition("-py3")[0] for path in Path(request["wheelhouse"]).iterdir())


def test_a_wheelhouse_is_filled_with_what_is_locked(to_fill: dict[str, Any], published: Path) -> None:
    index_of(published, ("helper", "1.1", ""))
    assert wheels.answer(to_fill)["error"] == ""
    assert filled(to_fill) == ["gpu-1.0", "helper-1.0", "tiny-1.0"]


def test_a_wheelhouse_is_not_filled_with_what_changed(to_fill: dict[str, Any], published: Path) -> None:
    index_of(published, ("helper", "1.0", "Summary: with a gift\n"))
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in wheels.answer(to_fill)["error"]
    assert not Path(to_fill["wheelhouse"], "helper-1.0-py3-none-any.whl").exists()


def test_a_wheelhouse_is_filled_with_a_build_of_ones_own(
    to_fill: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_wheels(tmp_path / "own", "1.0+mine", monkeypatch)
    assert wheels.answer(to_fill)["error"] == ""
    assert filled(to_fill) == ["helper-1.0", "tiny-1.0+mine"]


def test_a_wheelhouse_with_other_versions_than_the_lock_is_refused(to_fill: dict[str, Any], published: Path) -> None:
    house = Path(to_fill["wheelhouse"])
    house.mkdir()
    for name, version in (("tiny", "1.0"), ("helper", "1.1"), ("gpu", "1.0")):
        add_wheel(house, name, version, needs="Requires-Dist: helper\n" if name == "tiny" else "")
    error = wheels.answer({**to_fill, "fill": False})["error"]
    assert (
        f"{house} has no wheel of helper==1.0 for Python 3.11 on x86_64: download it with -e some_wheelhouse" in error
    )


def test_a_wheel_of_a_wheelhouse_that_changed_is_refused_on_the_machine(
    request_: dict[str, Any], to_fill: dict[str, Any]
) -> None:
    assert wheels.answer(to_fill)["error"] == ""
    add_wheel(Path(to_fill["wheelhouse"]), "helper", "1.0", needs="Summary: with a gift\n")
    pack = wheels.answer({**to_fill, "fill": False})["pack"]
    Path(request_["path"]).parent.mkdir()
    given = {**to_fill, **{name: request_[name] for name in request_ if name not in to_fill}, "brought": pack}
    assert "helper==1.0: the lock has the sha256" in environment.try_to_make(given)["error"]
