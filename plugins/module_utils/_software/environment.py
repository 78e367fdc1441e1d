# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A requested Python environment: whether the machine has it, and whether it can be made there.

A finished environment has a receipt: what it was made from and what it contains. The receipt is written last, so an
interrupted installation has none.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Dict, Iterator, Mapping, Sequence, TypedDict

from . import versions
from .environment_files import RECEIPT, free_mb, nearest_directory
from .interpreter import NOTHING, Interpreter, bundled_pip, is_supported, packages_of

PROOF = "torchfleet-proof.txt"  # says that it works on this machine, so it is never sent to another
# The fields of a request that decide the content of the environment.
SOURCE = (
    *("packages", "index_url", "wheelhouse", "sources", "programs"),
    *("build_environment", "linked_environment", "lock", "kept"),
)
OLD_KEYS: Mapping[str, str] = {"linked_environment": "beside"}  # of receipts that version 0.4.0 wrote
LOOKED_AT = 50  # files of each package that are checked
Receipt = Dict[str, object]


class ProgramLate(TypedDict, total=False):
    version: str


class Program(ProgramLate):
    """A program that is built from its tarball."""

    name: str
    url: str
    sha256: str
    file: str
    configure: list[str]


@dataclass(frozen=True)
class Lock:
    """The versions and checksums of a lock file: see lock_of() in plugin_utils/_software/package_locks."""

    lines: list[str] = field(default_factory=list)  # each a version of a package, and its checksums
    of_the_build: list[str] = field(
        default_factory=list
    )  # packages that only the index's own build of the first package needs
    more: list[str] = field(default_factory=list)  # packages that are not in the lock


@dataclass(frozen=True)
class Request:
    """A requested environment: the options of module python_environment, as the controller passes them on."""

    role: str
    setting: str
    path: str
    python: str
    interpreter: Interpreter  # facts about `python`
    packages: list[str] = field(default_factory=list)
    python_min: str = "3.8"
    python_max: str = ""
    disk_mb: int = 0
    index_url: str = ""
    one_index: bool = False  # index_url is for all packages
    torch_packages: list[str] = field(
        default_factory=list
    )  # those of `packages` that are compiled for a build of torch
    torch_index_url: str = ""  # where those are
    preferred_index: str = ""  # for a build of the first package's own, if it can be reached
    wheelhouse: str = ""  # on the controller
    sources: dict[str, dict[str, str]] = field(default_factory=dict)  # by name, the sha256 of each file
    programs: list[Program] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    build_environment: dict[str, str] = field(default_factory=dict)
    linked_environment: str = ""  # a directory; its packages can be imported too
    kept: list[str] = field(default_factory=list)  # packages of it that are not exchanged, as name==version
    lock: str = ""  # its digest
    locked: Lock = field(default_factory=Lock)
    mesh: str = ""  # the configuration of ssh
    brought: str = ""  # a tar file from the controller
    versions: str = ""  # own or common, where the path is a link to one of several versions: see versions.name_of()

    @property
    def place(self) -> Path:
        """Where the environment is made. What is used at `path` is a link to it, or to what lies in the same way."""
        path = Path(self.path)
        if self.versions:
            return versions.store_of(path) / self.version
        return Path(os.path.realpath(self.linked_environment), path.name) if self.lies_within else path

    @property
    def version(self) -> str:
        """The name of its version; empty for an environment that has none."""
        return versions.name_of(self.made_from, self.versions == "own") if self.versions else ""

    @property
    def lies_within(self) -> bool:
        """Whether it lies in the version of the linked environment that is in use: it is made for that one."""
        linked, path = Path(self.linked_environment), Path(self.path)
        beside = bool(self.linked_environment) and linked.parent == path.parent
        return beside and not self.versions and versions.is_link_of_ours(linked)

    @property
    def companion(self) -> str:
        """The name of an environment that is made for a version of this one, and lies in that."""
        linked = Path(self.linked_environment)
        beside = bool(self.linked_environment) and linked.parent == Path(self.path).parent
        return linked.name if self.versions and beside else ""

    @property
    def linked(self) -> str:
        """The directory of the linked environment."""
        return str(self.place / self.companion) if self.companion else self.linked_environment

    @property
    def installs(self) -> bool:
        """Whether pip has to install anything."""
        return bool(self.packages or self.sources)

    @property
    def needs_pip_brought(self) -> bool:
        """Whether the controller has to copy pip: on Debian, ensurepip is in a package of its own."""
        other = self.linked
        linked = bool(other) and Path(other, self.interpreter.packages, "pip").is_dir()
        here = self.interpreter.ensurepip or bundled_pip(self.interpreter.ensurepip)
        return self.installs and not (linked or here)

    @property
    def made_from(self) -> Receipt:
        """The part of the receipt that is known before. Addresses of tarballs are left out: they have checksums."""
        programs = [{key: value for key, value in program.items() if key != "url"} for program in self.programs]
        source = {name: getattr(self, name) for name in SOURCE}
        index = without_password(self.index_url)
        return {**source, "index_url": index, "programs": programs, "python": self.interpreter.version}


# --- what is there ----------------------------------------------------------------------------------------------------


def without_password(url: str) -> str:
    """Return an address without user and password: all users can read a receipt, and a new password changes nothing."""
    scheme, slashes, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"


def canonical(name: str) -> str:
    """Return the normalized name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(path: Path, version: str) -> dict[str, str]:
    """Return {distribution: version} of an environment, read from its file names; nothing of it is run."""
    found = (path / packages_of(version)).glob("*-*.dist-info")
    pairs = [entry.stem.split("-", 1) for entry in found]
    return {canonical(name): release for name, release in sorted(pairs)}


def has_pins(there: Mapping[str, str], packages: Sequence[str]) -> bool:
    """Whether every exactly pinned package is there in that version, whatever its build (+cpu, +cu126)."""
    pins = [re.match(r"([\w.-]+)(?:\[.*\])?==([^\s;,*]+)$", package) for package in packages]
    wanted = [(canonical(pin.group(1)), pin.group(2)) for pin in pins if pin]
    return all(version in (there.get(name), there.get(name, "").split("+")[0]) for name, version in wanted)


def is_whole(path: Path, version: str) -> bool:
    """Whether the files of the packages exist. Some of each are checked, because all of PyTorch's take seconds.

    systemd removes old files in /tmp and /var/tmp one by one, and may leave the metadata of all packages.
    """
    packages = path / packages_of(version)
    for record in packages.glob("*.dist-info/RECORD"):
        names = [line.split(",")[0] for line in record.read_text(encoding="utf-8", errors="replace").splitlines()]
        plain = [name for name in names if not name.startswith('"') and not name.endswith((".pyc", ".la"))]
        if not all(os.path.exists(str(packages / name)) for name in plain[:: len(plain) // LOOKED_AT + 1]):
            return False
    return True


def read_receipt(path: Path) -> Receipt | None:
    """Return the receipt of an environment, or None."""
    try:
        receipt = json.loads((path / RECEIPT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return receipt if isinstance(receipt, dict) else None


def write_receipt(path: Path, receipt: Receipt) -> None:
    """Write the receipt of an environment."""
    unfinished = path / (RECEIPT + ".new")
    unfinished.write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path / RECEIPT)


def make_receipt(request: Request, digests: Mapping[str, str], unlocked: set[str]) -> Receipt:
    """Return the receipt of an installation. `digests`: the sha256 of each installed wheel, by package. `unlocked`: the
    packages that were installed without a lock.
    """
    there = installed(request.place, request.interpreter.version)
    return {**request.made_from, "installed": there, "digests": dict(digests), "unlocked": sorted(unlocked)}


def is_made_from(receipt: Receipt, wanted: Receipt) -> bool:
    """Whether a receipt is of this request. A key that an older receipt does not have counts as empty."""
    found = {**{new: receipt.get(old) for new, old in OLD_KEYS.items()}, **receipt}
    return all((found.get(key) or None) == (value or None) for key, value in wanted.items())


def is_ready(request: Request) -> bool:
    """Whether the requested environment is there and complete."""
    path, version = request.place, request.interpreter.version
    receipt = read_receipt(path) if os.access(str(path / "bin" / "python"), os.X_OK) else None
    same = receipt is not None and is_made_from(receipt, request.made_from)
    return same and has_pins(installed(path, version), request.packages) and is_whole(path, version)


def os_release() -> list[str]:
    """Return the lines of /etc/os-release."""
    try:
        return Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def kind_of_machine(request: Request) -> str:
    """Return a digest that is equal on machines that can share an environment, or "" if this one cannot.

    An environment contains programs for one distribution, links to its interpreter, and its own path.
    """
    system = [line for line in os_release() if line.startswith(("ID=", "VERSION_ID="))]
    if not system or not shutil.which("tar") or request.interpreter.version == NOTHING:
        return ""
    where = [system, platform.machine(), request.interpreter.real, request.path, str(request.place), request.mesh]
    return hashlib.sha256(json.dumps([*where, request.made_from]).encode()).hexdigest()[:16]


# --- why not to start -------------------------------------------------------------------------------------------------


def is_foreign(path: Path) -> bool:
    """Whether a path has content that torchfleet did not make, so that it must not be removed."""
    if not os.path.isdir(path):
        return os.path.exists(path)
    ours = (path / "pyvenv.cfg").exists() or (path / RECEIPT).exists()
    return not ours and any(entry.is_file() for entry in path.rglob("*"))


def has_tool(tool: str, include: str) -> bool:
    """Whether a program is on the search path, or a header (Python.h) in the interpreter's include directory."""
    if tool.endswith(".h"):
        return os.path.exists(os.path.join(include, tool))
    return shutil.which(tool) is not None


def job_in_the_way(request: Request) -> str:
    """Return why the environment is not exchanged while a job runs here: what is exchanged would fail in it."""
    exchanged = bool(request.versions) and is_exchanged(Path(request.path), request.version)
    if not (exchanged or is_made_anew(request)):
        return ""
    # Here, for the machine that an environment is sent to has this file without the runtime, and never makes one anew.
    from .running_jobs import running_job, wait_for_end

    home = Path(os.path.expanduser(request.mesh)).parent.parent
    job = running_job(str(home)) if request.mesh else ""
    return wait_for_end(job, f"{request.path}, which it may use, would be replaced") if job else ""


def is_made_anew(request: Request) -> bool:
    """Whether the environment would be made in the place of one that is there."""
    return request.place.is_dir() and not is_ready(request)


def is_exchanged(path: Path, version: str) -> bool:
    """Whether something is used at a path, and it is not this version."""
    return versions.is_old_style(path) or versions.in_use(path) not in ("", version)


def is_strange_link(request: Request) -> bool:
    """Whether the path is a link, and none of ours."""
    path = Path(request.path)
    ours = versions.is_link_of_ours(path) if request.versions else request.lies_within
    return path.is_symlink() and not ours


def flaws(request: Request) -> Iterator[tuple[bool, str]]:
    """Yield for each rule whether it is broken, and the message for that."""
    path, near = Path(request.path), nearest_directory(request.place)
    interpreter, version = request.interpreter, request.interpreter.version
    python = f"Python {version} at {request.python}"
    first = [*request.packages, *[program["name"] for program in request.programs], "the environment"][0]
    supported = f"{request.python_min} to {request.python_max or 'newer'}"
    elsewhere = f"set {request.role}_python to another interpreter"
    job = job_in_the_way(request)
    yield bool(job), job
    yield not path.is_absolute(), f"{request.setting} must be an absolute path, not {path}"
    yield is_strange_link(request), f"{path} is a symbolic link: set {request.setting} to where it leads"
    yield (
        not is_supported(version, request.python_min, request.python_max),
        f"{python} is not supported by {first} ({supported} is): {elsewhere}",
    )
    yield not interpreter.has_venv, f"{python} has no module venv, which makes environments: {elsewhere}"
    yield (
        is_foreign(path) or is_foreign(request.place),
        f"{path} exists and is no Python environment, so it is left alone: set {request.setting} to another directory",
    )
    yield (
        not os.access(str(near), os.W_OK | os.X_OK),
        f"no permission to write in {near}: set {request.setting} to another directory",
    )
    yield (
        free_mb(near) < request.disk_mb and not is_ready(as_it_lies(request)),
        f"{first} needs {request.disk_mb} MB in {near}, where {free_mb(near)} MB are free: "
        f"set {request.setting} to another disk",
    )


def refusals(request: Request) -> list[str]:
    """Return why the environment cannot be made, as lines for the user."""
    if request.interpreter.version == NOTHING:
        said = [f"{request.python} is no Python 3 interpreter: set {request.role}_python to one"]
    else:
        said = [text for is_broken, text in flaws(request) if is_broken]
    return [f"{request.role}: {text}" for text in said]


def as_it_lies(request: Request) -> Request:
    """Return the request for an environment that an earlier release made, if it is this one: it becomes a version."""
    plain = replace(request, versions="")
    is_it = bool(request.versions) and versions.is_old_style(Path(request.path)) and is_ready(plain)
    return plain if is_it else request


def lacks_link(request: Request) -> bool:
    """Whether the environment lies in another one, and its path does not lead there."""
    return request.lies_within and os.path.realpath(request.path) != os.path.realpath(str(request.place))


def link(request: Request) -> bool:
    """Have the path of an environment that lies in another one lead there. Return whether it led elsewhere. OSError."""
    if not lacks_link(request):
        return False
    versions.lead_within(Path(request.path), Path(request.linked_environment).name)
    return True


def look(request: Request) -> dict[str, object]:
    """Return the state of the environment without a change. plugin_utils/_software/answers.py declares the fields."""
    path, here = Path(request.path), as_it_lies(request)
    ready = is_ready(here)
    return {
        "refusals": refusals(request),
        "ready": ready,
        "receipt": read_receipt(here.place) if ready else None,
        "proven": (here.place / PROOF).exists() and not lacks_link(request),
        "kind": kind_of_machine(request),
        "place": str(request.place),
        "version": request.version,
        "used": versions.in_use(path) if request.versions else "",
        "adopts": bool(request.versions) and versions.is_old_style(path),
        "os": "".join(line[3:].strip('"') for line in os_release() if line.startswith("ID=")),
        "mesh": os.path.exists(os.path.expanduser(request.mesh)),
        "python": request.interpreter.version,
        "libc": platform.libc_ver()[1],
        "machine": platform.machine(),
        "missing_tools": [tool for tool in request.tools if not has_tool(tool, request.interpreter.include)],
        "needs_pip": request.needs_pip_brought,
    }
