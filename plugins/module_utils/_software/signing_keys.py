# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keys of a vendor, fetched and known by their fingerprints, and files of the system that are replaced at once."""

from __future__ import annotations

import os
import tempfile
from http.client import HTTPException
from typing import Iterable

from ansible.module_utils.urls import open_url

from .openpgp import KeyFileError, keyring

SECONDS = 60
LARGEST = 10**6  # bytes; keys of vendors have a few thousand


def fetch_keyring(url: str, fingerprints: Iterable[str]) -> bytes:
    """Return the keys at an address, as apt reads them. KeyFileError, which names the address, if they are others."""
    try:
        return keyring(bytes(open_url(url, timeout=SECONDS).read(LARGEST)), fingerprints)
    except KeyFileError as error:
        raise KeyFileError(f"{url} is not the key that is known: {error}") from None
    except (OSError, ValueError, HTTPException) as error:  # the network, the address, the answer
        raise KeyFileError(f"{url} cannot be fetched: {error}") from None


def content(path: str) -> bytes:
    """Return what a file holds; nothing if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def write(path: str, data: bytes) -> None:
    """Replace a file at once. Everybody may read it, as apt's own user must."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".new")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(handle, 0o644)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
