# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files that the controller copies to a machine that makes an environment: wheels, sources, and pip if missing.

They are packed into one file. pip on the machine selects the wheels to install; wheels that cannot fit are left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment_files import lock_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.interpreter import bundled_pip

from .package_locks import PIN, PackageLock, canonical, name_of, no_lock
from .wheel_download import Download, NotFoundError, download

SHELF = Path(".torchfleet", "sources")  # where the controller keeps what it fetched, below the user's home


class NotBroughtError(Exception):
    """A file that a machine needs is not available. The text is one line; the caller adds the role."""


@dataclass(frozen=True)
class Machine:
    """The properties of a machine that decide which wheels fit."""

    python: str  # major and minor
    libc: str
    machine: str  # x86_64
    needs_pip: bool = False

    @property
    def label(self) -> str:
        """The machine in words."""
        return f"Python {self.python} on {self.machine}"


@dataclass(frozen=True)
class Order:
    """The files that one machine needs."""

    role: str
    machine: Machine
    into: Path  # a directory for the packed file, private to the user
    packages: Sequence[str] = ()
    wheelhouse: str = ""
    fill: bool = False  # whether what is missing is downloaded
    index_url: str = ""
    locked: PackageLock = field(default_factory=no_lock)
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by directory, the digest of each file
    programs: Sequence[Mapping[str, str]] = ()
    kept: Sequence[str] = ()  # what the machine has, and will not be brought
    torch_packages: Sequence[str] = ()  # of `packages`, those that come from torch_index_url
    torch_index_url: str = ""

    @property
    def shelf(self) -> Path:
        """The directory of the tarballs of programs."""
        return Path(self.wheelhouse) if self.wheelhouse else Path.home() / SHELF

    @property
    def is_empty(self) -> bool:
        """Whether the machine needs nothing of the controller."""
        return not (self.wheelhouse or self.sources or self.programs or self.machine.needs_pip)


@contextlib.contextmanager
def one_at_a_time(order: Order) -> Iterator[None]:
    """Hold the lock of what is fetched and packed: machines of a kind share what the first one fetches and packs."""
    order.into.mkdir(mode=0o700, exist_ok=True)
    with lock_file(order.into / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetched(order: Order) -> list[Path]:
    """Return the files of the programs, fetched unless they are there. NotBroughtError for what cannot be had."""
    with one_at_a_time(order):
        for program in order.programs:
            fetch(order, program)
    return [order.shelf / program["file"] for program in order.programs]


def pack(order: Order) -> Path:
    """Return a tar file with the files that a machine needs. Raise NotBroughtError if one is not available."""
    try:
        with one_at_a_time(order):
            return packed(order, collect(order))
    except NotFoundError as error:
        raise NotBroughtError(unfound(order, error)) from None
    except (OSError, zipfile.BadZipFile) as error:
        raise NotBroughtError(f"{order.wheelhouse or order.into}: {error}") from None


def unfound(order: Order, error: NotFoundError) -> str:
    """Return the error for missing wheels."""
    kind, role = order.machine.label, order.role
    if order.fill:
        return f"no wheels for {kind} could be downloaded to {order.wheelhouse}: {error}"
    return f"{order.wheelhouse} has no wheel of {error} for {kind}: download it with -e {role}_wheelhouse_fill=true"


def collect(order: Order) -> dict[str, Path]:
    """Return the files that a machine needs, by their names in the tar file. Missing ones are fetched."""
    if order.fill and order.wheelhouse and order.packages:
        fill(order)
    for program in order.programs:
        fetch(order, program)
    wheels = choose(order) if order.wheelhouse else []
    wheels += [own_pip(order.into)] if order.machine.needs_pip else []
    files = {path.name: path for path in wheels}
    files |= {str(program["file"]): order.shelf / program["file"] for program in order.programs}
    for directory, listed in order.sources.items():
        files |= {f"{Path(directory).name}/{file}": Path(directory, file) for file in listed}
    return files


# --- wheels -----------------------------------------------------------------------------------------------------------


def fits(tags: str, machine: Machine) -> bool:
    """Whether a wheel with these tags (cp311-cp311-manylinux_2_28_x86_64) may fit the machine."""
    pythons, abis, platforms = (tag.split(".") for tag in tags.split("-"))
    major, minor = machine.python.split(".")
    mine = {f"py{major}", f"py{major}{minor}", f"cp{major}{minor}"}
    stable = "abi3" in abis and any(re.match(r"cp3\d+$", tag) and int(tag[3:]) <= int(minor) for tag in pythons)
    linux = [tag for tag in platforms if "linux" in tag and tag.endswith("_" + machine.machine)]
    return bool((mine & set(pythons) or stable) and (linux or "any" in platforms))


def wheels_by_name(order: Order) -> dict[str, list[Path]]:
    """Return {distribution: its wheels} of those in the wheelhouse that can be of use on the machine."""
    found: dict[str, list[Path]] = {}
    for path in sorted(Path(order.wheelhouse).glob("*.whl")):
        parts = path.stem.split("-")
        if len(parts) in (5, 6) and fits("-".join(parts[-3:]), order.machine):
            found.setdefault(canonical(parts[0]), []).append(path)
    return found


def version_of(wheel: Path) -> str:
    """Return the version of a wheel without the suffix of its build (+cpu, +cu126)."""
    return wheel.name.split("-")[1].partition("+")[0]


def is_version(wheel: Path, package: str) -> bool:
    """Whether a wheel has the requested version, in any build."""
    pin = PIN.match(package.strip())
    return pin is None or pin[2] in (wheel.name.split("-")[1], version_of(wheel))


def by_lock(name: str, wheels: Sequence[Path], order: Order) -> list[Path]:
    """Return those of a distribution's wheels that the lock has. NotFoundError if there are wheels, but not these."""
    lines = [line.split()[0].partition("==") for line in order.locked.get("lines", [])]
    versions = [version for locked, _separator, version in lines if locked == name]
    fitting = [path for path in wheels if not versions or version_of(path) in versions]
    if wheels and not fitting:
        raise NotFoundError(" or ".join(f"{name}=={version}" for version in versions))
    return fitting


def required_by(wheel: Path) -> set[str]:
    """Return the names of all distributions that a wheel may require. pip evaluates the conditions on the machine."""
    with zipfile.ZipFile(wheel) as content:
        metadata = next(name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        lines = content.read(metadata).decode("utf-8", "replace").splitlines()
    wanted = [line.partition(":")[2] for line in lines if line.startswith("Requires-Dist:")]
    return {name_of(line) for line in wanted if "extra ==" not in line}


def choose(order: Order) -> list[Path]:
    """Return the wheels that the machine needs. Raise NotFoundError if a requested one is missing."""
    there, chosen = wheels_by_name(order), {}
    for package in order.packages:
        name = name_of(package)
        chosen[name] = [path for path in there.get(name, []) if is_version(path, package)]
        if not chosen[name]:
            raise NotFoundError(package)
    known = {*chosen, *map(name_of, order.kept)}
    waiting = [path for wheels in chosen.values() for path in wheels]
    while waiting:
        for name in required_by(waiting.pop()) - known:
            known.add(name)
            chosen[name] = by_lock(name, there.get(name, []), order)
            waiting += chosen[name]
    return sorted(path for wheels in chosen.values() for path in wheels)


def fill(order: Order) -> None:
    """Download the machine's wheels that are missing in the wheelhouse."""

    def has_own_build() -> bool:
        package = order.packages[0]
        wheels = wheels_by_name(order).get(name_of(package), [])
        return any("+" in path.name for path in wheels if is_version(path, package))

    machine = order.machine
    source = (order.packages, order.wheelhouse, order.index_url, order.locked, order.into)
    wanted = Download(*source, torch_packages=order.torch_packages, torch_index_url=order.torch_index_url)
    download(wanted, machine.python, machine.libc, machine.machine, has_own_build)


def own_pip(into: Path) -> Path:
    """Return a wheel of pip: the one that this interpreter brings, or one made of the pip that it has.

    NotBroughtError where it has neither.
    """
    found = importlib.util.find_spec("ensurepip")
    for wheel in bundled_pip(str(Path(found.origin).parent) if found and found.origin else ""):
        return wheel
    try:
        pip = importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError:
        raise NotBroughtError("the machine has no pip, and neither has this one's " + sys.executable) from None
    wheel = into / f"pip-{pip.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as content:
        for file in pip.files or ():
            if file.parts[0].startswith("pip") and file.suffix != ".pyc" and ".." not in file.parts:
                content.write(str(file.locate()), str(file))
    return wheel


# --- sources of programs ----------------------------------------------------------------------------------------------


def digest_of(path: Path) -> str:
    """Return the sha256 of a file, or an empty string where it is not there."""
    if not path.is_file():
        return ""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch(order: Order, program: Mapping[str, str]) -> None:
    """Fetch the tarball of a program, unless it is there. NotBroughtError if it is not what it should be."""
    shelf, url = order.shelf, program["url"]
    path, unfinished = shelf / program["file"], shelf / f"{program['file']}.{os.getpid()}"
    if digest_of(path) == program["sha256"]:
        return
    if order.wheelhouse and not order.fill:
        hint = f"download it with -e {order.role}_wheelhouse_fill=true"
        raise NotBroughtError(f"{shelf} has no {path.name} with the checksum of versions.yml: {hint}")
    shelf.mkdir(parents=True, exist_ok=True)
    from ansible.module_utils.urls import open_url  # takes 0.1 s, for which every job would wait

    try:
        with open_url(url, timeout=60) as answer, unfinished.open("wb") as stream:
            shutil.copyfileobj(answer, stream)
        found = digest_of(unfinished)
        if found != program["sha256"]:
            hint = "if that is right, change it in versions.yml"
            raise NotBroughtError(f"{url} should have the checksum {program['sha256']}, but has {found}: {hint}")
        unfinished.replace(path)
    except (OSError, ValueError, HTTPException) as error:  # the disk, the network, the address, the answer
        hint = f"copy it to {shelf} as {path.name}"
        raise NotBroughtError(f"{url} could not be fetched ({error}): {hint}") from None
    finally:
        unfinished.unlink(missing_ok=True)


# --- the packed file --------------------------------------------------------------------------------------------------


def identity(name: str, path: Path) -> str:
    """Return a line that identifies a file without reading it, because wheels are large."""
    status = path.stat()
    return f"{name} {path} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def private(path: Path, content: Iterable[tuple[str, Path]]) -> None:
    """Write files into a tar file that nobody else can read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as stream, tarfile.open(fileobj=stream, mode="w") as file:
        for name, source in content:
            file.add(source, arcname=name)


def packed(order: Order, files: Mapping[str, Path]) -> Path:
    """Return the path of a tar file with these files, which is made unless it is there."""
    lines = sorted(identity(name, path) for name, path in files.items())
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    there = order.into / f"{digest}.tar"
    if not there.exists():
        unfinished = there.with_suffix(".new")
        private(unfinished, files.items())
        unfinished.replace(there)
    return there
