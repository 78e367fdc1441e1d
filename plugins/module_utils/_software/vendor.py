# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Packages from a vendor's repository: which a node has, which are missing, and what prevents their installation.

Nothing here changes the node, and nothing needs root. apt.py and dnf.py install.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import Iterator, Mapping, TypedDict

from . import ledger
from .packages import exactly, installed, is_of, offered, read_system, text_of, upstream, was_interrupted
from .repositories import Repository, family_of, repository_for

APT = Path("/etc/apt")
REMOVES = {"deb": "apt purge", "rpm": "dnf remove"}
ELSEWHERE = "in the inventory (not with -e) give this machine accelerators: [], and the others theirs"
EPEL = "https://dl.fedoraproject.org/pub/epel/epel-release-latest-{release}.noarch.rpm"
VERSIONLOCK_PACKAGE = "python3-dnf-plugin-versionlock"


class Conflict(TypedDict, total=False):
    """A remainder of another installation: a package (of a branch that is ours), or a file."""

    package: str | None
    branch: str | None
    file: str | None
    says: str


class Request(TypedDict):
    """The options of module vendor_packages, which documents them."""

    role: str
    repositories: list[dict[str, object]]
    systems: list[str]
    machines: dict[str, str]
    packages: list[str]
    first: list[str]
    same_version: dict[str, str]
    hold: list[str]
    branch: str
    dnf_commands: dict[str, list[list[str]]]
    kernel_headers: bool
    kernel_modules_extra: bool
    builds_modules: bool
    secure_boot: bool
    modules_signed: bool
    conflicts: list[Conflict]
    disk_mb: int


class State(TypedDict):
    """The state of a node that a request depends on."""

    system: str  # as in Request.systems
    machine: str  # as in Request.machines
    family: str  # deb, rpm or nothing
    repositories: list[Repository]  # as they are on this system
    headers: list[str]  # packages of the running kernel that are not installed
    versions: dict[str, str]  # of the packages that are installed
    missing: list[str]  # packages, also one of another branch
    wrong_version: list[str]  # packages that must have the version of another one, with that version
    not_held: list[str]  # also one that only other roles of ours hold: it would be free when they are removed
    changes_branch: bool  # the first package is installed, in another branch
    is_ours: bool  # the first package is held, as we do
    stale: list[str]  # files of the repositories that are not as they should be
    interrupted: bool  # an installation of any package was


def look(request: Request) -> State:
    """Return the state of a node."""
    system, family = read_system()
    repositories = repositories_on(request, system, platform.machine())
    first = request["first"] if family == "deb" else []
    wanted = [*first, *request["packages"], *request["same_version"]]
    kernel = kernel_packages(request, family)
    present, held = installed(family, [*wanted, *request["same_version"].values(), *kernel])
    versions = {name: version for name, version in present.items() if name not in kernel}
    lead = request["packages"][:1]
    moving = [name for name in lead if not is_of(request["branch"], versions.get(name, request["branch"]))]
    state: State = {
        "system": system,
        "machine": platform.machine(),
        "family": family,
        "repositories": repositories,
        "headers": [name for name in kernel if name not in present],
        "versions": versions,
        "missing": [name for name in wanted if name not in versions or name in moving],
        "wrong_version": wrong_versions(request["same_version"], versions),
        "not_held": [name for name in request["hold"] if name in wanted and not is_held(request["role"], name, held)],
        "changes_branch": bool(moving),
        "is_ours": bool(held.intersection(lead)),
        "stale": stale_files(repositories),
        "interrupted": was_interrupted(),
    }
    return state


def is_held(role: str, package: str, held: set[str]) -> bool:
    """Whether a package is held, and not only by other roles of ours. PackageError."""
    return package in held and role in ledger.holds().get(package, {role})


def left_to_do(state: State) -> list[str]:
    """Return the packages and files that are not as they should be."""
    return [*state["headers"], *state["missing"], *state["wrong_version"], *state["not_held"], *state["stale"]]


def repositories_on(request: Request, system: str, machine: str) -> list[Repository]:
    """Return the repositories as they are on a system; none on one that there are no packages for."""
    if system not in request["systems"] or machine not in request["machines"]:
        return []
    theirs = request["machines"][machine]
    here = [each for each in request["repositories"] if (each.get("family") or family_of(system)) == family_of(system)]
    return [repository_for(entry, request["role"], system, theirs) for entry in here]


def kernel_packages(request: Request, family: str) -> list[str]:
    """Return the packages of the running kernel that are wanted: headers, and modules that Ubuntu packages apart."""
    headers = {"deb": "linux-headers-", "rpm": "kernel-devel-"}.get(family, "") + platform.release()
    more = f"linux-modules-extra-{platform.release()}"
    wanted = [headers] if request["kernel_headers"] and family else []
    is_apart = request["kernel_modules_extra"] and family == "deb" and offered([more])[more]
    return [*wanted, more] if is_apart else wanted


def wrong_versions(same_version: Mapping[str, str], versions: Mapping[str, str]) -> list[str]:
    """Return each package that must have the version of an installed one and has not, as apt calls it."""
    bare = {name: upstream(version) for name, version in versions.items()}
    pairs = [(name, bare[other]) for name, other in same_version.items() if other in bare]
    return [exactly(name, version) for name, version in pairs if bare.get(name) != version]


def stale_files(repositories: list[Repository]) -> list[str]:
    """Return the files of repositories that are not as they should be, and the keyrings that are missing."""
    files = {path: text for repository in repositories for path, text in repository["files"].items()}
    keyrings = [repository["keyring"] for repository in repositories]
    return [path for path, text in files.items() if text_of(path) != text] + [
        path for path in keyrings if not Path(path).is_file()
    ]


# --- refusals -------------------------------------------------------------------------------------------------------


def refusals(request: Request, state: State) -> list[str]:
    """Return why the packages cannot be installed, as lines for the user; none if they are installed already."""
    if not left_to_do(state):
        return []
    system, machine = state["system"], state["machine"]
    if system not in request["systems"] or machine not in request["machines"]:
        allowed = f"{', '.join(request['systems'])} on {' and '.join(request['machines'])}"
        lines = [f"got {system} on {machine}; there are packages for {allowed}: {ELSEWHERE}"]
    else:
        lines = [*general(request, state), *conflicts(request, state), *dnf_refusals(request, state)]
    return [f"{request['role']}: {line}" for line in lines]


def general(request: Request, state: State) -> Iterator[str]:
    """Yield what is wrong on any system."""
    role, repositories = request["role"], state["repositories"]
    for name in unusable(repositories)[:1]:
        yield f"there is no repository {name} for {state['system']}: {ELSEWHERE}"
    for file in same_repository(repositories)[:1] if state["family"] == "deb" else []:
        yield f"{file} names the same repository with another key: remove that file, or the package it came with"
    if request["builds_modules"] and request["secure_boot"] and not request["modules_signed"]:
        yield (
            "Secure Boot is on, and the kernel would not load the modules that are built here: enroll a key for them "
            f"(mokutil --import) and set {role}_secure_boot_signed=true, or switch Secure Boot off in the firmware"
        )
    free_mb = shutil.disk_usage("/usr").free // 10**6
    if free_mb < request["disk_mb"]:
        yield f"the packages need {request['disk_mb']} MB in /usr, where {free_mb} MB are free: make room"


def unusable(repositories: list[Repository]) -> list[str]:
    """Return the names of repositories that have no address or no key on this system."""
    return [each["name"] for each in repositories if not (each["address"] and each["suite"] and each["fingerprints"])]


def same_repository(repositories: list[Repository]) -> list[str]:
    """Return the files of apt, not ours, that name one of the repositories: apt refuses two keys for one."""
    ours = {file for repository in repositories for file in repository["files"]}
    addresses = {repository["address"].rstrip("/") for repository in repositories}
    others = [path for path in sorted((APT / "sources.list.d").glob("*")) if str(path) not in ours]
    return [str(path) for path in [APT / "sources.list", *others] if addresses & named_in(text_of(str(path)))]


def named_in(text: str) -> set[str]:
    """Return the words of a file of apt, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return {word.rstrip("/") for line in lines for word in line.split()}


def conflicts(request: Request, state: State) -> Iterator[str]:
    """Yield a line for each remainder of another installation. Ours may be of another branch."""
    family = state["family"]
    for conflict in request["conflicts"]:
        pattern, branch, file = conflict.get("package") or "", conflict.get("branch") or "", conflict.get("file") or ""
        present = installed(family, [pattern])[0] if pattern else {}
        others = {name: version for name, version in present.items() if name not in request["first"]}
        seen = [
            f"{name} {version}"
            for name, version in others.items()
            if not branch or not (state["is_ours"] or is_of(branch, version))
        ]
        seen = seen[:1] + ([file] if file and Path(file).exists() else [])
        yield from (conflict["says"].format(seen=each, remove=REMOVES.get(family, "")) for each in seen)


def dnf_refusals(request: Request, state: State) -> Iterator[str]:
    """Yield what dnf needs and does not install by itself: without it dnf fails half-way, with the driver installed."""
    if state["family"] != "rpm":
        return
    present: dict[str, str] = installed("rpm", [VERSIONLOCK_PACKAGE, "dkms", "epel-release"])[0]
    if request["hold"] and VERSIONLOCK_PACKAGE not in present:
        yield (
            f"versions are held by dnf's plugin versionlock, which is not installed: dnf install {VERSIONLOCK_PACKAGE}"
        )
    brought = [name for repository in state["repositories"] for name in repository["only"]]
    if request["builds_modules"] and not {"dkms", "epel-release"} & {*present, *brought}:
        epel = EPEL.format(release=state["system"][len("rhel") :])
        yield (
            "dkms, which builds the kernel modules, is in EPEL, which is not enabled: "
            f"-e {request['role']}_epel=true takes dkms alone from it; or: dnf install {epel}"
        )
    if state["changes_branch"]:
        name = request["packages"][0]
        yield (
            f"{name} {state['versions'][name]} is installed, and another branch cannot replace it on this system: "
            "dnf remove '*nvidia*'; dnf module reset nvidia-driver; dnf versionlock clear; then run this again"
        )


# --- what is shown --------------------------------------------------------------------------------------------------


def snapshot(request: Request, state: State) -> dict[str, str]:
    """Return what --diff compares: the packages with their versions, and the files of repositories, by path."""
    held = set(request["hold"]) - set(state["not_held"])
    lines = [f"{name} {version}{', held' * (name in held)}\n" for name, version in sorted(state["versions"].items())]
    paths = [path for repository in state["repositories"] for path in repository["files"]]
    return {"packages": "".join(lines), **{path: text_of(path) for path in paths}}


def planned(request: Request, state: State) -> dict[str, str]:
    """Return the same as it would be after the installation. Which versions come is not known before."""
    left = [*state["headers"], *state["missing"], *state["wrong_version"]]
    kept = {name: version for name, version in state["versions"].items() if name not in left}
    held = [f"{name} {version}{', held' * (name in request['hold'])}\n" for name, version in kept.items()]
    coming = [f"{name}, to be installed{', held' * (name in request['hold'])}\n" for name in left]
    files = {path: text for repository in state["repositories"] for path, text in repository["files"].items()}
    return {"packages": "".join(sorted([*held, *coming])), **files}


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what --diff shows of two snapshots."""
    return [
        {"before_header": name, "after_header": name, "before": before[name], "after": text}
        for name, text in after.items()
        if text != before[name]
    ]
