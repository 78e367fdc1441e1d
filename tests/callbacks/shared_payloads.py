# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""For tests: all playbooks of a test run pack each module once, and not once each. conftest.py enables it."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from ansible import constants
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: shared_payloads
type: aggregate
short_description: Packed modules outlive a playbook
description: Ansible packs a module with what it imports into a file below its temporary directory, which it removes at
  its end. For one tree of this collection that directory is another one.
"""

TREE = Path(__file__).parents[2]


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Has no output."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "shared_payloads"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, _playbook: object) -> None:
        """Another tree of the collection has other modules of the same names."""
        shared = os.environ.get("TORCHFLEET_TEST_PAYLOADS", "")
        collection = importlib.import_module("ansible_collections.torchfleet.cluster")
        is_ours = [Path(path, "plugins").resolve() for path in collection.__path__] == [TREE.resolve() / "plugins"]
        if is_ours and os.access(shared, os.W_OK):
            Path(constants.DEFAULT_LOCAL_TMP, "ansiballz_cache").symlink_to(shared)
