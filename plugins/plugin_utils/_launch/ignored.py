# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What of a script's folder is not shipped because of its name: the built-in names, and .torchfleetignore."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import open_file
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

if TYPE_CHECKING:
    import pathspec

IGNORE_FILE = ".torchfleetignore"  # beside the script, in the words of gitignore(5)
IGNORE_BYTES = 1 << 20
# Never shipped: hidden files (.git, .env, .ssh), what Python makes, and the runs themselves.
SKIPPED = ("__pycache__", "node_modules", "runs", "venv")


class Ignored:
    """Says which names are shipped, and counts the others. A directory that is not shipped counts once."""

    def __init__(self, root: Path) -> None:
        """`root`: the folder of the script. InputError for a .torchfleetignore that cannot be used."""
        self.root = root
        self.spec = spec_of(root / IGNORE_FILE)
        self.by_name = self.by_file = 0

    def keeps(self, path: Path, is_folder: bool) -> bool:
        """Whether a name below the root is shipped."""
        if path.name.startswith(".") or (is_folder and path.name in SKIPPED):
            self.by_name += 1
            return False
        if self.spec and self.spec.match_file(f"{path.relative_to(self.root)}{'/' * is_folder}"):
            self.by_file += 1
            return False
        return True


def spec_of(path: Path) -> pathspec.GitIgnoreSpec | None:
    """Return the patterns of a file, None if it is not there. InputError if it cannot be used."""
    if not path.exists():
        return None
    try:
        with open(open_file(str(path)), "rb") as file:
            content = file.read(IGNORE_BYTES + 1)
        if len(content) > IGNORE_BYTES:
            raise ValueError(f"more than {IGNORE_BYTES:,} bytes")
        import pathspec  # late, as all that is neither Python nor Ansible

        return pathspec.GitIgnoreSpec.from_lines(content.decode().splitlines())
    except ImportError:
        raise InputError(IGNORE_FILE, str(path), "pathspec is not installed: pip install pathspec") from None
    except (OSError, ValueError) as error:  # UnicodeError and pathspec's own among them
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(IGNORE_FILE, str(path), f"{reason}: give patterns as in gitignore(5)") from None
