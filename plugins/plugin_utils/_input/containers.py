# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The image that ranks run in, as users write it: for all nodes on the command line, for one in the inventory. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.engines import (
    AUTO,
    CHOICES,
    ENGINES,
    fitting,
    is_owned,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import WantedContainer

from .errors import InputError
from .values import parse_choice, parse_words

PARTS = ("container_image", "container_engine", "container_args", "container_mounts")
NONE = "none"  # as an image: ranks run on the node itself, whatever the inventory says
# As in the grammar of references of the OCI distribution specification, with a digest or a tag.
IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,400}\Z")
ENVIRONMENT = re.compile(r"(--env(=|\Z)|-e|--set-env=[^=]*=)")  # of an engine, with a value that everybody would see
PATH = re.compile(r"/[^\0:,]*\Z")


@dataclass(frozen=True)
class ContainerSetting:
    """What ranks of a node run in. An empty image: in none. `mounts`: here, there, and `ro` or an empty text."""

    image: str = ""
    engine: str = AUTO
    args: tuple[str, ...] = ()
    mounts: tuple[tuple[str, str, str], ...] = ()

    @property
    def fitting(self) -> list[str]:
        """Return the engines that may start the image, the first choice first."""
        return fitting(self.engine, self.image, any(mode for _here, _there, mode in self.mounts))

    @property
    def wanted(self) -> WantedContainer | None:
        """Return it as a node is asked for it; None for no image."""
        if not self.image:
            return None
        mounts = [list(mount) for mount in self.mounts]
        return {"image": self.image, "engine": self.engine, "args": list(self.args), "mounts": mounts}


NO_CONTAINER = ContainerSetting()


def parse_container(
    given: Mapping[str, object], where: str = "", prefix: str = "", default: ContainerSetting = NO_CONTAINER
) -> ContainerSetting:
    """Return the setting that PARTS make. InputError.

    What is None is that of `default`. `where`, `prefix`: what names have behind and before them, for errors.
    """
    image, engine, args, mounts = (given.get(part) for part in PARTS)
    names = [f"{prefix}{part}{where}" for part in PARTS]
    changes: dict[str, object] = {}
    if image is not None:
        changes["image"] = parse_image(names[0], image)
    if engine is not None:
        changes["engine"] = parse_choice(names[1], engine, CHOICES)
    if args is not None:
        changes["args"] = parse_engine_args(names[2], args)
    if mounts is not None:
        changes["mounts"] = tuple(parse_mount(names[3], text) for text in parse_words(names[3], mounts))
    found = dataclasses.replace(default, **changes)  # type: ignore[arg-type]
    if not found.image and not (image == NONE or default.image) and set(changes) - {"image"}:
        rows = zip(names[1:], (engine, args, mounts), strict=True)
        lone, value = next(row for row in rows if row[1] is not None)
        raise InputError(lone, value, f"it is for ranks in an image: add {prefix}container_image")
    check_read_only(names[3], found)
    return found


def check_read_only(name: str, setting: ContainerSetting) -> None:
    """Raise InputError for a mount that nobody is to write to, if the image's engine would let everybody do it."""
    engines = [ENGINES[engine] for engine in fitting(setting.engine, setting.image)]
    for here, there, mode in setting.mounts if engines else ():
        if mode and not setting.fitting:
            reason = f"{engines[0].title} mounts for reading and writing only: leave :{mode} out"
            raise InputError(name, f"{here}:{there}:{mode}", reason)


def parse_image(name: str, value: object) -> str:
    """Return the name of an image or the absolute path of a directory on the nodes; an empty text for `none`."""
    text = str(value)
    if text == NONE:
        return ""
    is_path = PATH.match(text) and ".." not in text.split("/") and text != "/"
    if not isinstance(value, str) or not (is_path or IMAGE_NAME.match(text)):
        paths = "the absolute path of an unpacked image or of a .sif or .sqsh file on the nodes"
        allowed = f"give a name as podman has it, or {paths}, or none"
        raise InputError(name, value, f"{allowed}: -e container_image=localhost/train:1")
    return text.rstrip("/")


def parse_engine_args(name: str, value: object) -> tuple[str, ...]:
    """Return more words for the engine. InputError for one that the container has already."""
    words = parse_words(name, value)
    for before, word in zip(("", *words), words, strict=False):
        if is_owned(word):
            reason = "this is set already, or would take the container away from the guard: leave it out"
            raise InputError(name, word, f"{reason}; train.yml --check shows every option with its reason")
        if ENVIRONMENT.match(word):
            reason = "all users of a node can read command lines: give variables to train.yml"
            raise InputError(name, word.partition("=")[0], f"""{reason}: -e '{{"job_env": {{"NAME": "value"}}}}'""")
        if not word.startswith("-") and (not before.startswith("-") or "=" in before):
            reason = "no option stands before it, so the engine would take it for the image"
            raise InputError(name, word, f"{reason}: leave it out; container_image names the image")
    return words


def parse_mount(name: str, text: str) -> tuple[str, str, str]:
    """Return the parts of `/here`, `/here:/there` or `/here:/there:ro`."""
    here, there, mode = [*text.split(":"), "", ""][:3] if text.count(":") < 3 else ("", "", "")
    there, mode = (here, "ro") if there == "ro" else (there or here, mode)
    for path in (here, there):
        if not PATH.match(path) or ".." in path.split("/") or path.rstrip("/") == "":
            raise InputError(
                name, text, f"give absolute paths as /here, /here:/there or /here:/there:ro: -e {name}=/data"
            )
    if mode not in ("", "ro"):
        raise InputError(name, text, f"after the second path comes ro or nothing: -e {name}={here}:{there}:ro")
    return here, there, mode
