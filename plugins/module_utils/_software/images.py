# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Brings an image to this node, notes what it brought, and removes that again. What was there before stays."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from typing import Callable, Mapping, NamedTuple, Sequence, TypedDict, cast

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.containers import ask, error_line, image_id
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.engines import (
    ENGINES,
    FILE,
    FILES,
    NAMED,
    form_of,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.launcher_programs import on_search_path

IMAGES = "images"  # directory in torchfleet's home: a note for each image, and archives until they are loaded
LOAD_SECONDS = 3600.0  # for an image of some 30 GB on a slow disk
LOADED = re.compile(r"Loaded images?(?: ID)?: ([A-Za-z0-9][A-Za-z0-9._/:@-]{0,400})$", re.MULTILINE)
ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".sif", ".sqfs")  # of archives, by which some engines know their kind
PREFIXES = ("docker.io/library/", "docker.io/", "localhost/")  # which engines put before a short name


class ImageError(Exception):
    """The image could not be brought or removed. The text is one line."""


class Verbs(NamedTuple):
    """What an engine that keeps images by name is told; names and archives follow."""

    load: tuple[str, ...]
    pull: tuple[str, ...]
    tag: tuple[str, ...]  # then what there is, and its new name
    drop: tuple[str, ...]  # then a name: the image itself goes with its last one
    names: tuple[str, ...]  # prints all


LISTING = ("images", "--format", "{{.Repository}}:{{.Tag}}")
VERBS: Mapping[str, Verbs] = {
    name: Verbs((name, "load", "--input"), (name, "pull"), (name, "tag"), (name, "rmi"), (name, *LISTING))
    for name in ("podman", "docker")
}
# What makes a directory of an archive, by engine: given archive and directory.
UNPACK: Mapping[str, Callable[[str, str], list[str]]] = {
    "charliecloud": lambda archive, path: ["ch-convert", "-o", "dir", archive, path],
    "apptainer": lambda archive, path: ["apptainer", "build", "--sandbox", path, source_of(archive)],
}


class Note(TypedDict):
    """What was brought to a node. `sha256`: of its archive, empty if it was pulled; `names`: those that it brought."""

    host: str
    engine: str
    image: str
    id: str
    sha256: str
    names: list[str]


def source_of(archive: str) -> str:
    """Return an archive as Apptainer has it."""
    return archive if archive.endswith(FILES) else f"docker-archive:{archive}"


# --- notes ------------------------------------------------------------------------------------------------------------


def note_path(home: str, engine: str, image: str) -> str:
    """Return where the note of an image is. Nodes that share a home have notes of their own."""
    key = hashlib.sha256("\0".join((os.uname().nodename, engine, image)).encode()).hexdigest()[:32]
    return os.path.join(home, IMAGES, f"{key}.json")


def archive_path(home: str, sha256: str, ending: str) -> str:
    """Return where the controller puts an archive. Its ending tells engines how it is packed."""
    host = hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]
    return os.path.join(home, IMAGES, f"{sha256[:32]}-{host}{ending}")


def ending_of(archive: str) -> str:
    """Return the ending of an archive's name that tells its kind; empty if it has none of ENDINGS."""
    return next((ending for ending in ENDINGS if archive.endswith(ending)), "")


def read_note(path: str) -> Note | None:
    """Return a note of this node. None if there is none that can be read."""
    try:
        with open(path) as file:
            found = json.load(file)
        texts = [found[name] for name in ("host", "engine", "image", "id", "sha256")]
        fits = all(isinstance(text, str) for text in [*texts, *found["names"]]) and found["engine"] in ENGINES
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return cast("Note", found) if fits and found["host"] == os.uname().nodename else None


def write_note(home: str, note: Note) -> None:
    """Keep a note, as a whole. OSError."""
    path = note_path(home, note["engine"], note["image"])
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(note, file)
    os.replace(path + ".new", path)


# --- bringing ---------------------------------------------------------------------------------------------------------


def said_by(argv: Sequence[str], what: str, seconds: float = LOAD_SECONDS) -> str:
    """Return what an engine prints. ImageError with `what` and its own words if it fails."""
    rc, out, err = ask(argv, seconds)
    if rc:
        raise ImageError(f"{what}: {error_line(err or out)}")
    return out


def names_in(engine: str) -> list[str]:
    """Return the names of all images of an engine."""
    return said_by(VERBS[engine].names, f"{ENGINES[engine].title} does not list its images").split()


def sum_of(path: str) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits. Empty if there is none."""
    found = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while True:
                block = file.read(1 << 20)
                if not block:
                    return found.hexdigest()
                found.update(block)
    except OSError:
        return ""


def load(home: str, engine: str, image: str, archive: str, sha256: str) -> Note:
    """Load an image from an archive that was brought here, which is removed. ImageError, OSError."""
    if sum_of(archive) != sha256:
        with contextlib.suppress(OSError):
            os.unlink(archive)
        raise ImageError("the archive that arrived is not the one that was sent (sha256 differs): try again")
    before = image_id(engine, image)[0]
    try:
        names = load_named(engine, image, archive) if form_of(image) == NAMED else lay(engine, image, archive)
    finally:
        with contextlib.suppress(OSError):  # a file of an image was moved
            os.unlink(archive)
    return noted(home, engine, image, before, sha256, names)


def pull(home: str, engine: str, image: str) -> Note:
    """Have an engine pull an image by its name. ImageError, OSError."""
    before = names_in(engine)
    said_by([*VERBS[engine].pull, image], f"{ENGINES[engine].title} cannot pull it")
    return noted(home, engine, image, "", "", [name for name in names_in(engine) if name not in before])


def noted(home: str, engine: str, image: str, before: str, sha256: str, names: list[str]) -> Note:
    """Keep the note of an image that is here now, and return it. `before`: its id then. ImageError."""
    found, _flaw, said = image_id(engine, image)
    if not found:
        raise ImageError(f"{ENGINES[engine].title} has no image of that name now{said and ': '}{said}")
    earlier = read_note(note_path(home, engine, image))
    own = [image] if found != before or (earlier and image in earlier["names"]) else []
    host = os.uname().nodename
    kept = sorted({*own, *names, *(earlier["names"] if earlier else [])})
    note: Note = {"host": host, "engine": engine, "image": image, "id": found, "sha256": sha256, "names": kept}
    write_note(home, note)
    return note


def load_named(engine: str, image: str, archive: str) -> list[str]:
    """Load an archive, and name its image as it is to be named. Return new names that the archive has. ImageError."""
    verbs, title, before = VERBS[engine], ENGINES[engine].title, names_in(engine)
    loaded = LOADED.findall(said_by([*verbs.load, archive], f"{title} cannot load the archive"))
    if not any(usual(name) == usual(image) for name in loaded):
        if len(loaded) != 1:
            held = ", ".join(loaded)[:200] or "none with a name"
            raise ImageError(f"the archive has no image of that name, but {held}: name one of these")
        said_by([*verbs.tag, loaded[0], image], f"{title} cannot name it so")
    return [name for name in loaded if name not in before and usual(name) != usual(image)]


def usual(name: str) -> str:
    """Return a name without what engines add to it: `train:1` of `localhost/train:1`, `train:latest` of `train`."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            name = name[len(prefix) :]
            break
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def lay(engine: str, image: str, archive: str) -> list[str]:
    """Put an image to its path. Nobody sees half of one. ImageError, OSError."""
    parent = os.path.dirname(image)
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{os.path.basename(image)}.", dir=parent) as scratch:
        made = os.path.join(scratch, os.path.basename(image))
        if form_of(image) == FILE:
            shutil.move(archive, made)
        else:
            argv = UNPACK[engine](archive, made)
            if not on_search_path(argv[0]):
                raise ImageError(f"{argv[0]} unpacks the archive, and is not there: install it")
            said_by(argv, f"{argv[0]} cannot unpack the archive")
        drop_path(image)
        os.rename(made, image)
    return []


# --- removing ---------------------------------------------------------------------------------------------------------


def drop_path(path: str) -> None:
    """Remove a file or a directory, with directories in it that nobody may write to. OSError."""
    if os.path.isfile(path) or os.path.islink(path):
        os.unlink(path)
        return
    for folder, _names, _files in os.walk(path):
        os.chmod(folder, stat.S_IRWXU)
    if os.path.isdir(path):
        shutil.rmtree(path)


def notes(home: str) -> list[tuple[str, Note]]:
    """Return the notes of this node, each with its path."""
    place = os.path.join(home, IMAGES)
    paths = [os.path.join(place, name) for name in (sorted(os.listdir(place)) if os.path.isdir(place) else [])]
    return [(path, note) for path in paths for note in [read_note(path)] if note]


def own_names(note: Note) -> list[str]:
    """Return what of a note is still what was brought, and can be removed."""
    engine = note["engine"]
    if form_of(note["image"]) == NAMED and not on_search_path(ENGINES[engine].program):
        return []
    return [name for name in note["names"] if image_id(engine, name)[0] == note["id"]]


def removable(home: str) -> list[str]:
    """Return the images that remove() would remove, as people read them."""
    return [f"image {name} ({note['engine']})" for _path, note in notes(home) for name in own_names(note)]


def remove(home: str) -> None:
    """Remove the images that were brought here, and the notes of them. ImageError, OSError."""
    for path, note in notes(home):
        for name in own_names(note):
            if form_of(name) == NAMED:
                said_by([*VERBS[note["engine"]].drop, name], f"{ENGINES[note['engine']].title} keeps {name}")
            else:
                drop_path(name)
        os.unlink(path)
    with contextlib.suppress(OSError):  # another node's notes are there
        os.rmdir(os.path.join(home, IMAGES))
