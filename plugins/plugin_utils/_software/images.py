# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How an image comes to a node: what users may ask for, and what a node answers. Pure."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.engines import (
    DIRECTORY,
    ENGINES,
    FILES,
    NAMED,
    form_of,
    is_file,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import coded, flag, like, one_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import ImageFlaw
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.node_form import IMAGE_ID
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.images import UNPACK
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.containers import ContainerSetting
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import (
    empty_or,
    exact,
    rooted,
    short,
)

UNPACKED = (
    "only charliecloud's ch-convert unpacks an archive: name a .sif or .sqsh file, or unpack the image there yourself"
)
SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class ImageAnswer(TypedDict):
    """What a node says of an image. `loaded`: the checksum of the archive that it is from; `place`: for the archive."""

    engine: str
    id: str
    flaw: ImageFlaw
    said: str
    loaded: str
    place: str
    brought: bool


ANSWER = exact(
    {
        "engine": one_of("", *ENGINES),
        "id": IMAGE_ID,
        "flaw": coded(ImageFlaw),
        "said": short(),
        "loaded": empty_or(like(SHA256, "a checksum")),
        "place": empty_or(rooted),
        "brought": flag,
    }
)


def check_source(setting: ContainerSetting, archive: str, pull: bool) -> None:
    """Raise InputError for an image that cannot come from where it is to come from."""
    form, name = form_of(setting.image), "container_archive" if archive else "container_pull"
    if not setting.image and (archive or pull):
        raise InputError(name, archive or pull, "it is for an image: name that: -e container_image=localhost/train:1")
    if archive and pull:
        raise InputError(name, archive, "container_pull is set too: leave one of them out")
    if pull and form != NAMED:
        raise InputError(name, pull, "an image that is a path is not pulled: -e container_archive=/its/archive")
    if archive and form == NAMED and "@" in setting.image:
        raise InputError("container_image", setting.image, "no archive has a digest: name it with a tag, train:1")
    if archive and form == DIRECTORY and not {*setting.fitting} & {*UNPACK}:
        raise InputError("container_engine", setting.engine, UNPACKED)
    if archive and FILES.get(Path(archive).suffix) != (form if is_file(setting.image) else None):
        kind = form if is_file(setting.image) else "an archive of files, as podman save writes it"
        raise InputError(name, archive, f"container_image is {setting.image}, so give {kind}")


def sum_of_archive(archive: str) -> str:
    """Return the SHA-256 of an archive of the controller, as hexadecimal digits. InputError if it cannot be read."""
    path = Path(archive).expanduser()
    try:
        if not path.is_file():
            raise InputError("container_archive", archive, f"there is no such file: podman save -o {path} NAME")
        found = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    except (OSError, RuntimeError) as error:
        raise InputError("container_archive", archive, f"it cannot be read: {error}") from None
    return found.hexdigest()


def step_for(seen: ImageAnswer, sha256: str, pull: bool) -> str:
    """Return what is to be done: `load`, `pull`, or an empty text for an image that is there."""
    if sha256:
        return "" if seen["loaded"] == sha256 else "load"
    return "pull" if pull and not seen["id"] else ""
