"""What the controller chooses out of a wheelhouse, fetches and packs for a machine."""

from __future__ import annotations

import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._software import interpreter
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software import wheelhouse
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.environment_request import (
    files_of,
    order_for,
    prepared,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.wheelhouse import (
    Machine,
    NotBroughtError,
    Order,
)
from tests.wheels import add_wheel, digest

DEBIAN = Machine("3.11", "2.36", "x86_64")
TAGS = ("cp311-cp311-manylinux_2_28_x86_64", "cp313-cp313-manylinux_2_28_x86_64", "cp311-cp311-win_amd64")


@pytest.fixture
def order(tmp_path: Path) -> Order:
    """A wheelhouse for two kinds of machines, and what one of them needs."""
    house = tmp_path / "house"
    house.mkdir()
    needs = "Requires-Dist: Other_One>=1 ; python_version >= '3.12'\nRequires-Dist: extra ; extra == 'more'\n"
    for tag in TAGS:
        add_wheel(house, "big", "1.0+cpu", tag, needs)
    add_wheel(house, "big", "2.0", TAGS[0])
    add_wheel(house, "other_one", "1.5", needs="Requires-Dist: third\n")
    add_wheel(house, "third", "3", "cp38-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64")
    add_wheel(house, "extra", "1")
    add_wheel(house, "unasked", "1")
    return Order("some", DEBIAN, tmp_path / "into", ["big==1.0"], str(house))


def names_in(pack: Path) -> list[str]:
    with tarfile.open(pack) as content:
        return sorted(content.getnames())


def refusal(order: Order) -> str:
    with pytest.raises(NotBroughtError) as caught:
        wheelhouse.pack(order)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_only_what_the_machine_can_use_is_brought(order: Order) -> None:
    packed = wheelhouse.pack(order)
    assert [name.split("-")[0] for name in names_in(packed)] == ["big", "other_one", "third"]
    assert f"big-1.0+cpu-{TAGS[0]}.whl" in names_in(packed)
    assert packed.stat().st_mode & 0o777 == 0o600
    other = wheelhouse.pack(replace(order, machine=replace(DEBIAN, python="3.13")))
    assert other != packed == wheelhouse.pack(order)  # machines of a kind share it


def test_of_several_builds_the_one_that_is_named_is_brought(order: Order) -> None:
    add_wheel(Path(order.wheelhouse), "big", "1.0+torch2.14.1", TAGS[0])
    names = names_in(wheelhouse.pack(replace(order, packages=["big==1.0+torch2.14.1"])))
    assert names == [f"big-1.0+torch2.14.1-{TAGS[0]}.whl"]


def test_the_lock_of_the_packs_is_no_link(order: Order, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("words")
    order.into.mkdir()
    (order.into / "lock").symlink_to(tmp_path / "precious")
    assert "lock is not a lock file of this user: remove it" in refusal(order)
    assert (tmp_path / "precious").read_text() == "words"


@pytest.mark.parametrize(
    ("package", "machine", "says"),
    [
        (
            "big==3.0",
            DEBIAN,
            "has no wheel of big==3.0 for Python 3.11 on x86_64: download it with -e some_wheelhouse_",
        ),
        ("big==1.0", replace(DEBIAN, python="3.12"), "has no wheel of big==1.0 for Python 3.12 on x86_64"),
        ("big==1.0", replace(DEBIAN, machine="aarch64"), "has no wheel of big==1.0 for Python 3.11 on aarch64"),
    ],
)
def test_what_is_not_there_is_named(order: Order, package: str, machine: Machine, says: str) -> None:
    assert says in refusal(replace(order, packages=[package], machine=machine))


def test_a_wheelhouse_that_is_none_is_named(order: Order) -> None:
    assert refusal(replace(order, wheelhouse="/no/such")).startswith("/no/such has no wheel of big==1.0")


def test_a_wheelhouse_with_other_versions_than_the_lock_is_refused(order: Order) -> None:
    locked = {"lines": ["big==1.0 --hash=sha256:0", "other-one==1.4 --hash=sha256:0"]}
    assert "has no wheel of other-one==1.4 for Python 3.11 on x86_64: download" in refusal(
        replace(order, locked=locked)
    )


def test_a_wheel_that_changed_is_packed_anew(order: Order) -> None:
    first = wheelhouse.pack(order)
    add_wheel(Path(order.wheelhouse), "other_one", "1.5", needs="Requires-Dist: third\nSummary: another\n")
    assert wheelhouse.pack(order) != first


def test_a_wheel_that_is_broken_is_named(order: Order) -> None:
    Path(order.wheelhouse, "third-3-cp38-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64.whl").write_bytes(b"none")
    assert refusal(order) == f"{order.wheelhouse}: File is not a zip file"


def test_a_wheel_is_made_of_the_pip_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment made by a tool that leaves ensurepip out."""
    monkeypatch.setattr(wheelhouse.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(interpreter, "SYSTEM_WHEELS", tmp_path)
    with zipfile.ZipFile(wheelhouse.own_pip(tmp_path)) as wheel:
        names = wheel.namelist()
    assert "pip/__main__.py" in names
    assert not [name for name in names if ".." in name or name.startswith("/")]


def test_pip_is_brought_where_it_lacks_and_nothing_where_nothing_is_needed(order: Order) -> None:
    bare = replace(order, wheelhouse="")
    assert bare.is_empty and not replace(bare, machine=replace(DEBIAN, needs_pip=True)).is_empty
    packed = wheelhouse.pack(replace(bare, machine=replace(DEBIAN, needs_pip=True)))
    (name,) = names_in(packed)
    assert name.startswith("pip-") and name.endswith("-py3-none-any.whl")


# --- tarballs of programs ---------------------------------------------------------------------------------------------


@pytest.fixture
def program(order: Order, tmp_path: Path) -> dict[str, Any]:
    tarball = tmp_path / "there" / "some.tar"
    tarball.parent.mkdir()
    tarball.write_bytes(b"some program")
    return {"name": "some 1.4", "url": tarball.as_uri(), "sha256": digest(tarball), "file": "some-1.4.tar"}


def test_a_tarball_is_fetched_once(order: Order, program: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(order.into))
    wanted = replace(order, wheelhouse="", packages=[], programs=[program])
    assert names_in(wheelhouse.pack(wanted)) == ["some-1.4.tar"]
    again = replace(wanted, programs=[{**program, "url": "file:///nowhere"}])
    assert names_in(wheelhouse.pack(again)) == ["some-1.4.tar"]


def test_a_tarball_that_is_not_what_it_should_be_is_refused(
    order: Order, program: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(order.into))
    wanted = replace(order, wheelhouse="", packages=[])
    bad = replace(wanted, programs=[{**program, "sha256": "0" * 64}])
    assert f"should have the checksum {'0' * 64}, but has {program['sha256']}" in refusal(bad)
    assert list(wanted.shelf.iterdir()) == []
    gone = replace(wanted, programs=[{**program, "url": "file:///nowhere/some.tar"}])
    assert "could not be fetched" in refusal(gone) and f"copy it to {wanted.shelf} as some-1.4.tar" in refusal(gone)
    here = replace(order, packages=[], programs=[program])
    assert "has no some-1.4.tar with the checksum" in refusal(here) and "-e some_wheelhouse_fill=true" in refusal(here)


# --- what a task asks for ---------------------------------------------------------------------------------------------

GIVEN = {
    **{"role": "some", "packages": ["tiny==1.0"], "lock": "", "locked": True, "wheelhouse": "", "sources": []},
    **{
        "wheelhouse_fill": False,
        "index_url": "",
        "programs": [],
        "kept": [],
        "torch_packages": [],
        "torch_index_url": "",
    },
}


def test_the_sources_of_a_package_are_known_by_their_checksums(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pyproject\.toml is missing"):
        files_of(str(tmp_path))
    for name in ("pyproject.toml", "src/one.py", "tests/two.py", "one.egg-info/x", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    listed = files_of(str(tmp_path))
    assert listed == {name: digest(tmp_path / name) for name in ("pyproject.toml", "src/one.py")}
    given = {**GIVEN, "sources": [str(tmp_path)]}
    ready = prepared(given)
    assert ready["sources"] == {tmp_path.name: listed}
    seen = {"python": "3.11", "libc": "2.36", "machine": "x86_64", "needs_pip": False}
    packed = wheelhouse.pack(order_for(given, ready, seen, tmp_path / "into"))
    assert names_in(packed) == [f"{tmp_path.name}/{name}" for name in sorted(listed)]


def test_a_lock_counts_unless_the_user_says_no(tmp_path: Path) -> None:
    lock = tmp_path / "some.txt"
    lock.write_text(f"tiny==1.0 --hash=sha256:{'a' * 64}\n")
    given = {**GIVEN, "lock": str(lock)}
    ready = prepared(given)
    assert len(ready["lock"]) == 64 and ready["locked"]["of_the_build"] == ["tiny"]
    assert prepared({**given, "locked": False})["lock"] == ""
    with pytest.raises(InputError, match="write a lock of your own"):
        prepared({**given, "packages": ["tiny==2.0"]})


def test_the_path_of_a_wheelhouse_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is part of what an environment is made from: the same one is the same path, however it is typed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert prepared({**GIVEN, "wheelhouse": "~/w"})["wheelhouse"] == str(tmp_path / "w")
    assert prepared({**GIVEN, "wheelhouse": "w/"})["wheelhouse"] == str(tmp_path / "w")
