"""Files that are whole or never read: ZIP files, as torch.save writes them, whose comment is the SHA-256 of the rest.

One is written beside its place, brought to the disk and renamed; the whole one that was there stays as
`<name>.previous`, so that two are kept. Needs no PyTorch.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

MARK = b"sha256:"
COMMENT = len(MARK) + 2 * hashlib.sha256().digest_size
LENGTH_FIELD = 2  # the last field of a ZIP file: the length of its comment, little-endian (APPNOTE 4.3.16)
DIRECTORY, RESTARTS = "TORCHFLEET_CHECKPOINT_DIR", "TORCHFLEET_RESTART_COUNT"


def located(path: Path, environment: Mapping[str, str]) -> Path:
    """Return where a checkpoint lies: a relative path is below $TORCHFLEET_CHECKPOINT_DIR if that is set."""
    return Path(environment.get(DIRECTORY, ""), path)


def restarted(environment: Mapping[str, str]) -> bool:
    """Tell whether this job was run again, to go on from its checkpoint."""
    count = environment.get(RESTARTS, "")
    return count.isdecimal() and int(count) > 0


def before(path: Path) -> Path:
    """Return where the file lies that was at a path before."""
    return path.with_name(f"{path.name}.previous")


def replace(path: Path, fill: Callable[[BinaryIO], None]) -> None:
    """Have `fill` write a ZIP file, and put it there when it is whole. Raise OSError, and what `fill` raises."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("w+b") as stream:
            fill(stream)
            seal(stream)
            stream.flush()
            os.fsync(stream.fileno())
        if whole(path):
            path.replace(before(path))
        partial.replace(path)
        sync_directory(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def newest(path: Path) -> tuple[Path | None, list[Path]]:
    """Return the newest whole file, None if there is none, and the damaged ones that are newer."""
    damaged: list[Path] = []
    for found in (path, before(path)):
        if whole(found):
            return found, damaged
        damaged += [found] if found.exists() else []
    return None, damaged


def seal(stream: BinaryIO) -> None:
    """Append the digest of a ZIP file to it, as its comment. The stream can be read and written."""
    end = stream.seek(0, os.SEEK_END) - LENGTH_FIELD
    comment = MARK + digest(stream, end).encode()
    stream.seek(end)
    stream.write(len(comment).to_bytes(LENGTH_FIELD, "little") + comment)


def whole(path: Path) -> bool:
    """Tell whether a file is there, and has the digest that it says."""
    try:
        with path.open("rb") as stream:
            end = stream.seek(0, os.SEEK_END) - LENGTH_FIELD - COMMENT
            stream.seek(max(end, 0))
            told = stream.read()
            expected = COMMENT.to_bytes(LENGTH_FIELD, "little") + MARK
            return end >= 0 and told == expected + digest(stream, end).encode()
    except OSError:
        return False


def digest(stream: BinaryIO, end: int) -> str:
    """Return the SHA-256 of the first `end` bytes, in hexadecimal."""
    found, left = hashlib.sha256(), end
    stream.seek(0)
    while left and (block := stream.read(min(left, 1 << 20))):
        found.update(block)
        left -= len(block)
    return found.hexdigest()


def foreign(directory: Path, manifest: str, ours: str) -> str:
    """Return the name of something in a directory that is no checkpoint, an empty text if there is nothing.

    A checkpoint has a manifest. `ours`: the pattern of names that one which was stopped may have left.
    """
    if (directory / manifest).exists():
        return ""
    return next((path.name for path in sorted(directory.iterdir()) if not re.fullmatch(ours, path.name)), "")


def sync_directory(path: Path) -> None:
    """Bring the names of files to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
