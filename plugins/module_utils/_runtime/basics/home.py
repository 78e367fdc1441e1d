# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where torchfleet has its files on a node."""

from __future__ import annotations

import os


def home_path(home: str) -> str:
    """Return torchfleet's directory on this node as an absolute path; empty means ~/.torchfleet."""
    return os.path.abspath(os.path.expanduser(home or "~/.torchfleet"))
