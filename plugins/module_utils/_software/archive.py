# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Unpacking an archive of a standalone Python, as if it came from an enemy: all of it lies in one directory."""

from __future__ import annotations

import os
import posixpath
import tarfile
from pathlib import Path

from .environment_files import NotMadeError

TOP = "python"  # the one directory in the archive
MOST_FILES = 50_000
MOST_BYTES = 2 << 30


def unpack(archive: str, place: Path) -> None:
    """Unpack the directory `python` of a tar file into a directory that is empty. NotMadeError for any other file."""
    links: set[str] = set()
    count = size = 0
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                count, size = count + 1, size + member.size
                if count > MOST_FILES or size > MOST_BYTES:
                    raise NotMadeError(f"{archive} has more than {MOST_FILES} files or {MOST_BYTES >> 30} GiB")
                name = inner_name(member, links)
                if name:
                    put(tar, member, name, place)
                    links.update([name] if member.issym() else [])
    except (tarfile.TarError, EOFError, OSError) as error:
        raise NotMadeError(f"{archive} could not be unpacked: {error}") from None


def inner_name(member: tarfile.TarInfo, links: set[str]) -> str:
    """Return where a member goes below the directory, "" for the directory itself. NotMadeError if it may not be.

    Nothing goes through a link that came before it.
    """
    parts = member.name.rstrip("/").split("/")
    if parts[:1] == ["."]:
        parts = parts[1:]
    name = "/".join(parts[1:])
    above = {"/".join(parts[1:count]) for count in range(2, len(parts))}
    plain = member.isreg() or member.isdir() or member.issym() or member.islnk()
    if parts[:1] != [TOP] or not plain or set(parts) & {"", ".", ".."} or above & links or name in links:
        raise NotMadeError(f"{member.name!r} may not be in an archive of Python")
    if member.issym() and not stays_inside(posixpath.join(posixpath.dirname(name), member.linkname), member.linkname):
        raise NotMadeError(f"{member.name!r} is a link to {member.linkname!r}, outside the archive")
    return name


def stays_inside(path: str, target: str) -> bool:
    """Whether a link leads to a place below the directory. One that goes up after it went down may pass a link."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = [part == ".." for part in parts]
    up_first = ups == sorted(ups, reverse=True)
    return up_first and not target.startswith("/") and posixpath.normpath(path).split("/")[0] != ".."


def put(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, place: Path) -> None:
    """Write one member: its bytes, and whether it can be run. Owner, times and other bits of its mode are ours."""
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.isdir():
        path.mkdir(exist_ok=True)
    elif member.issym():
        path.symlink_to(member.linkname)
    elif member.islnk():
        link(place, member, path)
    else:
        source = tar.extractfile(member)
        handle = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as stream:
            for block in iter(lambda: source.read(1 << 20) if source else b"", b""):
                stream.write(block)
        path.chmod(0o755 if member.mode & 0o100 else 0o644)


def link(place: Path, member: tarfile.TarInfo, path: Path) -> None:
    """Make a second name of a file that came before it."""
    parts = member.linkname.split("/")
    first = place.joinpath(*parts[1:])
    plain = parts[0] == TOP and not set(parts) & {"", ".", ".."}
    if not plain or not first.is_file() or first.resolve() != place.resolve().joinpath(*parts[1:]):
        raise NotMadeError(f"{member.name!r} is a second name of {member.linkname!r}, which is no file of the archive")
    os.link(str(first), str(path))
