"""Wheels and package indexes that are quickly made, and environments that are made of them."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment import Lock, Request
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.interpreter import probe

EVERYTHING = ("tiny==1.0", "helper==1.0", "gpu==1.0")


def add_wheel(wheelhouse: Path, name: str, version: str, tag: str = "py3-none-any", needs: str = "") -> Path:
    """Write the smallest wheel that pip installs, with a library as UCX's has it. `needs` are lines of metadata."""
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"lib{name}/lib/lib{name}.la": "libdir='/where/it/was/made'\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{about}/RECORD"])
    there = wheelhouse / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(there, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return there


def index_of(place: Path, *wheels: tuple[str, str, str]) -> str:
    """Return the address of a package index with some wheels (name, version, what each needs)."""
    for name, version, needs in wheels:
        (place / name).mkdir(parents=True, exist_ok=True)
        add_wheel(place / name, name, version, needs=needs)
        links = [f'<a href="{path.name}">{path.name}</a>' for path in (place / name).glob("*.whl")]
        (place / name / "index.html").write_text("\n".join(links))
    return place.as_uri()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lock(place: Path, *packages: str, only_build: tuple[str, ...] = (), more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what an environment is locked to: some packages of an index, as they are now."""
    lines = []
    for package in packages:
        name, _sep, version = package.partition("==")
        digests = [digest(path) for path in sorted((place / name).glob(f"{name}-{version}-*.whl"))]
        lines.append(" ".join([package, *[f"--hash=sha256:{each}" for each in digests]]))
    return {"lines": lines, "of_the_build": [packages[0].partition("==")[0], *only_build], "more": list(more)}


def locked_to(request: Request, locked: dict[str, Any]) -> Request:
    """Return a request that is locked to that."""
    return replace(request, lock=hashlib.sha256("".join(locked["lines"]).encode()).hexdigest(), locked=Lock(**locked))


def request_for(place: Path, **change: Any) -> Request:
    """Return a request as the action makes one, for an environment below `place`."""
    wanted = Request(
        role="some",
        setting="some_venv",
        path=str(place / "home/venv"),
        python=sys.executable,
        interpreter=probe(sys.executable),
        packages=["tiny==1.0"],
        disk_mb=1,
        mesh=str(place / "ssh/config"),
    )
    return replace(wanted, **change)
