# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The launcher of a distribution's package: a directory of torchfleet with links to its programs.

Debian can have Open MPI and MPICH at once, and calls their programs mpirun.openmpi and mpirun.mpich; the links have the
plain names. A receipt has the package, its version and the links: after an upgrade the links are made again, and the
launcher is proven again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypedDict

from . import versions
from .environment_files import RECEIPT, locked, nearest_directory, remove
from .system_packages import APT, files_of, installed_version

PROGRAMS = "/usr/bin/"


class Request(NamedTuple):
    """A launcher (also the name of its role), its directory, its package and what its programs' names end in."""

    launcher: str
    path: Path
    package: str
    suffix: str
    disk_mb: int

    @property
    def version(self) -> str:
        """The name of the version of the launcher that the links are: see versions.name_of()."""
        return versions.name_of(receipt_of(self), own=False)

    @property
    def place(self) -> Path:
        """The directory of that version."""
        return versions.store_of(self.path) / self.version


def programs(request: Request) -> dict[str, str]:
    """Return {name: path} of a package's programs, without the suffix that the distribution adds."""
    found = sorted(file for file in files_of(request.package) if file.startswith(PROGRAMS) and os.access(file, os.X_OK))
    return {plain_name(file[len(PROGRAMS) :], request.suffix): file for file in found}


def plain_name(name: str, suffix: str) -> str:
    """Return the name of a program without the suffix."""
    return name[: -len(suffix)] if suffix and name.endswith(suffix) else name


class Receipt(TypedDict):
    """What is written beside the links. `programs`: where each link goes, by its name."""

    package: str
    version: str
    programs: dict[str, str]


def receipt_of(request: Request) -> Receipt:
    """Return the receipt of the links."""
    version = installed_version(request.package)
    return {"package": request.package, "version": version, "programs": programs(request)}


def is_linked(request: Request) -> bool:
    """Whether the package is installed, all its programs are linked, and no others."""
    try:
        place = request.place
        receipt = json.loads((place / RECEIPT).read_text(encoding="utf-8"))
        links = {entry.name: os.readlink(str(entry)) for entry in (place / "bin").iterdir()}
    except (OSError, ValueError):
        return False
    wanted = receipt_of(request)
    return bool(receipt == wanted) and links == wanted["programs"]


def is_foreign(path: Path) -> bool:
    """Whether a path has content that torchfleet did not make, so that it must not be replaced."""
    ours = (path / "pyvenv.cfg").exists() or (path / RECEIPT).exists()
    return path.exists() and not ours and not (path.is_dir() and not any(path.iterdir()))


def refusals(request: Request) -> list[str]:
    """Return why the launcher cannot be linked, or its package not installed; nothing if it is linked already."""
    return [] if is_linked(request) else [f"{request.launcher}: {reason}" for reason in reasons(request)]


def reasons(request: Request) -> Iterator[str]:
    """Yield every reason why not."""
    near = nearest_directory(request.path)
    free_mb = shutil.disk_usage("/usr").free // 10**6
    if not os.path.exists(APT):
        yield (
            "packages are installed with apt, and this machine has no apt: "
            f"set {request.launcher}_install_method to wheel"
        )
    if request.path.is_symlink() and not versions.is_link_of_ours(request.path):
        yield f"{request.path} is a symbolic link: set torchfleet_home to a directory of its own"
    elif is_foreign(request.path):
        advice = "set torchfleet_home to another directory"
        yield f"{request.path} exists and is not from torchfleet, so it is left alone: {advice}"
    if not os.access(str(near), os.W_OK | os.X_OK):
        yield f"no permission to write in {near}: set torchfleet_home to another directory"
    if free_mb < request.disk_mb and not installed_version(request.package):
        yield f"{request.package} needs {request.disk_mb} MB in /usr, where {free_mb} MB are free: make room"


def difference(request: Request) -> list[dict[str, str]]:
    """Return what --diff shows of the links, before they are made."""
    place = request.place / "bin"
    there = {entry.name: os.readlink(str(entry)) for entry in place.iterdir()} if place.is_dir() else {}
    before, after = shown(there), shown(programs(request))
    return [{"before_header": str(place), "after_header": str(place), "before": before, "after": after}]


def shown(links: Mapping[str, str]) -> str:
    """Return links as lines."""
    return "".join(f"{name} -> {target}\n" for name, target in sorted(links.items()))


def link(request: Request) -> bool:
    """Make the version with links to the programs. Return whether anything changed. OSError, NotMadeError."""
    place, adopts = request.place, versions.is_old_style(request.path)
    versions.adopt(request.path, own=False, companion="")
    new = place.with_name(place.name + ".new")
    with locked(place):
        if is_linked(request):
            return adopts
        remove(new)
        write(new, receipt_of(request))
        remove(place)
        new.rename(place)
    return True


def write(path: Path, receipt: Receipt) -> None:
    """Make a directory with the links and the receipt."""
    (path / "bin").mkdir(parents=True)
    for name, target in receipt["programs"].items():
        (path / "bin" / name).symlink_to(target)
    (path / RECEIPT).write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
