# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""uv.lock: what its project needs, as pip's requirements with checksums. Pure.

A lock is for all platforms. A package that only some need gets the markers on the way to it, as `uv export` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

ROOTS = ({"virtual": "."}, {"editable": "."})  # sources of the project itself
MOST_MARKERS = 16  # on the ways to one package: with more it is for all
MOST_STEPS = 100_000
NAME = re.compile(r"[a-z0-9][a-z0-9-]*\Z")
VERSION = re.compile(r"[A-Za-z0-9.!+_-]+\Z")
Table = Mapping[str, Any]
Key = tuple[str, str]  # name and version
Way = tuple[str, ...]  # the markers on it; none: it is always taken
Ways = dict[Key, set[Way]]


def locked_packages(content: Table, file: str, proven: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return each package as requirement and checksums. InputError for a lock that cannot be followed.

    `proven`: a package that the nodes have. It is named, and what it alone needs is left out.
    """
    try:
        packages = [each for each in content["package"] if isinstance(each["name"], str)]
        roots = [each for each in packages if each.get("source") in ROOTS]
        if len(roots) != 1:
            raise InputError("requirements", file, "it has no one project at '.': give a requirements.txt (uv export)")
        ways = followed(packages, roots[0], proven, file)
        by_key = {key_of(each): each for each in packages}
        return [entry(by_key[key], some, file, proven) for key, some in sorted(ways.items())]
    except (LookupError, TypeError, AttributeError):
        raise InputError("requirements", file, "not as uv writes it: write it anew with uv lock") from None


def key_of(package: Table) -> Key:
    """Return what a package is found by."""
    return str(package["name"]), str(package.get("version", ""))


def followed(packages: list[Table], root: Table, proven: str, file: str) -> Ways:
    """Return every package that the project needs, with the markers on the ways to it."""
    ways: Ways = {}
    waiting: list[tuple[Table, Way]] = [(dependency, ()) for dependency in root.get("dependencies", ())]
    done = set()
    for _step in range(MOST_STEPS):
        if not waiting:
            return ways
        dependency, before = waiting.pop()
        package, extras = the_one(packages, dependency), tuple(dependency.get("extra", ()))
        marker, known = str(dependency.get("marker", "")), ways.setdefault(key_of(package), set())
        way = tuple(dict.fromkeys([*before, *([marker] if marker else [])])) if len(known) < MOST_MARKERS else ()
        if (key_of(package), way, extras) in done:
            continue
        done.add((key_of(package), way, extras))
        known.add(way)
        if package["name"] != proven:
            waiting += [(each, way) for each in needs_of(package, extras)]
    raise InputError("requirements", file, "it has too many packages: give a requirements.txt (uv export)")


def needs_of(package: Table, extras: Sequence[str]) -> list[Table]:
    """Return what a package needs, with these extras."""
    more = package.get("optional-dependencies", {})
    return [*package.get("dependencies", ()), *(each for extra in extras for each in more.get(extra, ()))]


def the_one(packages: list[Table], dependency: Table) -> Table:
    """Return the package that a dependency means. LookupError if there is none."""
    wanted = dependency.get("version")
    fitting = (each for each in packages if each["name"] == dependency["name"] and wanted in (None, each["version"]))
    found = next(fitting, None)
    if found is None:
        raise LookupError(dependency["name"])
    return found


def entry(package: Table, ways: set[Way], file: str, proven: str) -> tuple[str, tuple[str, ...]]:
    """Return a package as requirement and checksums of its wheels. InputError if it is not from an index."""
    name, version = key_of(package)
    if not NAME.match(name) or not VERSION.match(version):
        raise InputError("requirements", f"{name} {version} ({file})", "no name and version of a package")
    hashes = tuple(checksums(package))
    if name != proven and ("registry" not in package["source"] or not hashes):
        raise InputError(
            "requirements", f"{name} ({file})", "it has no wheel on an index: -e requirements=FILE without it, and "
            "its wheel in -e program_wheelhouse=DIRECTORY"
        )  # fmt: skip
    marker = "" if () in ways else " or ".join(" and ".join(f"({each})" for each in way) for way in sorted(ways))
    return f"{name}=={version}" + (f" ; {marker}" if marker else ""), hashes


def checksums(package: Table) -> Iterator[str]:
    """Yield the checksum of each wheel of a package."""
    for wheel in package.get("wheels", ()):
        if re.match(r"sha256:[0-9a-f]{64}\Z", str(wheel.get("hash"))):
            yield str(wheel["hash"])
