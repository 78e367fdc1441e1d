"""Packages that no installation exchanges, with the real pip."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment import (
    Request,
    installed,
    is_ready,
    read_receipt,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment_make import try_to_make
from tests.wheels import add_wheel, request_for


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Request:
    """An environment with a package that is kept, and the library that it pins."""
    root = tmp_path_factory.mktemp("proven")
    wheels = root / "wheels"
    wheels.mkdir()
    add_wheel(wheels, "torch", "2.13.0", needs="Requires-Dist: cudalib==12.0\nRequires-Dist: plain>=1\n")
    for name, version in (("cudalib", "12.0"), ("plain", "1.0")):
        add_wheel(wheels, name, version)
    request = request_for(root, packages=["torch==2.13.0"], wheelhouse=str(wheels))
    made = try_to_make(replace(request, brought=packed(wheels)))
    assert not made["error"]
    return request


def packed(wheels: Path) -> str:
    import tarfile

    there = wheels.with_suffix(".tar")
    with tarfile.open(there, "w") as file:
        for wheel in wheels.glob("*.whl"):
            file.add(wheel, arcname=wheel.name)
    return str(there)


def made_on(proven: Request, place: Path, *wheels: tuple[str, str, str], **change: Any) -> tuple[Request, str]:
    """Make an environment on top of the proven one, of wheels (name, version, what each needs)."""
    shelf = place / "wheels"
    shelf.mkdir(parents=True)
    for name, version, needs in wheels:
        add_wheel(shelf, name, version, needs=needs)
    link = {"linked_environment": proven.path, "kept": ["torch==2.13.0"]}
    request = request_for(place, wheelhouse=str(shelf), **{**link, **change})
    return request, try_to_make(replace(request, brought=packed(shelf)))["error"]


def test_it_is_seen_and_not_installed_again(proven: Request, tmp_path: Path) -> None:
    tiny = ("tiny", "1.0", "Requires-Dist: torch>=2\nRequires-Dist: plain\n")
    request, error = made_on(proven, tmp_path, tiny, ("torch", "2.14.0", ""))
    assert (error, installed(request.place, request.interpreter.version)) == ("", {"tiny": "1.0"})
    assert is_ready(request)
    assert (read_receipt(request.place) or {})["kept"] == ["torch==2.13.0"]
    assert not is_ready(replace(request, kept=["torch==2.14.0"]))


@pytest.mark.parametrize(
    ("needs", "both"),
    [
        (
            "Requires-Dist: torch<2.0\n",
            r"tiny 1.0 depends on torch<2.0; The user requested \(constraint\) torch.*==2.13.0$",
        ),
        (
            "Requires-Dist: cudalib==11.0\n",
            r"tiny 1.0 depends on cudalib==11.0; The user requested \(constraint\) cudalib==12.0$",
        ),
    ],
)
def test_a_package_that_would_exchange_it_is_refused(proven: Request, tmp_path: Path, needs: str, both: str) -> None:
    others = (("torch", "1.0", ""), ("cudalib", "11.0", ""))
    request, error = made_on(proven, tmp_path, ("tiny", "1.0", needs), *others)
    assert error.startswith("some: pip could not install tiny==1.0: ")
    assert re.search(both, error)
    assert not request.place.exists()


def test_what_it_does_not_pin_may_be_another(proven: Request, tmp_path: Path) -> None:
    request, error = made_on(proven, tmp_path, ("plain", "2.0", ""), packages=["plain==2.0"])
    assert (error, installed(request.place, request.interpreter.version)) == ("", {"plain": "2.0"})


def test_an_environment_that_changed_meanwhile(proven: Request, tmp_path: Path) -> None:
    _request, error = made_on(proven, tmp_path, ("tiny", "1.0", ""), kept=["torch==2.12.0"])
    assert f"{proven.path} should have torch==2.12.0, and has 2.13.0: ansible-playbook setup.yml" in error
