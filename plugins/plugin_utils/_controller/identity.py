# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who starts a job. For machines: a random word in the user's home, for host names change and need not be unique. For
people: user@controller.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import socket
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

IDENTITY = re.compile(r"[0-9a-f]{32}\Z")
FILE = "~/.torchfleet/controller"
NAME_CHARACTERS = 64  # of a user or a host, as they are told


def identity() -> str:
    """Return the identity of this user on this controller, created by the first call.

    If the home is not writable (a container of a CI), it holds for this run only, and clean.yml lists the run as one of
    another controller. Raise InputError for an invalid file.
    """
    path = Path(FILE).expanduser()
    try:
        return read(path)
    except FileNotFoundError:
        return made(path)


def owner() -> str:
    """Return who starts a job on this controller as people know them: "alice@laptop". It is a name, and proves nothing.

    The user is that of this process, by its number if it has no name (a container of a CI).
    """
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    host = socket.gethostname().partition(".")[0]
    return "@".join(
        "".join(letter for letter in name if letter.isprintable())[:NAME_CHARACTERS] for name in (user, host)
    )


def read(path: Path) -> str:
    """Return the identity in a file. Raise FileNotFoundError, or InputError for an invalid one."""
    try:
        found = path.read_text().strip()
    except (OSError, UnicodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise InputError("controller", str(path), f"cannot be read ({error}): repair or remove it") from None
    if not IDENTITY.match(found):
        raise InputError("controller", str(path), "this is not a controller's identity: remove it to create a new one")
    return found


def made(path: Path) -> str:
    """Create and return an identity, or return that of a process which created one first."""
    fresh = secrets.token_hex(16)
    part = path.with_name(f".controller.{fresh}")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(fresh + "\n")
        try:
            os.link(part, path)  # atomic, and never replaces an existing file
        except FileExistsError:
            return read(path)
        finally:
            part.unlink()
    except OSError:
        pass
    return fresh
