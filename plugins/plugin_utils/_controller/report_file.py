# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reports on the controller: JSON files that only their owner can read."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError


def keep_report(variable: str, name: str, report: Mapping[str, object]) -> str:
    """Write a report atomically and return its path. Raise InputError, which names `variable`, if that fails."""
    part = None
    try:
        path = Path(name).expanduser().absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps(report, indent=2) + "\n")
        part.replace(path)
    except (OSError, RuntimeError, ValueError) as error:  # no such ~user; a name that no file can have
        if part:
            with contextlib.suppress(OSError):
                part.unlink()
        reason = getattr(error, "strerror", None) or error
        raise InputError(variable, name, f"{reason}: give the path of a writable file") from None
    return str(path)
