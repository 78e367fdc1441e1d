# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What root added to this machine for torchfleet, by the role that did: remove.yml takes away this, and nothing else.

One file for the machine, which only root can write: root acts on it. Any user may read it, so that a playbook can tell
what it would remove. What was there before is not in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Dict, Iterable, Iterator

from .packages import PackageError, every_package

LEDGER = Path("/var/lib/torchfleet/installed.json")
# Packages; files; groups; `group:user`, a user who was added to a group; services that were turned on; the mark of a
# cluster's rules in the firewall; packages that were held, which may have been there before.
KINDS = ("packages", "files", "groups", "members", "services", "rules", "holds")
LEFT_OVER = ""  # instead of a role: not wanted any more, but something else on the machine needs it
Entries = Dict[str, Dict[str, str]]  # by kind: the role by name; of a hold: all roles that want it, with spaces between


def read() -> Entries:
    """Return what is noted. PackageError if the file is damaged, or others than root can write it."""
    try:
        with open(str(LEDGER), encoding="utf-8") as file:
            state = os.fstat(file.fileno())
            found = json.load(file)
    except FileNotFoundError:
        found, state = {}, None
    except (OSError, ValueError) as error:
        raise PackageError(f"{LEDGER} cannot be read: {error}: remove it; what it names then stays") from None
    if state and (state.st_uid not in (0, os.geteuid()) or stat.S_IMODE(state.st_mode) & 0o022):
        raise PackageError(f"{LEDGER} can be written by others than root: remove it; what it names then stays")
    if not isinstance(found, dict) or not all(is_names(found.get(kind, {})) for kind in KINDS):
        raise PackageError(f"{LEDGER} is damaged: remove it; what it names then stays")
    return {kind: dict(found.get(kind, {})) for kind in KINDS}


def is_names(value: object) -> bool:
    """Whether a value is an object of texts."""
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def write(entries: Entries) -> None:
    """Replace the file at once, or remove it if nothing is left in it."""
    if not any(entries.values()):
        LEDGER.unlink()
        return
    draft = LEDGER.with_name(LEDGER.name + ".new")
    with open(os.open(str(draft), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o644)
        json.dump(entries, file, indent=2, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(LEDGER)


@contextlib.contextmanager
def changed() -> Iterator[Entries]:
    """Give what is noted, to be changed; it is written at the end. Two playbooks take turns."""
    LEDGER.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    directory = os.open(str(LEDGER.parent), os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        entries = read()
        before = json.dumps(entries)
        yield entries
        if json.dumps(entries) != before:
            write(entries)
        with contextlib.suppress(OSError):
            LEDGER.parent.rmdir()  # if nothing is left
    finally:
        os.close(directory)


def note(role: str, kind: str, names: Iterable[str]) -> None:
    """Note that a role added these. What is noted already stays with the role that added it."""
    with changed() as entries:
        for name in names:
            entries[kind].setdefault(name, role)


def note_holds(role: str, names: Iterable[str]) -> None:
    """Note that a role holds these packages, beside the roles that hold them already."""
    with changed() as entries:
        for name in names:
            entries["holds"][name] = " ".join(sorted({role, *entries["holds"].get(name, "").split()}))


def forget_holds(role: str) -> None:
    """Note that a role holds nothing any more."""
    with changed() as entries:
        left = {name: [each for each in roles.split() if each != role] for name, roles in entries["holds"].items()}
        entries["holds"] = {name: " ".join(roles) for name, roles in left.items() if roles}


def holds() -> dict[str, set[str]]:
    """Return the roles that hold each package."""
    return {name: set(roles.split()) for name, roles in read()["holds"].items()}


def forget(kind: str, names: Iterable[str]) -> None:
    """Remove these from the notes."""
    with changed() as entries:
        for name in names:
            entries[kind].pop(name, None)


def names_of(role: str, kind: str) -> list[str]:
    """Return what a role added, and what roles left that were removed before."""
    return sorted(name for name, owner in read()[kind].items() if owner in (role, LEFT_OVER))


@contextlib.contextmanager
def noting(role: str) -> Iterator[None]:
    """Note the packages that are installed meanwhile, with all that they bring, also if it ends with an error."""
    before = every_package()
    try:
        yield
    finally:
        added = every_package() - before
        if added:
            note(role, "packages", added)
