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
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple, Sequence, TypedDict, cast

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.containers.containers import (
    ask,
    error_line,
    image_id,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.containers.image_paths import path_id
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.engines import (
    ENGINES,
    NAMED,
    form_of,
    is_file,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launcher_programs import (
    on_search_path,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import ImageFlaw

IMAGES = "images"  # directory in torchfleet's home: a note for each image, and archives until they are loaded
LOAD_SECONDS = 3600.0  # for an image of some 30 GB on a slow disk
# What an engine says that it loaded: a name, several (Podman 3), or an id.
LOADED = re.compile(r"Loaded image(?:s|\(s\))?(?: ID)?: (\S{1,2000})$", re.MULTILINE)
LOADED_NAME = re.compile(r"@?([A-Za-z0-9][A-Za-z0-9._/:@-]{0,400})\Z")
ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".sif", ".sqsh")  # of archives, by which some engines know their kind
PREFIXES = ("docker.io/library/", "docker.io/", "localhost/")  # which engines put before a short name


class ImageError(Exception):
    """The image could not be brought or removed. The text is one line."""


class Verbs(NamedTuple):
    """What an engine that keeps images by name is told; names and archives follow."""

    load: tuple[str, ...]
    pull: tuple[str, ...]
    tag: tuple[str, ...]  # then what there is, and its new name
    drop: tuple[str, ...]  # then a name: the image itself goes with its last one
    names: tuple[str, ...]  # prints all, each with its id


LISTING = ("images", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}")
VERBS: Mapping[str, Verbs] = {
    name: Verbs((name, "load", "--input"), (name, "pull"), (name, "tag"), (name, "rmi"), (name, *LISTING))
    for name in ("podman", "docker")
}
# What makes a directory of an archive, by engine; archive and directory follow.
UNPACK: Mapping[str, tuple[str, ...]] = {"charliecloud": ("ch-convert", "-o", "dir")}


class Note(TypedDict):
    """What was brought to a node. `sha256`: of its archive, empty if it was pulled; `own`: it was not there before."""

    host: str
    engine: str
    image: str
    id: str
    sha256: str
    own: bool


# --- notes ------------------------------------------------------------------------------------------------------------


def note_path(home: str, engine: str, image: str) -> str:
    """Return where the note of an image is. Nodes that share a home have notes of their own."""
    key = hashlib.sha256("\0".join((os.uname().nodename, engine, image)).encode()).hexdigest()[:32]
    return os.path.join(home, IMAGES, f"{key}.json")


def archive_path(home: str, sha256: str, ending: str) -> str:
    """Return where the controller puts an archive. Its ending tells engines how it is packed."""
    return os.path.join(home, IMAGES, f"{sha256[:32]}-{host_digest()}{ending}")


def host_digest() -> str:
    """Return what tells this node from others that share its home."""
    return hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]


def ending_of(archive: str) -> str:
    """Return the ending of an archive's name that tells its kind; empty if it has none of ENDINGS."""
    return next((ending for ending in ENDINGS if archive.endswith(ending)), "")


def read_note(path: str) -> Note | None:
    """Return a note of this node. None if there is none that can be read."""
    try:
        with open(path) as file:
            found = json.load(file)
        texts = [found[name] for name in ("host", "engine", "image", "id", "sha256")]
        fits = all(isinstance(text, str) for text in texts) and isinstance(found["own"], bool)
        fits = fits and found["engine"] in ENGINES
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


def names_in(engine: str) -> dict[str, str]:
    """Return the id that each name of an engine stands for; an image without a name has its id there. ImageError."""
    said = said_by(VERBS[engine].names, f"{ENGINES[engine].title} does not list its images")
    rows = [(words[0], words[1].rpartition(":")[2]) for words in map(str.split, said.splitlines()) if len(words) == 2]
    return {found if "<none>" in name else name: found for name, found in rows}


def loaded_names(said: str) -> list[str]:
    """Return the names or ids of what an engine says that it loaded."""
    found = [LOADED_NAME.match(name) for line in LOADED.findall(said) for name in line.split(",")]
    return [name.group(1) for name in found if name]


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
        (load_named if form_of(image) == NAMED else lay)(home, engine, image, archive)
    finally:
        with contextlib.suppress(OSError):  # a file of an image was moved
            os.unlink(archive)
    return noted(home, engine, image, before, sha256)


def pull(home: str, engine: str, image: str) -> Note:
    """Have an engine pull an image that is not there by its name. ImageError, OSError."""
    said_by([*VERBS[engine].pull, image], f"{ENGINES[engine].title} cannot pull it")
    return noted(home, engine, image, "", "")


def noted(home: str, engine: str, image: str, before: str, sha256: str) -> Note:
    """Keep the note of an image that is here now, and return it. `before`: its id then. ImageError."""
    found, _flaw, said = image_id(engine, image)
    if not found:
        raise ImageError(f"{ENGINES[engine].title} has no image of that name now{said and ': '}{said}")
    earlier = read_note(note_path(home, engine, image))
    own = found != before or bool(earlier and earlier["own"] and earlier["id"] == before)
    host = os.uname().nodename
    note: Note = {"host": host, "engine": engine, "image": image, "id": found, "sha256": sha256, "own": own}
    write_note(home, note)
    if earlier and earlier["own"] and earlier["id"] == before != found and form_of(image) == NAMED:
        drop_unnamed(engine, before)
    return note


def drop_unnamed(engine: str, found: str) -> None:
    """Remove an image, unless it has a name, or a container. ImageError."""
    if [name for name, other in names_in(engine).items() if other == found] == [found]:
        ask([*VERBS[engine].drop, found], LOAD_SECONDS)


def load_named(_home: str, engine: str, image: str, archive: str) -> None:
    """Load an archive, and name its image as it is to be named. Its other names are as they were then. ImageError."""
    verbs, title, before = VERBS[engine], ENGINES[engine].title, names_in(engine)
    loaded = loaded_names(said_by([*verbs.load, archive], f"{title} cannot load the archive"))
    others = [name for name in loaded if not finds(engine, image, name)]
    try:
        if len(others) == len(loaded):
            if len(loaded) != 1:
                held = ", ".join(loaded)[:200] or "none with a name"
                raise ImageError(f"the archive has no image of that name, but {held}: name one of these")
            said_by([*verbs.tag, loaded[0], image], f"{title} cannot give it that name")
    finally:
        put_back(engine, before, others)


def put_back(engine: str, before: Mapping[str, str], names: Sequence[str]) -> None:
    """Let names stand for what they stood for before, and remove what came with them and has no other name."""
    after = names_in(engine)
    moved = [name for name in names if after.get(name, "") not in ("", before.get(name))]
    for name in moved:
        verbs = VERBS[engine]
        ask([*verbs.tag, before[name], name] if name in before else [*verbs.drop, name], LOAD_SECONDS)
    for found in {after[name] for name in moved} - {*before.values()}:
        drop_unnamed(engine, found)


def finds(engine: str, image: str, name: str) -> bool:
    """Whether an engine finds an image that has this name by the name that users give.

    Podman looks for a name without a registry among all of these, and Docker in Docker Hub's alone.
    """
    local = engine == "podman" and not image.startswith(PREFIXES)
    return usual(image, local) == usual(name, local)


def usual(name: str, local: bool = True) -> str:
    """Return a name without what engines add: `train:1` of `docker.io/library/train:1`, `train:latest` of `train`.

    `local`: `train:1` of `localhost/train:1` too.
    """
    for prefix in PREFIXES if local else PREFIXES[:-1]:
        if name.startswith(prefix):
            name = name[len(prefix) :]
            break
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def lay(home: str, engine: str, image: str, archive: str) -> None:
    """Put an image to its path. Nobody sees half of one. ImageError, OSError."""
    with scratch_beside(image) as made:
        if is_file(image):
            shutil.move(archive, made)
        else:
            argv = [*UNPACK[engine], archive, made]
            if not on_search_path(argv[0]):
                raise ImageError(f"{argv[0]} unpacks the archive, and is not there: install it")
            said_by(argv, f"{argv[0]} cannot unpack the archive")
            os.chmod(made, os.stat(made).st_mode | stat.S_IRWXU)  # a directory without it cannot be moved
        place(read_note(note_path(home, engine, image)), image, made)


@contextlib.contextmanager
def scratch_beside(path: str) -> Iterator[str]:
    """Give a path of the same name in a new directory beside it, which goes at the end with all that is in it.

    Directories above it are made, and go too if nothing is put there.
    """
    parent, name = os.path.split(path)
    missing = [str(folder) for folder in (Path(parent), *Path(parent).parents) if not folder.exists()]
    os.makedirs(parent, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix=f".{name[:200]}.", dir=parent)
    try:
        yield os.path.join(scratch, name)
    finally:
        drop_path(scratch)
        for folder in missing:
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(folder)


def place(note: Note | None, image: str, made: str) -> None:
    """Move an image to its path. ImageError if something is there that is neither ours nor the same image.

    Nodes may share the storage: what another one put there by then is the same image.
    """
    there, same = path_id(image)[0], path_id(made)[0]
    if there == same:
        return
    empty = os.path.isdir(image) and not os.listdir(image)
    if os.path.lexists(image) and not empty:
        if not note or note["id"] != there:
            raise ImageError("something else is at this path, which setup.yml did not bring: name another path")
        if not is_file(image):
            take_away(image)
    try:
        os.rename(made, image)
    except OSError:
        if path_id(image)[0] != same:
            raise


# --- removing ---------------------------------------------------------------------------------------------------------


def take_away(path: str) -> None:
    """Remove a file or a directory, of which nobody sees a half. Another node may have removed it. OSError."""
    with contextlib.suppress(FileNotFoundError), scratch_beside(path) as there:
        if not os.path.islink(path):
            os.chmod(path, os.stat(path).st_mode | stat.S_IRWXU)
        os.rename(path, there)


def drop_path(path: str) -> None:
    """Remove a directory, with directories in it that nobody may write to or look into. OSError."""
    for folder, names, _files in os.walk(path):
        for name in names:
            if not os.path.islink(os.path.join(folder, name)):
                os.chmod(os.path.join(folder, name), stat.S_IRWXU)
    shutil.rmtree(path)


def notes(home: str) -> list[tuple[str, Note]]:
    """Return the notes of this node, each with its path."""
    place = os.path.join(home, IMAGES)
    paths = [os.path.join(place, name) for name in (sorted(os.listdir(place)) if os.path.isdir(place) else [])]
    return [(path, note) for path in paths for note in [read_note(path)] if note]


def is_ours(note: Note) -> bool:
    """Whether what a note tells of is there, and can be removed. ImageError if its engine does not tell."""
    row, named = ENGINES[note["engine"]], form_of(note["image"]) == NAMED
    if not note["own"] or (named and not on_search_path(row.program)):
        return False
    found, flaw, said = image_id(note["engine"], note["image"])
    if flaw == ImageFlaw.ENGINE_FAILED:
        why = f"setup.yml brought it to {row.title}, which does not work ({said}): mend that first"
        raise ImageError(f"{note['image']}: {why}")
    return found == note["id"]


def removable(home: str) -> list[str]:
    """Return the images that remove() would remove, as people read them. ImageError."""
    return [f"image {note['image']} ({note['engine']})" for _path, note in notes(home) if is_ours(note)]


def remove(home: str) -> None:
    """Remove the images that were brought here, the notes of them, and archives that were not loaded.

    ImageError, OSError.
    """
    for path, note in notes(home):
        if is_ours(note) and form_of(note["image"]) == NAMED:
            row = ENGINES[note["engine"]]
            said_by([*VERBS[note["engine"]].drop, note["image"]], f"{row.title} keeps {note['image']}")
        elif is_ours(note):
            take_away(note["image"])
        os.unlink(path)
    folder = os.path.join(home, IMAGES)
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        if f"-{host_digest()}" in name:
            os.unlink(os.path.join(folder, name))
    with contextlib.suppress(OSError):  # another node's notes are there
        os.rmdir(folder)
