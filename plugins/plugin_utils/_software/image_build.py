# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Builds an image on the controller, once. Its archive is what every node gets."""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.containers.containers import error_line
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.engines import NAMED, form_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.images import usual
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

BUILDERS = ("podman", "docker")  # the first that the controller has
RECIPES = ("Containerfile", "Dockerfile")
FORMATS = {"podman": ("--quiet", "--format", "docker-archive"), "docker": ()}  # which both of them load
BUILD_SECONDS = 6 * 3600.0  # an image that compiles CUDA code takes hours
LISTING_BYTES = 1 << 20  # of the list in an archive
DAMAGED = (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error)  # of an archive that is cut off, or no archive
CONFIG = re.compile(r"(?:blobs/sha256/)?([0-9a-f]{64})(?:\.json)?\Z")  # as podman and docker name an image's own file


@dataclass(frozen=True)
class Build:
    """What is to be built, and the archive that it is kept in."""

    builder: str
    image: str
    folder: Path
    archive: Path


@dataclass(frozen=True)
class Kept:
    """What an archive holds: the id of its image, and the image's names."""

    image_id: str
    names: tuple[str, ...]


NOTHING = Kept("", ())


def wanted_build(image: str, folder: str, archive: str) -> Build | None:
    """Return what is to be built; None if no folder is given. InputError for what cannot be."""
    if not folder:
        return None
    path, kept = Path(folder).expanduser(), Path(archive).expanduser().absolute()
    if form_of(image) != NAMED:
        raise InputError("container_build", folder, f"{image} is a path, and what is built has a name: train:1")
    if not archive:
        raise InputError("container_build", folder, "say where to write the image: -e container_archive=train.tar")
    if not any((path / name).is_file() for name in RECIPES):
        raise InputError("container_build", folder, f"there is no {' and no '.join(RECIPES)}: give a folder with one")
    builder = next((name for name in BUILDERS if shutil.which(name)), "")
    if not builder:
        there = "the controller has neither podman nor docker: install one, or build elsewhere"
        raise InputError("container_build", folder, f"{there} and give container_archive alone")
    held = read_archive(kept)
    if kept.exists() and usual(image) not in map(usual, held.names):
        what = f"it holds {', '.join(held.names)[:200]}" if held.names else "it is no archive of an image"
        raise InputError("container_archive", archive, f"it would be written over, but {what}: name another file")
    if kept.resolve().is_relative_to(path.resolve()):
        where = f"it is in {folder}, so each build may include the last archive: give a path outside of it"
        raise InputError("container_archive", archive, where)
    return Build(builder, image, path, kept)


def build(wanted: Build) -> bool:
    """Build an image, and return whether its archive was written: not if it holds that image. InputError."""
    run(wanted, (wanted.builder, "build", "--quiet", "--tag", wanted.image, *recipe(wanted.folder), str(wanted.folder)))
    said = run(wanted, (wanted.builder, "image", "inspect", "--format", "{{.Id}}", wanted.image))
    image_id = said.strip().rpartition(":")[2]
    if read_archive(wanted.archive).image_id == image_id:
        return False
    try:
        wanted.archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".container-", dir=wanted.archive.parent) as scratch:
            made = Path(scratch) / "image.tar"
            run(wanted, (wanted.builder, "save", *FORMATS[wanted.builder], "--output", str(made), wanted.image))
            made.chmod(0o600)
            os.replace(made, wanted.archive)
    except OSError as error:
        raise InputError("container_archive", str(wanted.archive), f"it cannot be written: {error}") from None
    return True


def recipe(folder: Path) -> tuple[str, ...]:
    """Return the words that name the file an image is built from: docker looks for Dockerfile alone."""
    return ("--file", str(next(folder / name for name in RECIPES if (folder / name).is_file())))


def run(wanted: Build, argv: Sequence[str]) -> str:
    """Return what a program of the controller prints. InputError with its own words if it fails."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=BUILD_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError("container_build", str(wanted.folder), f"{argv[0]}: {error}") from None
    said, why = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
    if done.returncode:
        raise InputError("container_build", str(wanted.folder), f"{argv[0]} {argv[1]}: {error_line(why or said)}")
    return said


def read_archive(path: Path) -> Kept:
    """Return what an archive of one image holds, as podman and docker write it; nothing for any other file."""
    try:
        with tarfile.open(path) as file:
            listing = file.extractfile("manifest.json")
            (row,) = json.loads(listing.read(LISTING_BYTES) if listing else "")
        found, names = CONFIG.match(row["Config"]), row["RepoTags"]
        fits = found and isinstance(names, list) and all(isinstance(name, str) for name in names)
    except (OSError, *DAMAGED, LookupError, ValueError, TypeError, RecursionError):
        return NOTHING
    return Kept(found.group(1), tuple(names)) if found and fits else NOTHING
