# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filter files_of. Documentation: files_of.yml."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

SKIPPED = ("__pycache__", "bench", "build", "tests")


def files_of(directory: str) -> dict[str, str]:
    """Return the sha256 of each file that belongs to a source package, by its path below the directory."""
    root, found = Path(directory), {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.endswith(".egg-info")]
        for path in (Path(folder, name) for name in names if not name.startswith(".")):
            found[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest()
    if "pyproject.toml" not in found:
        raise AnsibleFilterError(f"{directory} is no source of a Python package: there is no pyproject.toml")
    return dict(sorted(found.items()))


class FilterModule:
    """What Ansible asks for the filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return them by name."""
        return {"files_of": files_of}
