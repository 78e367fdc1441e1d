# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The directory of an inventory that we write ourselves: its key, its files, and their removal."""

from __future__ import annotations

import os
import shutil
from typing import Sequence

from .inventory import MESH
from .podman import run

FILES = ("hosts.yml", "known_hosts", "key.pub", "key")


def is_ours(directory: str, header: str) -> bool:
    """Whether the inventory in a directory is one that we wrote, or were about to. `header`: how its text begins."""
    path = os.path.join(directory, "hosts.yml")
    if not os.path.exists(path):
        return os.path.exists(os.path.join(directory, "key"))
    with open(path) as file:
        return file.read(len(header)) == header


def public_key(directory: str) -> str:
    """Return the public key of a directory, nothing if it has none yet."""
    path = os.path.join(directory, "key.pub")
    if not os.path.exists(path):
        return ""
    with open(path) as file:
        return file.read().strip()


def make_key(directory: str, comment: str) -> str:
    """Make the key of a directory unless it is there. Return the public one."""
    path = os.path.join(directory, "key")
    if not public_key(directory):
        os.makedirs(directory, exist_ok=True)
        give_away(directory)
        if os.path.exists(path):  # half a pair, from a run that was interrupted
            os.unlink(path)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path)
        give_away(path)
        give_away(path + ".pub")
    return public_key(directory)


def give_away(path: str) -> None:
    """Make the owner of the parent directory the owner of a path: root may write it (`ansible-playbook -b`)."""
    above = os.stat(os.path.dirname(path))
    os.chown(path, above.st_uid, above.st_gid)


def write(path: str, text: str) -> bool:
    """Write a file unless it says that already. Return whether it was written."""
    if os.path.exists(path):
        with open(path) as file:
            if file.read() == text:
                return False
    with open(path, "w") as file:
        file.write(text)
    give_away(path)
    return True


def files_of(directory: str, header: str) -> list[str]:
    """Return the files in a directory that we wrote. `header`: how the inventory begins."""
    files = [os.path.join(directory, file) for file in FILES if is_ours(directory, header)]
    return [path for path in files if os.path.exists(path)]


def remove_files(files: Sequence[str], directory: str) -> None:
    """Remove files of a directory, what the SSH mesh keeps there, and the directory if nothing else is in it."""
    for path in files:
        os.unlink(path)
    if files:
        shutil.rmtree(os.path.join(directory, MESH), ignore_errors=True)
    if files and not os.listdir(directory):
        os.rmdir(directory)
