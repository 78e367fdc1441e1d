# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What tells an image that is a path from all others: a digest of what can be read in a moment."""

from __future__ import annotations

import hashlib
import os
import stat

from ..software.engines import is_file
from ..types.reasons import ImageFlaw

FILE_ENDS = 1 << 20  # bytes of an image's file, at its begin and its end
# Of what a directory has, its packages tell it from another one.
PACKAGE_LISTS = ("etc/os-release", "var/lib/dpkg/status", "lib/apk/db/installed", "ch/metadata.json")
PYTHON_PACKAGES = ("usr/lib", "usr/local/lib", "opt/conda/lib")


def path_id(image: str) -> tuple[str, ImageFlaw, str]:
    """Return image_id of an image that is a path."""
    found = file_id(image) if is_file(image) else directory_id(image) if os.path.isdir(image) else ""
    return (found, ImageFlaw.NONE, "") if found else ("", ImageFlaw.NO_IMAGE, "")


def file_id(path: str) -> str:
    """Return a digest of a file's size and ends, empty if it is none: reading gigabytes takes half a minute.

    A .sif file begins with the id and the time of its making (SIF specification, global header).
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return ""
            first = file.read(FILE_ENDS)
            file.seek(max(0, found.st_size - FILE_ENDS))
            last = file.read(FILE_ENDS)
    except OSError:
        return ""
    return "file:" + hashlib.sha256(b"%d\0%s\0%s" % (found.st_size, first, last)).hexdigest()[:32]


def directory_id(path: str) -> str:
    """Return a digest of what is installed in an image that is a directory: reading all of its files takes minutes."""
    seen = hashlib.sha256()
    for name in PACKAGE_LISTS:
        try:
            # An image may have a pipe there, which nobody ever writes to.
            with open(os.open(os.path.join(path, name), os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    continue
                seen.update(b"%s\0%s\0" % (name.encode(), hashlib.sha256(file.read(64 << 20)).digest()))
        except OSError:
            continue
    for place in PYTHON_PACKAGES:
        for folder, names, _files in os.walk(os.path.join(path, place)):
            if os.path.basename(folder) in ("site-packages", "dist-packages"):
                infos = sorted(name for name in names if name.endswith((".dist-info", ".egg-info")))
                seen.update("\0".join(infos).encode(errors="surrogateescape"))
                names.clear()
            elif folder.count("/") - os.path.join(path, place).count("/") > 1:
                names.clear()
            names.sort()
    return "packages:" + seen.hexdigest()[:32]
