# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lockfile: versions.yml of this collection, and what a file of the user's own says instead."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

Lock = dict[str, object]


def read_lock(shipped: str, own: str = "") -> Lock:
    """Return the lockfile at `shipped`, with what the file `own` (may be empty) says in place of it.

    InputError if `own` is no such file, or has a name that the shipped one has not.
    """
    lock = parse(shipped)
    return merge(lock, parse(own), own) if own else lock


def parse(path: str) -> Lock:
    """Return what a lockfile says; scalars are text, so that no version becomes a number."""
    try:
        read = yaml.load(Path(path).expanduser().read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (OSError, yaml.YAMLError) as error:
        wrong = " ".join(str(error).split())
        raise InputError("torchfleet_versions", path, f"give a YAML file that can be read: {wrong}") from None
    if not isinstance(read, dict):
        raise InputError("torchfleet_versions", path, "give a file like versions.yml: openmpi: {version: 5.0.10}")
    return read


def merge(lock: Lock, own: Lock, path: str) -> Lock:
    """Return `lock` with what `own` says, part by part."""
    unknown = sorted(own.keys() - lock.keys())
    if unknown:
        allowed = f"{path} may have {', '.join(sorted(lock))}"
        raise InputError("torchfleet_versions", ", ".join(unknown), allowed)
    return {**lock, **{key: over(lock[key], value) for key, value in own.items()}}


def over(under: object, upper: object) -> object:
    """Return `upper`, laid over `under` where both are mappings."""
    if isinstance(under, dict) and isinstance(upper, dict):
        return {**under, **{key: over(under.get(key), value) for key, value in upper.items()}}
    return upper


def entry(lock: Lock, name: str, version: str = "") -> object:
    """Return an entry, its parts separated by dots. InputError where there is none.

    A source is returned ready to fetch, of `version` or else of the lockfile's: url, sha256, version and file.
    """
    found: object = lock
    owner: dict[str, object] = {}
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            there = ", ".join(found) if isinstance(found, dict) else "nothing"
            raise InputError("locked", name, f"versions.yml has no such entry; there is {there}")
        owner = found
        found = found[part]
    if name.endswith(".source") and isinstance(found, dict):
        return source(found, version or str(owner["version"]), name)
    return found


def source(entry: dict[str, object], version: str, name: str) -> dict[str, str]:
    """Return what is fetched of a version. InputError where its checksum is not known: then nothing is fetched."""
    known = entry.get("sha256")
    checksum = known.get(version, "") if isinstance(known, dict) else ""
    if not re.fullmatch("[0-9a-f]{64}", checksum):
        line = f"add the line {version}: SHA256 below {name}.sha256 in versions.yml, or in the file torchfleet_versions"
        raise InputError(name.replace(".source", ".version"), version, f"its checksum is not known: {line}")
    url = str(entry["url"]).format(version=version)
    owner = name.split(".", maxsplit=1)[0]
    file = url.rpartition("/")[2]
    return {
        "version": version,
        "url": url,
        "sha256": checksum,
        "file": file if file.startswith(owner) else f"{owner}-{file}",
    }
