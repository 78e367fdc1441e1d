# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The newest complete checkpoint in a directory of the user's: what a program that is started again goes on from.

A name or number proves nothing: a program that was ended while it wrote leaves a torn one. Each format has something
that is written last, or is of no use without its end. Nothing here is ever changed or deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zipfile
from typing import Iterator, NamedTuple

from ..basics.job_directory import open_file

DEPTH = 4  # of directories: Lightning's lightning_logs/version_0/checkpoints is three
ENTRIES_MOST = 10_000  # that are looked at
STATE_BYTES = 64 << 20  # of trainer_state.json, which has a row for each report
HEADER_BYTES = 100_000_000  # of a safetensors file: the limit of its own reader
UNFINISHED = (".partial", ".tmp", ".incomplete")  # what programs write before they rename it
DCP, DCP_PART = ".metadata", ".distcp"
TRAINER, TRAINER_STATE = re.compile(r"checkpoint-[0-9]+\Z"), "trainer_state.json"
ZIP_MAGIC = b"PK\x03\x04"


class Candidate(NamedTuple):
    """What may be a checkpoint. `when` it was changed, in nanoseconds since the epoch."""

    when: int
    path: str


def newest(directory: str) -> str:
    """Return the path of the newest complete checkpoint below a directory; empty: there is none that can be read.

    Known are directories of torch.distributed.checkpoint and of Hugging Face's Trainer, and files of torch.save
    (so those of Lightning) and of safetensors.
    """
    found = sorted(candidates(directory, [ENTRIES_MOST], DEPTH), reverse=True)
    return next((candidate.path for candidate in found if is_complete(candidate.path)), "")


def candidates(directory: str, left: list[int], depth: int) -> Iterator[Candidate]:
    """Yield what may be a checkpoint below a directory. `left`: how many entries may still be looked at."""
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        if left[0] <= 0:
            return
        left[0] -= 1
        with contextlib.suppress(OSError):  # it is gone by now
            if entry.name.endswith(UNFINISHED) or entry.name.startswith("."):
                continue
            if entry.is_file(follow_symlinks=False):
                yield Candidate(entry.stat(follow_symlinks=False).st_mtime_ns, entry.path)
            elif entry.is_dir(follow_symlinks=False):
                last = written_last(entry.path)
                if last:
                    yield Candidate(os.lstat(last).st_mtime_ns, entry.path)
                elif depth > 1 and not has_parts(entry.path):
                    yield from candidates(entry.path, left, depth - 1)


def written_last(directory: str) -> str:
    """Return the file that the writer of a directory writes last; empty: it has none, or is no checkpoint."""
    names = [DCP, *([TRAINER_STATE] if TRAINER.match(os.path.basename(directory)) else [])]
    paths = [os.path.join(directory, name) for name in names]
    return next((path for path in paths if os.path.isfile(path) and not os.path.islink(path)), "")


def has_parts(directory: str) -> bool:
    """Whether a directory is a checkpoint that was not finished: its files alone are of no use."""
    return bool(TRAINER.match(os.path.basename(directory))) or any(
        name.endswith(DCP_PART) for name in os.listdir(directory)
    )


def is_complete(path: str) -> bool:
    """Whether what may be a checkpoint is a complete one."""
    try:
        if not os.path.isdir(path):
            return is_whole_file(path)
        last = written_last(path)
        return is_after_parts(last) if os.path.basename(last) == DCP else is_json(last)
    except Exception:  # anybody may have written it: whatever a reader makes of it, no rank fails for that
        return False


def is_after_parts(metadata: str) -> bool:
    """Whether no part is newer than .metadata: another checkpoint was begun in the place of that one."""
    directory, when = os.path.dirname(metadata), os.lstat(metadata).st_mtime_ns
    parts = [entry for entry in os.scandir(directory) if entry.name.endswith(DCP_PART)]
    return all(part.stat(follow_symlinks=False).st_mtime_ns <= when for part in parts)


def is_json(path: str) -> bool:
    """Whether a file is a whole object of JSON. ValueError for one that is none. OSError."""
    with open(open_file(path), "rb") as file:
        return isinstance(json.loads(file.read(STATE_BYTES)), dict)


def is_whole_file(path: str) -> bool:
    """Whether a file is a whole one of torch.save or safetensors. OSError, ValueError, zipfile.BadZipFile.

    torch.save writes a ZIP file, whose directory comes last, with data.pkl as its first part (serialization.py). A
    safetensors file begins with the length of its header, little-endian, which says where each tensor ends.
    """
    with open(open_file(path), "rb") as file:
        size, magic = os.fstat(file.fileno()).st_size, file.read(8)
        if magic.startswith(ZIP_MAGIC):
            names = zipfile.ZipFile(file).namelist()
            return bool(names) and names[0].rpartition("/")[2] == "data.pkl"
        length = int.from_bytes(magic, "little")
        if not path.endswith(".safetensors") or not 2 <= length <= min(HEADER_BYTES, size - 8):
            return False
        header = json.loads(file.read(length))
        tensors = [row for name, row in header.items() if name != "__metadata__"]
        return max((row["data_offsets"][1] for row in tensors), default=0) == size - 8 - length
