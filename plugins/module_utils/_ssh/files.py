# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of the SSH mesh on a node, written atomically; files and lines of others are left alone."""

from __future__ import annotations

import os
import stat
from typing import Callable, Optional

from .keys import NEXT

Check = Optional[Callable[[str], str]]


class MeshFailed(Exception):
    """A node could not be set up; the text is for the user."""


def read(path: str) -> str | None:
    """Return a file's text, or None if there is none."""
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return None


def put(path: str, text: str, mode: int, dry_run: bool, check: Check = None) -> bool:
    """Give a file this text and mode; return whether that changed it.

    `check` takes the path of the temporary file and returns why it is invalid, or "".
    """
    if read(path) == text:
        return set_mode(path, mode, dry_run)
    if not dry_run:
        os.makedirs(os.path.dirname(path), mode=0o755 if mode & 0o044 else 0o700, exist_ok=True)
        replace(path, text, mode, check)
    return True


def set_mode(path: str, mode: int, dry_run: bool) -> bool:
    different = stat.S_IMODE(os.stat(path).st_mode) != mode
    if different and not dry_run:
        os.chmod(path, mode)
    return different


def replace(path: str, text: str, mode: int, check: Check = None) -> None:
    """Write a file beside `path` and rename it. Its name does not end in .conf, so that sshd does not read it."""
    unfinished = f"{path}.{os.getpid()}.new"
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        wrong = check(unfinished) if check else ""
        if wrong:
            raise MeshFailed(f"sshd refuses the new content of {path}: {wrong}")
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)


def promote(path: str, dry_run: bool) -> bool:
    """Replace a key by its new one, if there is a new one; return whether it did."""
    if not os.path.exists(path + NEXT):
        return False
    if not dry_run:
        # The private part last: after an interruption it is still there, and the step is repeated.
        if os.path.exists(f"{path}{NEXT}.pub"):
            os.replace(f"{path}{NEXT}.pub", f"{path}.pub")
        os.replace(path + NEXT, path)
    return True


def take_away(path: str, dry_run: bool) -> bool:
    """Remove a file, or a directory that is empty; return whether it was there."""
    if os.path.isdir(path) and not os.path.islink(path):
        if not dry_run and not os.listdir(path):
            os.rmdir(path)
        return False  # not empty: others use it; empty: its content was already reported
    if not os.path.lexists(path):
        return False
    if not dry_run:
        os.unlink(path)
    return True


def set_block(path: str, cluster: str, lines: list[str], dry_run: bool) -> bool:
    """Put these lines between our marks in authorized_keys, and no others; return whether that changed it.

    Other lines are not changed by a byte. A file that becomes empty is removed.
    """
    path = os.path.realpath(path)
    before = read(path)
    after = with_block(before or "", cluster, lines, path)
    if after == (before or ""):
        return False
    if dry_run:
        return True
    if not after:
        os.unlink(path)
        return True
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    replace(path, after, 0o600 if before is None else stat.S_IMODE(os.stat(path).st_mode))
    return True


def with_block(text: str, cluster: str, lines: list[str], path: str) -> str:
    """Return the text with our block, in its old place or at the end. Raise MeshFailed if the block has no end."""
    begin, end = f"# BEGIN torchfleet {cluster}\n", f"# END torchfleet {cluster}\n"
    block = "".join([begin, *(f"{line}\n" for line in lines), end]) if lines else ""
    rows = (text if text.endswith("\n") or not text else f"{text}\n").splitlines(keepends=True)
    if begin not in rows:
        return f"{''.join(rows)}{block}" if block else text
    first = rows.index(begin)
    if end not in rows[first:]:
        raise MeshFailed(f"{path}: '{begin.strip()}' has no end: remove that block by hand")
    last = rows.index(end, first)
    return "".join([*rows[:first], block, *rows[last + 1 :]])
