# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""uv.lock: what its project needs, as pip's requirements with checksums. Pure.

A lock is for all platforms. A package that only some need gets the markers on the way to it, as `uv export` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

ROOTS: tuple[object, ...] = ({"virtual": "."}, {"editable": "."})  # sources of the project itself
MOST_MARKERS = 16  # on the ways to one package: with more it is for all
MOST_STEPS = 100_000
NAME = re.compile(r"[a-z0-9][a-z0-9-]*\Z")
VERSION = re.compile(r"[A-Za-z0-9.!+_-]+\Z")
HASH = re.compile(r"sha256:[0-9a-f]{64}\Z")
Key = tuple[str, str]  # name and version
Way = tuple[str, ...]  # the markers on it; none: it is always taken
Ways = dict[Key, set[Way]]


class UnreadableError(ValueError):
    """A part of the lock is not as uv writes it."""


@dataclass(frozen=True)
class Dependency:
    """What a package needs."""

    name: str
    version: str | None  # None: there is only one
    marker: str
    extras: tuple[str, ...]


@dataclass(frozen=True)
class Package:
    """A package of the lock."""

    name: str
    version: str
    is_root: bool  # the project itself
    is_of_index: bool
    needs: tuple[Dependency, ...]
    extras: Mapping[str, tuple[Dependency, ...]]  # what it needs besides, by the name of an extra
    hashes: tuple[str, ...]  # of its wheels

    @property
    def key(self) -> Key:
        """What it is found by."""
        return self.name, self.version

    def needs_with(self, extras: Sequence[str]) -> list[Dependency]:
        """Return what it needs with these extras."""
        return [*self.needs, *(each for extra in extras for each in self.extras.get(extra, ()))]


def locked_packages(content: Mapping[str, object], file: str, proven: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return each package as requirement and checksums. InputError for a lock that cannot be followed.

    `proven`: a package that the nodes have. It is named, and what it alone needs is left out.
    """
    try:
        packages = [package_of(each) for each in items(content.get("package"))]
        roots = [each for each in packages if each.is_root]
        if len(roots) != 1:
            why = "it does not have exactly one project at '.': give a requirements.txt (uv export)"
            raise InputError("requirements", file, why)
        ways = followed(packages, roots[0], proven, file)
    except UnreadableError:
        raise InputError("requirements", file, "not a valid lock file of uv: recreate it with uv lock") from None
    by_key = {each.key: each for each in packages}
    return [entry(by_key[key], some, file, proven) for key, some in sorted(ways.items())]


# --- reading ----------------------------------------------------------------------------------------------------------


def items(value: object) -> list[object]:
    """Return a list as it is. UnreadableError if it is none."""
    if not isinstance(value, list):
        raise UnreadableError
    return value


def table(value: object) -> Mapping[str, object]:
    """Return a table as it is. UnreadableError if it is none."""
    if not isinstance(value, dict):
        raise UnreadableError
    return value


def text(value: object) -> str:
    """Return a text as it is. UnreadableError if it is none."""
    if not isinstance(value, str):
        raise UnreadableError
    return value


def package_of(value: object) -> Package:
    """Return a package. UnreadableError."""
    given = table(value)
    source, extras = table(given.get("source")), table(given.get("optional-dependencies", {}))
    hashes = [str(table(wheel).get("hash")) for wheel in items(given.get("wheels", []))]
    return Package(
        name=text(given.get("name")),
        version=text(given.get("version", "")),
        is_root=source in ROOTS,
        is_of_index="registry" in source,
        needs=dependencies_of(given.get("dependencies", [])),
        extras={extra: dependencies_of(needs) for extra, needs in extras.items()},
        hashes=tuple(each for each in hashes if HASH.match(each)),
    )


def dependencies_of(value: object) -> tuple[Dependency, ...]:
    """Return what a package needs. UnreadableError."""
    return tuple(
        Dependency(
            name=text(given.get("name")),
            version=text(given["version"]) if "version" in given else None,
            marker=text(given.get("marker", "")),
            extras=tuple(text(extra) for extra in items(given.get("extra", []))),
        )
        for given in map(table, items(value))
    )


# --- following --------------------------------------------------------------------------------------------------------


def followed(packages: list[Package], root: Package, proven: str, file: str) -> Ways:
    """Return every package that the project needs, with the markers on the ways to it."""
    ways: Ways = {}
    waiting: list[tuple[Dependency, Way]] = [(dependency, ()) for dependency in root.needs]
    done = set()
    for _step in range(MOST_STEPS):
        if not waiting:
            return ways
        dependency, before = waiting.pop()
        package, marker = the_one(packages, dependency), dependency.marker
        known = ways.setdefault(package.key, set())
        way = tuple(dict.fromkeys([*before, *([marker] if marker else [])])) if len(known) < MOST_MARKERS else ()
        step = (package.key, way, dependency.extras)
        if step in done:
            continue
        done.add(step)
        known.add(way)
        if package.name != proven:
            waiting += [(each, way) for each in package.needs_with(dependency.extras)]
    raise InputError("requirements", file, "it has too many packages: give a requirements.txt (uv export)")


def the_one(packages: list[Package], dependency: Dependency) -> Package:
    """Return the package that a dependency means. UnreadableError if there is none."""
    wanted = dependency.version
    fitting = (each for each in packages if each.name == dependency.name and wanted in (None, each.version))
    found = next(fitting, None)
    if found is None:
        raise UnreadableError
    return found


def entry(package: Package, ways: set[Way], file: str, proven: str) -> tuple[str, tuple[str, ...]]:
    """Return a package as requirement and checksums of its wheels. InputError if it is not from an index."""
    name, version = package.key
    if not NAME.match(name) or not VERSION.match(version):
        raise InputError("requirements", f"{name} {version} ({file})", "no name and version of a package")
    if name != proven and not (package.is_of_index and package.hashes):
        raise InputError(
            "requirements", f"{name} ({file})", "it has no wheel on an index: -e requirements=FILE without it, and "
            "its wheel in -e program_wheelhouse=DIRECTORY"
        )  # fmt: skip
    marker = "" if () in ways else " or ".join(" and ".join(f"({each})" for each in way) for way in sorted(ways))
    return f"{name}=={version}" + (f" ; {marker}" if marker else ""), package.hashes
