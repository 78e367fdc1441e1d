# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which runs a report is asked for: ids and globs, found below one directory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

PATTERN = re.compile(r"[A-Za-z0-9*?\[][A-Za-z0-9._*?\[\]-]{0,99}\Z")
RUNS_MOST = 50
LATEST = "latest"  # the link to the newest run
CELLS = "cells"  # what a directory of bench.yml has, which is no run


def parse_patterns(value: object) -> tuple[str, ...]:
    """Return the ids and globs of a list, or of a text with commas between them. InputError for what is neither."""
    items = value.split(",") if isinstance(value, str) else value
    texts = [str(item).strip() for item in items] if isinstance(items, (list, tuple)) else [str(items)]
    for text in texts:
        if not PATTERN.match(text) or ".." in text:
            raise InputError("runs", text, "give ids or globs of runs: -e runs=run7,run8 or -e runs='*mnist*'")
    return tuple(texts)


def is_run(path: Path) -> bool:
    """Whether this may be the directory of a run."""
    return path.is_dir() and not path.is_symlink() and not (path / CELLS).is_dir()


def find_runs(runs_dir: str, patterns: Sequence[str]) -> list[Path]:
    """Return the run directories, each once, in order. InputError for a pattern that names none."""
    try:
        root = Path(runs_dir).expanduser().absolute()
        there = sorted(path.name for path in root.iterdir() if is_run(path))
        newest = (root / LATEST).readlink().name if (root / LATEST).is_symlink() else ""
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError("runs_dir", runs_dir, f"{reason}: -e runs_dir=<the directory of your runs>") from None
    found: dict[str, None] = {}
    for pattern in patterns:
        names = [newest] * (newest in there) if pattern == LATEST else [n for n in there if fnmatchcase(n, pattern)]
        if not names:
            raise InputError("runs", pattern, f"no run of that name is in {root}: ls {root}")
        found.update(dict.fromkeys(names))
    if len(found) > RUNS_MOST:
        raise InputError("runs", ",".join(patterns), f"these are {len(found)} runs: name {RUNS_MOST} at most")
    return [root / name for name in found]
