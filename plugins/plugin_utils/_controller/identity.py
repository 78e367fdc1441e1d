# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who a controller is: a random word in its user's home. Host names change, and are alike on machines that are not."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

IDENTITY = re.compile(r"[0-9a-f]{32}\Z")
FILE = "~/.torchfleet/controller"


def identity() -> str:
    """Return the identity of this user on this controller, made at the first call.

    Where the home cannot be written (a container of a CI) it is good for this run alone: clean.yml of others lists it.
    InputError for a file that is no identity.
    """
    path = Path(FILE).expanduser()
    try:
        return read(path)
    except FileNotFoundError:
        return made(path)


def read(path: Path) -> str:
    """Return the identity in a file. FileNotFoundError, and InputError for one that is none."""
    try:
        found = path.read_text().strip()
    except (OSError, UnicodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise InputError("controller", str(path), f"cannot be read ({error}): mend or remove it") from None
    if not IDENTITY.match(found):
        raise InputError("controller", str(path), "this is no identity of a controller: remove it to have a new one")
    return found


def made(path: Path) -> str:
    """Return a new identity and keep it, or that of another process which made one first."""
    fresh = secrets.token_hex(16)
    part = path.with_name(f".controller.{fresh}")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(fresh + "\n")
        try:
            os.link(part, path)  # whole or not at all, and never over one that is there
        except FileExistsError:
            return read(path)
        finally:
            part.unlink()
    except OSError:
        pass
    return fresh
