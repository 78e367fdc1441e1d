# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of the plugins. Its modules are imported by Python's own loader, which keeps their bytecode.

Ansible's loader of collections compiles each module at each start (ansible.utils.collection_loader, get_code()): 0.2 s
of CPU for the 200 modules of a launch, of 0.8 s in all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType

PLUGINS = os.path.dirname(os.path.dirname(__file__))
PACKAGE = __name__.rpartition(".")[0] + "."


class OwnModules:
    """Finds the modules of this collection's plugins. Folders are left to the next finder, and so is all else."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is loaded; None if it is none of ours."""
        if not fullname.startswith(PACKAGE):
            return None
        place = os.path.join(PLUGINS, *fullname[len(PACKAGE) :].split(".")) + ".py"
        return spec_from_file_location(fullname, place) if os.path.isfile(place) else None


# Before Ansible's, where that is: without it Python's own loader loads them anyway.
FINDERS = [type(finder).__name__ for finder in sys.meta_path]
if "_AnsibleCollectionFinder" in FINDERS:
    sys.meta_path.insert(FINDERS.index("_AnsibleCollectionFinder"), OwnModules)
