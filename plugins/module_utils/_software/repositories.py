# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A vendor's repository on one system: its address, its key, and the files that root writes for it. Pure."""

from __future__ import annotations

from typing import Mapping, TypedDict

from .packages import PackageError

SOURCES, PREFERENCES, KEYRINGS = "/etc/apt/sources.list.d", "/etc/apt/preferences.d", "/etc/apt/keyrings"
RPM_REPOSITORIES, RPM_KEYS = "/etc/yum.repos.d", "/etc/pki/rpm-gpg"


class Repository(TypedDict):
    """One repository. `only`: packages, if it has others too. `keyring`: where its keys lie. `files`: texts by path."""

    name: str
    address: str
    suite: str
    components: str
    pin: str
    only: list[str]
    key: str
    fingerprints: list[str]
    keyring: str
    files: dict[str, str]


def repository_for(entry: Mapping[str, object], role: str, system: str, machine: str) -> Repository:
    """Return a repository, `entry` in versions.yml, on a system. `machine`: what the vendor calls the architecture."""
    names = {"system": system, "machine": machine, "version": str(entry.get("version") or "")}
    texts = {part: filled(entry, part, system, names) for part in ("address", "suite", "components", "pin")}
    found, only = pick(entry["keys"], system), entry.get("only")
    key: Mapping[str, str] = found if isinstance(found, Mapping) else {}
    names["address"] = texts["address"].rstrip("/")
    repository: Repository = {
        "name": str(entry["name"]),
        "address": texts["address"],
        "suite": texts["suite"],
        "components": texts["components"],
        "pin": texts["pin"],
        "only": [str(package) for package in only] if isinstance(only, list) else [],
        "key": key.get("url", "").format(**names),
        "fingerprints": key.get("fingerprint", "").split(),
        "keyring": f"{KEYRINGS}/{entry['name']}.gpg",
        "files": {},
    }
    if family_of(system) == "rpm":
        repository["keyring"] = f"{RPM_KEYS}/{entry['name']}"
        repository["files"][f"{RPM_REPOSITORIES}/{entry['name']}.repo"] = dnf_file(repository, role)
        return repository
    repository["files"][f"{SOURCES}/{entry['name']}.sources"] = apt_file(repository, role)
    if repository["pin"]:
        repository["files"][f"{PREFERENCES}/{entry['name']}"] = repository["pin"].strip() + "\n"
    return repository


def filled(entry: Mapping[str, object], part: str, system: str, names: Mapping[str, str]) -> str:
    """Return a part of an entry with its placeholders filled in. Raise PackageError for an unknown placeholder."""
    try:
        return str(pick(entry.get(part), system) or "").format(**names)
    except (KeyError, ValueError, IndexError) as error:
        known = ", ".join(f"{{{name}}}" for name in names)
        raise PackageError(f"{part} of repository {entry['name']}: {error} is unknown; use {known}") from None


def family_of(system: str) -> str:
    """Return what a system's packages are."""
    return "rpm" if system.startswith("rhel") else "deb"


def pick(entry: object, system: str) -> object:
    """Return the value for a system, else for its family, else for `any`. None if there is none."""
    if not isinstance(entry, Mapping):
        return entry
    return entry.get(system, entry.get(family_of(system), entry.get("any")))


def head(repository: Repository, role: str) -> str:
    """Return the first line of a file. Another key makes another text, and so is fetched."""
    return f"# torchfleet.cluster.{role}, key {' '.join(repository['fingerprints'])}"


def apt_file(repository: Repository, role: str) -> str:
    """Return the text of a .sources file."""
    lines = [head(repository, role), "Types: deb", f"URIs: {repository['address']}", f"Suites: {repository['suite']}"]
    lines += [f"Components: {repository['components']}"] if repository["components"] else []
    return "\n".join([*lines, f"Signed-By: {repository['keyring']}", ""])


def dnf_file(repository: Repository, role: str) -> str:
    """Return the text of a .repo file. A repository that cannot be read is an error, whatever is dnf's default."""
    lines = [head(repository, role), f"[{repository['name']}]", f"name=torchfleet.cluster.{role}"]
    lines += [f"baseurl={repository['address']}", "gpgcheck=1", f"gpgkey=file://{repository['keyring']}"]
    lines += [f"includepkgs={','.join(repository['only'])}"] if repository["only"] else []
    return "\n".join([*lines, "skip_if_unavailable=0", ""])
