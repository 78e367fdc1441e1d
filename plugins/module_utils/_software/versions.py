# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The versions of an environment: each in a directory of its own, and a link from the path that everybody uses.

`<home>/openmpi` is a link to `<home>/versions/openmpi/5.0.11-1a2b3c4d5e6f`. What is in use is what the link leads to;
`history.json` beside the versions has the order in which they came into use, oldest first. A link is exchanged in one
step, so there is always one version, and never half of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Dict, Mapping

from .environment_files import LINK, RECEIPT, locked, remove

STORE = "versions"
HISTORY = "history.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,99}\Z")
# What machines that differ have in common: launchers start their daemons elsewhere by their own path.
COMMON = ("packages", "index_url", "wheelhouse", "sources", "linked_environment", "lock", "package")
OWN = ("python", "build_environment")
Receipt = Dict[str, object]


def store_of(path: Path) -> Path:
    """Return the directory of the versions of what is used at a path."""
    return path.parent / STORE / path.name


def programs_of(receipt: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the programs that were built. Of a distribution's package the receipt has their paths by name instead."""
    found = receipt.get("programs")
    return [program for program in found if isinstance(program, dict)] if isinstance(found, list) else []


def label_of(receipt: Mapping[str, object]) -> str:
    """Return the version that people know, of the first package or program in a receipt."""
    programs = programs_of(receipt) or [{}]
    packages = receipt.get("packages")
    pins = [re.search(r"==([^\s;,*]+)", str(package)) for package in (packages if isinstance(packages, list) else [])]
    found: list[object] = [pin.group(1) for pin in pins if pin]
    found += [programs[0].get("version") or receipt.get("version") or "made"]
    return re.sub(r"[^A-Za-z0-9.+_-]", "_", str(found[0])).lstrip("._-+")[:60] or "made"


def name_of(receipt: Mapping[str, object], own: bool) -> str:
    """Return the name of a version: its label, and a digest of what it is made from.

    `own`: whether machines that have another Python have another version.
    """
    keys = (*COMMON, *(OWN if own else ()), *(("version",) if receipt.get("package") else ()))
    content: dict[str, object] = {key: receipt.get(key) or None for key in keys}
    content["programs"] = [
        [program.get(key) for key in ("name", "version", "sha256")] for program in programs_of(receipt)
    ]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f"{label_of(receipt)}-{digest[:12]}"


# --- what is there ----------------------------------------------------------------------------------------------------


def is_link_of_ours(path: Path) -> bool:
    """Whether a path is a link to one of its versions."""
    store = os.path.realpath(str(store_of(path)))
    return path.is_symlink() and os.path.dirname(os.path.realpath(str(path))) == store


def in_use(path: Path) -> str:
    """Return the name of the version that a path leads to; empty if it leads to none."""
    return os.path.basename(os.path.realpath(str(path))) if is_link_of_ours(path) else ""


def is_whole(path: Path, name: str) -> bool:
    """Whether a version is there, and finished."""
    return bool(NAME.match(name)) and (store_of(path) / name / RECEIPT).is_file()


def history(path: Path) -> list[str]:
    """Return the versions that are there, in the order in which they came into use, that in use among them."""
    try:
        found = json.loads((store_of(path) / HISTORY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = []
    names = [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
    now = in_use(path)
    known = list(dict.fromkeys(name for name in names if is_whole(path, name)))
    return known if not now or now in known else [*known, now]


def before(path: Path) -> str:
    """Return the version that was in use before the present one; empty if there is none."""
    known, now = history(path), in_use(path)
    return known[known.index(now) - 1] if now and known.index(now) else ""


def is_old_style(path: Path) -> bool:
    """Whether a directory lies where a link belongs: what release 0.4 and earlier made, or an installation left."""
    return path.is_dir() and not path.is_symlink()


# --- changes, each under the lock of the path -------------------------------------------------------------------------


def adopt(path: Path, own: bool, companion: str) -> None:
    """Make a directory that an earlier release made a version, and leave a link in its place. OSError.

    What is no finished installation goes. `companion`: the name of the environment beside it that was made for it,
    which moves into it; empty for none.
    """
    with locked(path):
        aside = path.with_name(path.name + ".old")
        if is_old_style(path) and not (path / RECEIPT).exists():
            remove(path)
            if (aside / RECEIPT).exists():  # that installation was killed: this is the last good one
                aside.rename(path)
        if is_old_style(path):
            receipt = json.loads((path / RECEIPT).read_text(encoding="utf-8"))
            name = name_of(receipt, own)
            if companion:
                take_in(path, companion)
            remove(store_of(path) / name)
            store_of(path).mkdir(parents=True, exist_ok=True)
            path.rename(store_of(path) / name)
            lead(path, name)
            write_history(path, [name])


def take_in(path: Path, companion: str) -> None:
    """Move the environment beside another one into it. Its links of packages lead there afterwards."""
    beside, inside = path.with_name(companion), path / companion
    if not is_old_style(beside) or not (beside / RECEIPT).exists():
        return
    remove(inside)
    beside.rename(inside)
    lead_within(beside, path.name)
    with contextlib.suppress(FileNotFoundError):
        beside.with_name(beside.name + ".lock").unlink()
    receipt = json.loads((path / RECEIPT).read_text(encoding="utf-8"))
    there = store_of(path) / name_of(receipt, True) / companion
    for link in path.glob(f"lib/python3*/site-packages/{LINK}"):
        link.write_text(link.read_text(encoding="utf-8").replace(str(beside), str(there)), encoding="utf-8")


def lead(path: Path, name: str) -> None:
    """Have a path lead to a version, in one step."""
    new = path.with_name(path.name + ".new")
    if new.is_symlink():
        new.unlink()
    new.symlink_to(os.path.join(STORE, path.name, name))
    new.replace(path)


def lead_within(path: Path, other: str) -> None:
    """Have a path lead to the directory of its name in what is used beside it. What an earlier release made goes."""
    if is_old_style(path) and (path / RECEIPT).exists():
        remove(path)
    new = path.with_name(path.name + ".new")
    if new.is_symlink():
        new.unlink()
    new.symlink_to(os.path.join(other, path.name))
    new.replace(path)


def write_history(path: Path, names: list[str]) -> None:
    """Keep the order of the versions."""
    new = store_of(path) / (HISTORY + ".new")
    new.write_text(json.dumps(names) + "\n", encoding="utf-8")
    new.replace(store_of(path) / HISTORY)


def use(path: Path, name: str) -> bool:
    """Have a path lead to a version. Return whether it led elsewhere. OSError; FileNotFoundError if it is not there."""
    with locked(path):
        if in_use(path) == name:
            return False
        if not is_whole(path, name):
            raise FileNotFoundError(f"{store_of(path) / name} is not there")
        lead(path, name)
        return True


def record(path: Path, was: str) -> None:
    """Note that the version in use came after another one. What came after that one before is given up."""
    with locked(path):
        known, now = history(path), in_use(path)
        until = known[: known.index(was) + 1] if was in known else [*known, *([was] if is_whole(path, was) else [])]
        write_history(path, [*[name for name in until if name != now], now])


def leave(path: Path) -> None:
    """Undo a first use(): nothing is in use afterwards."""
    with locked(path):
        if is_link_of_ours(path):
            path.unlink()


def prune(path: Path, keep: int) -> list[str]:
    """Remove all versions but that in use, `keep` before it, and those after it. Return the names of what went."""
    with locked(path):
        known, now = history(path), in_use(path)
        if not now:
            return []
        place = known.index(now)
        kept = known[max(0, place - keep) :]
        gone = [entry for entry in store_of(path).iterdir() if entry.name not in kept and is_made(entry)]
        write_history(path, kept)
        for entry in gone:
            remove(entry)
            with contextlib.suppress(FileNotFoundError):
                entry.with_name(entry.name + ".lock").unlink()
        return sorted(entry.name for entry in gone)


def is_made(entry: Path) -> bool:
    """Whether a directory beside the versions is one that we made, or what an installation left."""
    ours = (entry / RECEIPT).is_file() or entry.with_name(entry.name + ".lock").exists()
    return entry.is_dir() and (ours or entry.name.startswith(".") or entry.suffix in (".new", ".old"))


def has_any(path: Path) -> bool:
    """Whether there is any version of a path, also one that is not finished: `versions` may be somebody else's."""
    store = store_of(path)
    beside = (".lock", ".brought.tar")  # of one that is being made
    return store.is_dir() and any(is_made(entry) or entry.name.endswith(beside) for entry in store.iterdir())


def is_ours(path: Path) -> bool:
    """Whether a path is a link to one of its versions, or into a version of what is used beside it."""
    stores = os.path.realpath(str(path.parent / STORE))
    return path.is_symlink() and os.path.realpath(str(path)).startswith(stores + os.sep)


def remove_all(path: Path) -> None:
    """Remove all versions of a path and its link, or what it leads to in another version. The lock is held. OSError."""
    new = path.with_name(path.name + ".new")
    if new.is_symlink():
        new.unlink()
    if is_ours(path):
        within = Path(os.path.realpath(str(path)))
        path.unlink()
        for suffix in ("", ".old"):
            remove(within.with_name(within.name + suffix))
        with contextlib.suppress(FileNotFoundError):
            within.with_name(within.name + ".lock").unlink()
    remove(store_of(path))
    with contextlib.suppress(OSError):
        store_of(path).parent.rmdir()
